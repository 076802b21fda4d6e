"""The doctor reads the file of a container, and with it those of its brokers."""

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
    assert lines(result, "FAILED", "b.conf", "is the same directory as")
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
