"""The doctor looks at this machine: ports, directories, limits."""

import os
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker.controller_mode.broker_meta_file import BrokerMeta, encode_meta
from cli.doctor import machine
from cli.doctor.files import ConfigFile, load
from cli.doctor.machine import Owner, Port
from cli.doctor.quota import check_quota
from keelmq.health.findings import Finding, Level
from tests.support.ports import free_port


def broker(directory: Path, name: str = "broker.conf", **keys: str) -> ConfigFile:
    settings = {
        "brokerName": "broker-a",
        "brokerClusterName": "C",
        "bindAddress": "127.0.0.1",
        "namesrvAddr": "127.0.0.1:9876",
        "enableControllerMode": "true",
        "controllerAddr": "127.0.0.1:9878",
        "storePathRootDir": str(directory / "store"),
        "mappedFileSizeCommitLog": "65536",
        **keys,
    }
    path = directory / name
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    file, findings = load(path, None, name)
    assert file is not None, findings
    return file


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


async def nobody(_: ConfigFile, __: Port) -> Owner:
    return Owner.ANOTHER


async def ourselves(_: ConfigFile, __: Port) -> Owner:
    return Owner.ITSELF


async def withheld(_: ConfigFile, __: Port) -> Owner:
    return Owner.WITHHELD


def test_the_ports_of_a_file(tmp_path: Path) -> None:
    file = broker(tmp_path, listenPort="7000")
    assert [(port.role, port.number) for port in machine.ports_of(file)] == [
        ("broker", 7000),
        ("HA", 7001),
        ("http", 17000),
    ]
    any_free = broker(tmp_path, listenPort="0", httpPort="-1")
    assert machine.ports_of(any_free) == []


