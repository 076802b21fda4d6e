"""The doctor reads the file of a container, and with it those of its brokers."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.doctor.files import Kind, kind_of
from cli.keelmq import app
from tests.support.ports import free_ports


@pytest.fixture
def ports() -> list[int]:
    return free_ports(3)


def written(path: Path, **keys: object) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    return path


def broker(directory: Path, name: str, port: int, **more: object) -> Path:
    keys = {"brokerClusterName": "C", "brokerName": name, "listenPort": port, "fastListenPort": -1}
    return written(
        directory / f"{name}.conf", **keys | {"storePathRootDir": directory / f"store-{name}"} | more
    )


def container(directory: Path, port: int, *files: Path, **more: object) -> Path:
    keys: dict[str, object] = {
        "bindAddress": "127.0.0.1",
        "listenPort": port,
        "httpPort": -1,
        "namesrvAddr": "127.0.0.1:9876",
        "brokerConfigPaths": ":".join(map(str, files)),
        "containerStatePath": directory / "state.json",
    }
    return written(directory / "container.conf", **keys | more)


def doctor(*paths: Path) -> Result:
    flags = [flag for path in paths for flag in ("-c", str(path))]
    result = CliRunner().invoke(app, ["doctor", "--offline", *flags])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def lines(result: Result, *words: str) -> list[str]:
    return [line for line in result.stdout.splitlines() if all(word in line for word in words)]


def test_a_container_s_file_is_known_by_its_keys() -> None:
    assert kind_of({"listenPort": "10811", "brokerConfigPaths": "/a"}) is Kind.CONTAINER
    assert kind_of({"namesrvAddr": "a:1", "brokerName": "b"}) is Kind.BROKER


def test_a_good_container(tmp_path: Path, ports: list[int]) -> None:
    a, b = (broker(tmp_path, name, port) for name, port in zip("ab", ports, strict=False))
    result = doctor(container(tmp_path, ports[2], a, b))
    assert result.exit_code == 0, result.output
    assert lines(result, "ok", "loads as mqbrokercontainer: 2 brokers in brokerConfigPaths")
    assert lines(result, "ok", "container.conf: a.conf: broker C_a_0, ports")
    assert lines(result, "ok", "container.conf: a.conf", "storePathRootDir")


def test_brokers_that_cannot_be_in_one_container(tmp_path: Path, ports: list[int]) -> None:
    a = broker(tmp_path, "a", ports[0])
    b = broker(tmp_path, "b", ports[0], storePathRootDir=tmp_path / "store-a", haListenPort=5)
    bad = broker(tmp_path, "bad", ports[1], nosuchKey=1)
    result = doctor(container(tmp_path, ports[2], a, b, bad, tmp_path / "missing.conf"))
    assert result.exit_code == 1
    assert lines(result, "FAILED", "b.conf", f"port {ports[0]} (listenPort) is the listenPort of C_a_0")
    assert lines(result, "FAILED", "b.conf", "is the same as")
    assert lines(result, "warning", "b.conf", "haListenPort has no effect")
    assert lines(result, "FAILED", "bad.conf", "nosuchKey")
    assert lines(result, "FAILED", "missing.conf", "cannot read")


def test_a_broker_with_a_port_of_its_container(tmp_path: Path, ports: list[int]) -> None:
    a = broker(tmp_path, "a", ports[2] - 2)
    result = doctor(container(tmp_path, ports[2], a))
    assert result.exit_code == 1
    assert lines(result, "FAILED", f"port {ports[2] - 2} (listenPort) is the container's own (fast)")


def test_a_broker_of_a_container_is_not_one_of_its_own(tmp_path: Path, ports: list[int]) -> None:
    """Both files are given: its ports would be taken twice otherwise."""
    a = broker(tmp_path, "a", ports[0])
    result = doctor(container(tmp_path, ports[2], a), a)
    assert not lines(result, "the same port"), result.stdout


def state(directory: Path, added: dict[Path, int], *removed: Path) -> None:
    kept = {"version": 1, "added": {str(path): worker for path, worker in added.items()}}
    (directory / "state.json").write_text(json.dumps({**kept, "removed": [str(path) for path in removed]}))


def test_brokers_that_requests_added_are_checked(tmp_path: Path, ports: list[int]) -> None:
    a, b = (broker(tmp_path, name, port) for name, port in zip("ab", ports, strict=False))
    state(tmp_path, {b: 0})
    result = doctor(container(tmp_path, ports[2], a))
    assert result.exit_code == 0, result.output
    assert lines(result, "ok", "container.conf: b.conf: broker C_b_0, ports")


def test_what_a_request_added_and_is_gone_or_clashes(tmp_path: Path, ports: list[int]) -> None:
    a = broker(tmp_path, "a", ports[0])
    twin = written(tmp_path / "twin.conf", **dict(line.split("=") for line in a.read_text().split()))
    gone = tmp_path / "gone.conf"
    state(tmp_path, {twin: 0, gone: 3})
    result = doctor(container(tmp_path, ports[2], a))
    assert result.exit_code == 1
    (line,) = lines(result, "FAILED", "gone.conf", "cannot read")
    assert f"mqadmin removeBroker -c 127.0.0.1:{ports[2]} -b any:{gone}:-1" in line
    assert lines(result, "FAILED", "twin.conf", "C_a_0 has already been added")
    assert lines(result, "FAILED", "twin.conf", f"port {ports[0]} (listenPort) is the listenPort of C_a_0")
    assert lines(result, "FAILED", "twin.conf", "is the same as")
    assert lines(result, "warning", "gone.conf was in worker 3, and containerProcesses is 1")


def test_a_broker_that_a_request_removed(tmp_path: Path, ports: list[int]) -> None:
    a, b = (broker(tmp_path, name, port) for name, port in zip("ab", ports, strict=False))
    state(tmp_path, {}, b)
    result = doctor(container(tmp_path, ports[2], a, b))
    assert result.exit_code == 0, result.output
    assert lines(result, "warning", f"mqadmin addBroker -c 127.0.0.1:{ports[2]} -b {b}")
    assert not lines(result, "broker C_b_0")


def test_what_requests_did_does_not_count_without_persist_brokers(tmp_path: Path, ports: list[int]) -> None:
    a, b = (broker(tmp_path, name, port) for name, port in zip("ab", ports, strict=False))
    state(tmp_path, {b: 0}, a)
    result = doctor(container(tmp_path, ports[2], a, persistBrokers="false"))
    assert result.exit_code == 0, result.output
    assert lines(result, "broker C_a_0") and not lines(result, "broker C_b_0")


def test_a_store_that_the_system_refuses_to_look_at(tmp_path: Path, ports: list[int]) -> None:
    a = broker(tmp_path, "a", ports[0], storePathRootDir=tmp_path / ("x" * 300))
    result = doctor(container(tmp_path, ports[2], a))
    assert result.exit_code == 1 and lines(result, "FAILED", "a.conf", "File name too long")


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"version": 9}', b"\xff"])
def test_a_damaged_membership_file(tmp_path: Path, ports: list[int], text: bytes) -> None:
    (tmp_path / "state.json").write_bytes(text)
    result = doctor(container(tmp_path, ports[2], broker(tmp_path, "a", ports[0])))
    assert result.exit_code == 1
    (line,) = lines(result, "FAILED", "containerStatePath", "the container would not start")
    assert f"cp {tmp_path}/state.json.bak {tmp_path}/state.json" in line


def test_two_masters_of_one_name_on_two_machines(tmp_path: Path, ports: list[int]) -> None:
    a, other = broker(tmp_path, "a", ports[0]), tmp_path / "other"
    other.mkdir()
    b = broker(other, "a", ports[1]).rename(other / "b.conf")
    result = doctor(container(tmp_path, ports[2], a), b)
    assert result.exit_code == 1
    assert lines(result, "FAILED", "C:a: 2 masters have this brokerName: container.conf: a.conf, b.conf") or (
        lines(result, "FAILED", "C:a: 2 masters have this brokerName: b.conf, container.conf: a.conf")
    )
