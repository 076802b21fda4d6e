"""Values that are not what their author means: each stops the broker before it writes anything."""

from pathlib import Path

import pytest

from broker.config.broker_config import BrokerConfig
from keelmq.runtime.config import ConfigError, load_config
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig


def load(line: str, tmp_path: Path) -> BrokerConfig:
    path = tmp_path / "broker.conf"
    path.write_text(line + "\n")
    (config,) = load_config(BrokerConfig, path=path, environ={}, overrides={})
    assert isinstance(config, BrokerConfig)
    return config


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("storePathRootDir=/data/store # the fast disk", "a comment needs a line of its own"),
        ("listenPort=10911 # default", "a comment needs a line of its own"),
        ('brokerName="broker-a"', "leave them out"),
        ("namesrvAddr='n1:9876;n2:9876'", "leave them out"),
        ("storePathRootDir=$HOME/store", "variables are not replaced: write the path"),
        ("storePathRootDir=${user.home}/store", "variables are not replaced: write the value"),
        ("brokerIP1=${HOST_IP}", "variables are not replaced: write the value"),
        ("listenPort=${PORT}", "variables are not replaced: write the value"),
        ('brokerName=broker-{{ env "INDEX" }}', "variables are not replaced: write the value"),
        ("storePathRootDir=D:/rocketmq/store", "this is a path of Windows: write one of this machine"),
        (r"storePathRootDir=d:\\rocketmq\\store", "this is a path of Windows: write one of this machine"),
        ("enableDLegerCommitLog=false # off", "a comment needs a line of its own"),
        ('useTLS="false"', "leave them out"),
        ("brokerIP1=10.0.0.7:10911", "its port is listenPort"),
        ("brokerIP2=[fd00::7]:10912", "its port is listenPort, or haListenPort"),
        ("brokerIP1=0.0.0.0", "nothing can connect to it"),
        ("brokerIP1=::", "nothing can connect to it"),
    ],
)
def test_a_slip_is_named_with_its_line(line: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load(line, tmp_path)
    (text,) = str(refused.value).splitlines()
    assert says in text and text.startswith(line.partition("=")[0]) and "broker.conf line 1" in text


def test_what_looks_like_one_and_is_none(tmp_path: Path) -> None:
    assert load("brokerIP1=fd00::7", tmp_path).broker_ip1 == "fd00::7"
    assert load("storePathRootDir=/data/a#b", tmp_path).store_path_root_dir == Path("/data/a#b")
    assert load("storePathRootDir=/data/d:/store", tmp_path).store_path_root_dir == Path("/data/d:/store")
    assert load("storePathRootDir=~/store", tmp_path).store_path_root_dir == Path.home() / "store"


@pytest.mark.parametrize(
    "line", ['controllerRaftSecretFile="s3cret"', 'socksProxyConfig={"a":{"password":"s3cret"}}']
)
def test_what_may_be_a_secret_is_not_shown(line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError) as refused:
        load_config(NamesrvConfig, ControllerConfig, path=path, environ={}, overrides={})
    assert "s3cret" not in str(refused.value) and line.partition("=")[0] in str(refused.value)