def test_the_ports_of_a_name_server_with_a_controller(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text(
        "enableControllerInNamesrv=true\nlistenPort=7000\ncontrollerDLegerGroup=g\n"
        "controllerDLegerPeers=n0-127.0.0.1:7005\ncontrollerDLegerSelfId=n0\n"
    )
    file, _ = load(path, None, "namesrv.conf")
    assert file is not None
    ports = {port.role: (port.host, port.number) for port in machine.ports_of(file)}
    assert ports == {
        "namesrv": ("0.0.0.0", 7000),
        "http": ("0.0.0.0", 17000),
        "controller": ("127.0.0.1", 7005),
        "raft": ("127.0.0.1", 8005),
    }


async def test_free_ports(tmp_path: Path) -> None:
    file = broker(tmp_path, listenPort=str(free_port()), haListenPort=str(free_port()), httpPort="-1")
    (found,) = await machine.check_ports(file, nobody)
    assert found.level is Level.OK and found.text.startswith("free: ")


async def test_a_port_that_another_program_has(tmp_path: Path, taken: int) -> None:
    file = broker(tmp_path, listenPort=str(taken), haListenPort=str(free_port()), httpPort="-1")
    (found,) = await machine.check_ports(file, nobody)
    assert found.level is Level.FAILED and str(taken) in found.text
    if os.path.exists("/proc/net/tcp"):
        assert f"process {os.getpid()}" in found.text and "python" in found.text


async def test_a_port_that_the_program_itself_has(tmp_path: Path, taken: int) -> None:
    file = broker(tmp_path, listenPort=str(taken), haListenPort=str(free_port()), httpPort="-1")
    (found,) = await machine.check_ports(file, ourselves)
    assert found.level is Level.OK and "itself" in found.text


async def test_a_server_that_asks_for_credentials_is_not_told_to_stop(tmp_path: Path, taken: int) -> None:
    """It may be the file's own program, and it may be healthy."""
    file = broker(tmp_path, listenPort=str(taken), haListenPort=str(free_port()), httpPort="-1")
    (found,) = await machine.check_ports(file, withheld)
    assert found.level is Level.WARNING and str(taken) in found.text
    assert "stop" not in found.next_step and "--credentials FILE" in found.next_step


async def test_the_http_port_alone_proves_nothing(tmp_path: Path, taken: int) -> None:
    """Any program of ours has /livez."""
    file = broker(tmp_path, listenPort=str(free_port()), haListenPort=str(free_port()), httpPort=str(taken))
    (found,) = await machine.check_ports(file, ourselves)
    assert found.level is Level.FAILED and f"{taken} (http)" in found.text


def test_directories(tmp_path: Path) -> None:
    (found,) = machine.check_directories(broker(tmp_path))
    assert found.check == "machine.directories" and "free" in found.text
    (tmp_path / "file").write_text("")
    (found,) = machine.check_directories(broker(tmp_path, storePathRootDir=str(tmp_path / "file" / "store")))
    assert found.level is Level.FAILED and "not a directory" in found.text


def test_a_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """root may write everywhere: asked of a stand-in for the system."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    (found,) = machine.check_directories(broker(tmp_path))
    assert found.level is Level.FAILED and "not writable" in found.text


@pytest.mark.parametrize(
    ("free", "level"), [(1 << 20, Level.FAILED), (10 << 30, Level.WARNING), (60 << 30, Level.OK)]
)
def test_room(free: int, level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimpleNamespace(total=100 << 30, used=(100 << 30) - free, free=free)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: disk)
    (found,) = machine.check_directories(broker(tmp_path))
    assert found.level is level


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        (encode_meta(BrokerMeta("C", "broker-a", 1, "x")), ""),
        (encode_meta(BrokerMeta("C", "broker-b", 1, "x")), "C/broker-b"),
        (b'{"clusterName": "C"}', "damaged"),
    ],
)
def test_a_disk_that_belongs_to_somebody(meta: bytes, text: str, tmp_path: Path) -> None:
    """user-pain 44: both values are shown."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / ".broker.meta").write_bytes(meta)
    found = [each for each in machine.check_directories(broker(tmp_path)) if each.level is Level.FAILED]
    assert [text in each.text for each in found] == ([True] if text else [])


def test_files_that_do_not_fit_the_settings(tmp_path: Path) -> None:
    """Doctor says what the start would say, with the right size, and touches nothing."""
    queue = tmp_path / "store" / "consumequeue" / "t" / "0"
    queue.mkdir(parents=True)
    (queue / ("0" * 20)).write_bytes(b"\1" * 20 + bytes(1_980))
    path = queue / ("0" * 20)
    before = (path.stat().st_mtime_ns, path.read_bytes())
    (found,) = [each for each in machine.check_directories(broker(tmp_path)) if each.level is Level.FAILED]
    assert found.text.endswith("the files have 2000 bytes: set mappedFileSizeConsumeQueue=2000")
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before
    fits = broker(tmp_path, mappedFileSizeConsumeQueue="2000")
    assert [each for each in machine.check_directories(fits) if each.level is Level.FAILED] == []


def test_two_programs_want_the_same(tmp_path: Path) -> None:
    first, second = (
        broker(tmp_path, f"{index}.conf", listenPort="7000", haListenPort=str(8000 + index))
        for index in range(2)
    )
    found = machine.check_shared([first, second])
    assert {each.level for each in found} == {Level.FAILED}  # both on 127.0.0.1
    assert {each.text.split(" ")[2] for each in found} == {"port", "storePathRootDir"}
    remote = [
        broker(tmp_path, f"{index}.conf", bindAddress="0.0.0.0", haListenPort="8000") for index in range(2)
    ]
    assert {each.level for each in machine.check_shared(remote)} == {Level.WARNING}


def test_which_machine_a_file_is_for(tmp_path: Path) -> None:
    assert machine.host_of(broker(tmp_path)) == "127.0.0.1"
    assert machine.host_of(broker(tmp_path, bindAddress="0.0.0.0")) == ""
    assert machine.host_of(broker(tmp_path, brokerIP1="10.0.0.7")) == "10.0.0.7"
    assert machine.is_ours("127.0.0.1") and not machine.is_ours("192.0.2.1")


@pytest.mark.parametrize(
    ("hard", "level"), [(1_024, Level.WARNING), (65_536, Level.OK), (resource.RLIM_INFINITY, Level.OK)]
)
def test_open_files(hard: int, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (hard, hard))
    found: Finding = machine.check_open_files()
    assert "open files" in found.text
    assert found.level is level


@pytest.mark.parametrize(("count", "text"), [(6, "6 of 6"), (0, "0 of 6 .*interpreted")])
def test_compiled_or_not_is_told(monkeypatch: pytest.MonkeyPatch, count: int, text: str) -> None:
    monkeypatch.setattr(machine, "built", lambda: (count, 6))
    found = machine.check_compiled()
    assert found.level is Level.OK and re.match(text, found.text)


def test_a_quota_that_deletes_at_once_is_found_before_the_start(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    share = 1_000_000 / (disk.f_blocks * disk.f_frsize)
    queue = tmp_path / "store" / "consumequeue" / "T" / "0"
    queue.mkdir(parents=True)
    (tmp_path / "store" / "commitlog").mkdir()
    assert check_quota(broker(tmp_path)) == []
    for size, level in ((700_000, Level.OK), (900_000, Level.WARNING)):
        with (tmp_path / "store" / "commitlog" / f"{0:020d}").open("w") as file:
            file.truncate(size - 100_000)
        with (queue / f"{0:020d}").open("w") as file:
            file.truncate(100_000)
        (tmp_path / "store" / "commitlog" / "next.prepared").write_bytes(bytes(200_000))
        (found,) = check_quota(broker(tmp_path, quotaPercentForDiskPartition=f"{share:.15f}"))
        assert (found.check, found.level) == ("machine.quota", level), found
    assert "deletes its oldest messages" in found.text and "cleanFileForciblyEnable=false" in found.next_step
    (found,) = check_quota(
        broker(tmp_path, quotaPercentForDiskPartition=f"{share:.15f}", cleanFileForciblyEnable="false")
    )
    assert found.level is Level.OK
