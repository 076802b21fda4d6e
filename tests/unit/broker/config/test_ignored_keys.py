"""A broker.conf of RocketMQ's: what may stay in it, what stops the broker, and what was only mistyped."""

import logging
from pathlib import Path

import pytest

from broker.app.program import run
from broker.config.broker_config import BrokerConfig
from broker.config.ignored_keys import IGNORED, ONE_VALUE, UNSUPPORTED, look_up
from keelmq.runtime.config import Config, ConfigError, load_config, passed_over, with_settings

CONF = """\
# as it has run for years
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerRole=ASYNC_MASTER
sendMessageThreadPoolNums=16
pullThreadPoolQueueCapacity=100000
waitTimeMillsInSendQueue=500
flushCommitLogLeastPages=4
flushConsumeQueueThoroughInterval=60000
transientStorePoolEnable=true
warmMapedFileEnable=true
storePathConsumeQueue=/data/consumequeue
storeCheckpoint=/data/checkpoint
aclEnable=false
enableDLegerCommitLog=FALSE
clusterTopicEnable=true
"""


def load(text: str, tmp_path: Path) -> BrokerConfig:
    path = tmp_path / "broker.conf"
    path.write_text(text)
    (config,) = load_config(BrokerConfig, path=path, environ={}, overrides={})
    assert isinstance(config, BrokerConfig)
    return config


def test_what_changes_nothing_may_stay_and_is_named(tmp_path: Path) -> None:
    assert load(CONF, tmp_path).broker_name == "broker-a"
    found = passed_over(BrokerConfig, path=tmp_path / "broker.conf", environ={}, overrides={})
    assert found["one event loop does all the work"] == [
        "sendMessageThreadPoolNums", "pullThreadPoolQueueCapacity", "waitTimeMillsInSendQueue"
    ]  # fmt: skip
    assert sum(map(len, found.values())) == 11
    assert all(why for why in found)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("readOnlyCommitLogStorePaths=a", "one directory of the CommitLog"),
        ("storeType=defaultRocksDB", "no RocksDB"),
        ("enableDLegerCommitLog=true", "enableControllerMode is the way"),
        ("readOnlyCommitLogStorePaths=/a", "one directory of the CommitLog"),
        ("flushComitLogLeastPages=4", "unknown key"),
        ("sendMessageThreadPool=4", "unknown key"),
        ("aclEnabled=true", "unknown key"),
    ],
)
def test_what_asks_for_more_than_there_is_stops_the_broker(line: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        load(line + "\n", tmp_path)


def test_it_cannot_be_set_while_the_broker_runs() -> None:
    config = BrokerConfig()
    for key in ("sendMessageThreadPoolNums", "useTLS"):
        with pytest.raises(ConfigError, match=f"{key} has no effect here: "):
            with_settings(config, {key: "1"}, "the request")


def test_a_key_is_ours_or_theirs() -> None:
    """Else a setting that we have would be passed over."""
    ours = {field.alias or name for name, field in BrokerConfig.model_fields.items()}
    assert [key for key in sorted(ours) if look_up(key, "x") is not None] == []
    assert not ONE_VALUE.keys() & UNSUPPORTED.keys()
    assert all(why.strip() and pattern for pattern, why in IGNORED)


def test_other_programs_know_none_of_them() -> None:
    class Other(Config):
        listen_port: int = 1

    with pytest.raises(ConfigError, match="unknown key 'sendMessageThreadPoolNums'"):
        load_config(Other, path=None, environ={}, overrides={"sendMessageThreadPoolNums": "1"})


def test_the_log_names_what_was_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    afile = tmp_path / "afile"
    afile.touch()
    more = {"storePathRootDir": afile, "flushCommitLogTimed": "true", "transferMsgByHeap": "false"}
    arguments = [part for key, value in more.items() for part in ("--set", f"{key}={value}")]
    with caplog.at_level(logging.INFO, "broker.app.program"):
        assert run(arguments) == 1  # there is no place for a store
    told = [record.getMessage() for record in caplog.records if "without effect" in record.getMessage()]
    assert told == [
        "without effect here: flushCommitLogTimed (each flushIntervalCommitLog everything goes to the disk)",
        "without effect here: transferMsgByHeap (there is one way in which files are written)",
    ]
