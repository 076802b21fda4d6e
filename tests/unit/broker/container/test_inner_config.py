"""The file of a broker in a container: what is its own, and what is the container's."""

from pathlib import Path

import pytest

from broker.container.core.identity import NOT_APPLIED
from broker.container.core.plan import problems_of
from broker.container.inner_config import load_inner
from keelmq.runtime.config import ConfigError
from tests.unit.broker.container.parts import broker_file, container_config


def test_the_network_is_the_containers(tmp_path: Path) -> None:
    path = broker_file(
        tmp_path,
        "a",
        listenPort="10911",
        namesrvAddr="10.9.9.9:9876",
        haListenPort="555",
        maxConnections="7",
        **{"tls.server.mode": "enforcing"},
    )
    container = container_config(tmp_path, namesrvAddr="10.0.0.1:9876", maxConnections=9)
    inner = load_inner(path, container)
    config = inner.config
    assert (config.namesrv_addr, config.max_connections) == ("10.0.0.1:9876", 9)
    assert (config.tls_server_mode, config.bind_address) == ("permissive", "127.0.0.1")
    assert config.ha_listen_port == 0, "that is listenPort + 1"
    text = "\n".join(inner.notes)
    for key in ("namesrvAddr", "haListenPort", "maxConnections", "tls.server.mode"):
        assert f"{key} has no effect" in text
    assert len(inner.notes) == 4


def test_defaults_that_differ(tmp_path: Path) -> None:
    inner = load_inner(broker_file(tmp_path, "a", listenPort=None), container_config(tmp_path))
    assert (inner.config.listen_port, inner.config.http_port) == (6888, -1)
    assert not inner.config.ha_stay_awake
    inner = load_inner(
        broker_file(tmp_path, "a", haStayAwake="true", httpPort="8080"), container_config(tmp_path)
    )
    assert inner.config.ha_stay_awake and inner.config.http_port == 8080


def test_the_name_servers_are_known_when_the_file_is_checked(tmp_path: Path) -> None:
    """A slave without controllers is refused if nothing leads to its master."""
    container = container_config(tmp_path, namesrvAddr="10.0.0.1:9876")
    config_sources = load_inner(
        broker_file(tmp_path, "a", namesrvAddr="10.9.9.9:9876"), container
    ).config_sources
    assert config_sources.overrides["namesrvAddr"] == "10.0.0.1:9876"


def test_the_address_is_the_containers_unless_the_file_has_one(tmp_path: Path) -> None:
    container = container_config(tmp_path, brokerContainerIP="10.0.0.7")
    assert load_inner(broker_file(tmp_path, "a"), container).config.broker_ip1 == "10.0.0.7"
    written = broker_file(tmp_path, "b", brokerIP1="10.0.0.8")
    assert load_inner(written, container).config.broker_ip1 == "10.0.0.8"


def test_ports_and_directories_of_a_plan(tmp_path: Path) -> None:
    path = broker_file(tmp_path, "a", listenPort="10911", fastListenPort=None)
    plan = load_inner(path, container_config(tmp_path)).plan()
    assert plan.ports == {10909: "fastListenPort", 10911: "listenPort", 10912: "haListenPort"}
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "commitlog").symlink_to(tmp_path)
    path = broker_file(tmp_path, "a", storePathRootDir=tmp_path / "link")
    plan = load_inner(path, container_config(tmp_path)).plan()
    assert plan.directories == {"storePathRootDir": str(tmp_path / "elsewhere"), "commitlog": str(tmp_path)}


def test_the_environment_is_the_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEELMQ_brokerName", "everybody")
    assert load_inner(broker_file(tmp_path, "a"), container_config(tmp_path)).config.broker_name == "a"


@pytest.mark.parametrize(
    ("changes", "broker_id"),
    [
        ({}, 0),
        ({"brokerId": "7"}, 0),
        ({"brokerRole": "SYNC_MASTER", "brokerId": "7"}, 0),
        ({"enableControllerMode": "true", "controllerAddr": "c:1", "brokerId": "-1"}, NOT_APPLIED),
        ({"enableControllerMode": "true", "controllerAddr": "c:1", "brokerRole": "SLAVE"}, NOT_APPLIED),
    ],
)
def test_ids(tmp_path: Path, changes: dict[str, str], broker_id: int) -> None:
    inner = load_inner(broker_file(tmp_path, "a", **changes), container_config(tmp_path))
    assert inner.identity == ("c1", "a", broker_id)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"brokerRole": "SLAVE"}, "slave broker id must be > 0, and brokerId is not set"),
        ({"brokerRole": "SLAVE", "brokerId": "0"}, "slave broker id must be > 0, and brokerId is 0"),
        ({"duplicationEnable": "true"}, "Can not add broker to container when duplicationEnable is true"),
        ({"listenPrt": "1"}, "did you mean 'listenPort'"),
        ({"listenPort": "x"}, "listenPort = 'x'"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    path = broker_file(tmp_path, "a", **changes)
    with pytest.raises(ConfigError) as caught:
        load_inner(path, container_config(tmp_path))
    assert why in str(caught.value) and str(path) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, data in (
        (tmp_path / "none", None),
        (tmp_path / "empty", b"# nothing\n"),
        (tmp_path / "bad", b"\xff"),
    ):
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(ConfigError, match="addBroker properties empty"):
            load_inner(path, container_config(tmp_path))


def test_an_epoch_file_is_of_one_broker(tmp_path: Path) -> None:
    """Two that write their epochs into one file would truncate their logs by each other's."""
    container = container_config(tmp_path)
    shared = str(tmp_path / "epochs")
    one, other = (
        load_inner(broker_file(tmp_path, name, storePathEpochFile=shared), container).plan()
        for name in ("a", "b")
    )
    assert problems_of(other, [one], {}) == [
        f"storePathEpochFile {shared} is the same as storePathEpochFile {shared} of c1_a_0 "
        f"({tmp_path / 'a.conf'}), or one is in the other"
    ]
    assert not problems_of(load_inner(broker_file(tmp_path, "b"), container).plan(), [one], {})
