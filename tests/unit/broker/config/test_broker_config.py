"""BrokerConfig: RocketMQ's keys, our refusals, the promise in the banner."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from broker.config.broker_config import BrokerConfig
from broker.config.detected_address import detect_address
from keelmq.runtime.config import ConfigError, load_config, to_properties

CONTROLLED = {"enableControllerMode": "true", "controllerAddr": "a:1;b:2"}


def load(overrides: dict[str, str], path: Path | None = None) -> BrokerConfig:
    (config,) = load_config(BrokerConfig, path=path, environ={}, overrides=overrides)
    assert isinstance(config, BrokerConfig)
    return config


def test_the_stock_sample_file_starts_a_lone_master(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\ndeleteWhen = 04\n"
        "fileReservedTime = 48\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n"
    )
    config = load({}, path)
    assert (config.broker_name, config.enable_controller_mode) == ("broker-a", False)
    assert (config.delete_when, config.file_reserved_time) == ("04", 48)


def test_wire_spelling_of_the_addresses() -> None:
    config = load({"namesrvAddr": "a:9876;b:9876", "brokerIP1": "10.0.0.1", "brokerIP2": "10.0.0.2"})
    assert config.name_servers == ("a:9876", "b:9876")
    assert (config.broker_ip1, config.broker_ip2) == ("10.0.0.1", "10.0.0.2")
    assert "brokerIP1=10.0.0.1\n" in to_properties(config)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"brokerNme": "x"}, "did you mean 'brokerName'"),
        ({"listenPort": "70000"}, "listenPort"),
        ({"listenPort": "many"}, "listenPort"),
        ({"enableControllerMode": "true"}, "needs controllerAddr"),
        ({"brokerRole": "SLAVE"}, "needs a brokerId above 0, not 0"),
        ({"brokerId": "1"}, "brokerId 1 is a slave's"),
        ({"brokerId": "1", "brokerRole": "SYNC_MASTER"}, "brokerId 1 is a slave's"),
        ({"brokerId": "1", "brokerRole": "SLAVE"}, "namesrvAddr or haMasterAddress"),
        ({"brokerId": "1", "brokerRole": "SLAVE", "haMasterAddress": "a"}, "not host:port"),
        ({"inSyncReplicas": "2"}, "totalReplicas 1 >= inSyncReplicas 2"),
        ({"totalReplicas": "2", "minInSyncReplicas": "2"}, "minInSyncReplicas 2 is not true"),
        ({"brokerRole": "ASYNC_MASTER", "listenPort": "65535"}, "haListenPort would be 65536"),
        ({**CONTROLLED, "haMasterAddress": "a:1"}, "asks the controllers"),
        ({**CONTROLLED, "enableAutoInSyncReplicas": "true"}, "the SyncStateSet decide"),
        ({"controllerAddr": "somewhere"}, "not host:port"),
        ({**CONTROLLED, "listenPort": "65535"}, "haListenPort would be 65536"),
        ({**CONTROLLED, "brokerHeartbeatInterval": "2000"}, "controllerHeartBeatTimeoutMills must be"),
        ({"checkSyncStateSetPeriod": "20000"}, "below haMaxTimeSlaveNotCatchup"),
        ({"haSendHeartbeatInterval": "30000"}, "below haHousekeepingInterval"),
        ({"mappedFileSizeConsumeQueue": "19"}, "greater than or equal to 20"),
        ({"namesrvAddr": "a:99999"}, "'a:99999' is not host:port"),
        ({"namesrvAddr": "a:0"}, "'a:0' is not host:port"),
        ({"namesrvAddr": ":9876"}, "':9876' is not host:port"),
        ({"brokerName": "a/b"}, "brokerName = 'a/b' in --set brokerName: letters, digits"),
        ({"brokerClusterName": "a b"}, "brokerClusterName = 'a b' in --set brokerClusterName: letters"),
        ({"deleteWhen": "ab"}, "'ab' has an hour that is not 00 to 23"),
        ({"deleteWhen": "24"}, "'24' has an hour that is not 00 to 23"),
        ({"storePathRootDir": "/a", "storePathCommitLog": "/b"}, "make that a link to /b"),
        ({"maxCommitLogBytes": "2000000000"}, "less than two files"),
        ({"flushDiskType": "NO_FLUSH"}, "flushDiskType"),
    ],
)
def test_what_cannot_work_is_refused_with_its_key(overrides: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(overrides)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({}, "stand-alone"),
        (CONTROLLED, "asynchronous"),
        ({**CONTROLLED, "allAckInSyncStateSet": "true"}, "may be the master alone"),
        ({**CONTROLLED, "allAckInSyncStateSet": "true", "minInSyncReplicas": "2"}, "2 or more replicas"),
        ({**CONTROLLED, "inSyncReplicas": "2"}, "2 replicas"),
    ],
)
def test_the_banner_says_what_a_dead_broker_costs(overrides: dict[str, str], says: str) -> None:
    assert says in load(overrides).promise()


def test_defaults_of_a_controlled_broker() -> None:
    config = load({**CONTROLLED, "brokerId": "-1"})
    assert config.controllers == ("a:1", "b:2")
    assert not config.waits_for_replicas
    assert load({**CONTROLLED, "allAckInSyncStateSet": "true"}).waits_for_replicas


def test_values_that_are_taken_as_rocketmq_takes_them() -> None:
    assert load({"mappedFileSizeConsumeQueue": "30"}).mapped_file_size_consume_queue == 40
    assert load({"mappedFileSizeConsumeQueue": "40"}).mapped_file_size_consume_queue == 40
    paths = {"storePathRootDir": "/a/store/", "storePathCommitLog": "/a/store/commitlog"}
    assert load(paths).store_path_commit_log == Path("/a/store/commitlog")
    assert load({"brokerName": "broker-a.example_1"}).broker_name == "broker-a.example_1"


def test_a_bound_address_is_the_announced_one() -> None:
    assert detect_address("127.0.0.1", ("10.0.0.1:9876",)) == "127.0.0.1"
    assert detect_address("0.0.0.0", ("127.0.0.1:9876",)) == "127.0.0.1"


@pytest.mark.parametrize(
    ("key", "text", "refused"), [("brokerPermission", "4", "9"), ("timerPrecisionMs", "100", "5")]
)
def test_a_number_of_a_few_is_read_from_the_text_of_a_file(key: str, text: str, refused: str) -> None:
    """Seen: timerPrecisionMs=100 in a file was refused, "Input should be 100 or 1000"."""
    config = BrokerConfig.model_validate({key: text})
    assert config.model_dump(by_alias=True)[key] == int(text)
    with pytest.raises(ValidationError, match=key):
        BrokerConfig.model_validate({key: refused})
