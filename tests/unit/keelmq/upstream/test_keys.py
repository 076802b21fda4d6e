"""Configuration files of RocketMQ: what may stay in them, what stops a program, and what is only mistyped."""

import logging
from collections.abc import Collection
from pathlib import Path

import pytest
from typer.main import get_command

from broker.app.program import run
from broker.config.broker_config import BrokerConfig
from broker.container.config import ContainerConfig
from cli.mqadmin.main import app as mqadmin
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.runtime.config import Config, ConfigError, load_config, with_settings, without_effect
from keelmq.upstream.keys import PROGRAMS, names, verdicts
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig
from proxy.server.config import ProxyConfig

MODELS: dict[str, tuple[type[Config], ...]] = {
    "broker": (BrokerConfig,),
    "name server": (NamesrvConfig,),
    "controller": (NamesrvConfig, ControllerConfig),
    "container": (ContainerConfig,),
    "proxy": (ProxyConfig,),
}
NEEDED = {
    "controllerDLegerGroup": "group1",
    "controllerDLegerPeers": "n0-127.0.0.1:9878",
    "controllerDLegerSelfId": "n0",
}
EVERY_NAME = sorted({key for keys in (*names().keys.values(), *names().older_keys.values()) for key in keys})
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


def keys_of(*models: type[Config]) -> set[str]:
    return {field.alias or name for model in models for name, field in model.model_fields.items()}


def load(text: str, tmp_path: Path, program: str = "broker") -> list[str]:
    """Loads a file as the program does; returns what it would log about it."""
    path = tmp_path / "a.conf"
    path.write_text(text)
    needed = NEEDED if program == "controller" else {}
    load_config(*MODELS[program], path=path, environ={}, overrides=needed)
    return without_effect(*MODELS[program], path=path, environ={}, overrides=needed)


def test_what_changes_nothing_may_stay_and_is_named(tmp_path: Path) -> None:
    lines = load(CONF, tmp_path)
    pools = "sendMessageThreadPoolNums, pullThreadPoolQueueCapacity, waitTimeMillsInSendQueue"
    assert f"without effect here: {pools} (one event loop does the work of the thread pools)" in lines
    assert sum(line.count(",") + 1 for line in lines) == 11


@pytest.mark.parametrize("program", MODELS)
def test_no_name_of_rocketmqs_is_unknown_to_any_program(program: str, tmp_path: Path) -> None:
    """A key that is none of the program's is only named, whatever its value is: RocketMQ ignores it."""
    ours = keys_of(*MODELS[program])
    read = names().keys_of({name for model in MODELS[program] for name in model.UPSTREAM})
    others = [key for key in EVERY_NAME if key not in ours and key not in read]
    named = " ".join(load("".join(f"{key}=whatever\n" for key in others), tmp_path, program))
    assert [key for key in others if key not in named] == []
    defaults = {key: row.accepted[0] for key, row in verdicts().missing.items()}
    theirs = [key for key in sorted(read) if key not in ours]
    named = " ".join(load("".join(f"{key}={defaults.get(key, '1')}\n" for key in theirs), tmp_path, program))
    assert [key for key in theirs if key not in named] == []
    assert "it is not a setting of this program" not in named, "a key without a verdict"


@pytest.mark.parametrize("key", sorted(verdicts().missing))
def test_a_feature_that_is_missing_stops_the_program_that_would_need_it(key: str, tmp_path: Path) -> None:
    missing = verdicts().missing[key]
    program = next(
        name for name, models in MODELS.items() if _reads(models, key) and key not in keys_of(*models)
    )
    for value in missing.accepted:
        assert missing.why in " ".join(load(f"{key}={value.upper()}\n", tmp_path, program))
    with pytest.raises(ConfigError, match=r"a\.conf line 1: ") as refused:
        load(f"{key}=another\n", tmp_path, program)
    assert f"{missing.why}; {missing.instead}" in str(refused.value)


def _reads(models: Collection[type[Config]], key: str) -> bool:
    return bool(names().classes_of(key) & {each for model in models for each in model.UPSTREAM})


def test_each_verdict_is_about_a_name_of_rocketmqs_that_no_program_has() -> None:
    every, twice = set(EVERY_NAME), [key for row in verdicts().no_effect for key in row.keys]
    assert sorted({*twice, *verdicts().missing} - every) == []
    assert sorted({key for key in twice if twice.count(key) > 1}) == []
    assert sorted(set(twice) & verdicts().missing.keys()) == []
    for key in verdicts().missing:
        readers = [models for models in MODELS.values() if _reads(models, key)]
        assert any(key not in keys_of(*models) for models in readers), f"{key}: all programs have it"
    assert {name for name in names().keys if name not in PROGRAMS} == {
        "NettyServerConfig",
        "NettyClientConfig",
    }


def test_a_key_of_both_has_rocketmqs_default_or_a_reason() -> None:
    ours: dict[str, set[str]] = {}
    for models in MODELS.values():
        for model in models:
            for name, field in model.model_fields.items():
                default = "" if field.default is None else str(field.default)
                ours.setdefault(field.alias or name, set()).add(default)
    theirs = names().defaults
    other = {key for key in theirs if theirs[key] not in {_as_java(each) for each in ours[key]}}
    assert other == verdicts().other_default.keys()
    assert len(theirs) > 90


def test_every_code_and_command_has_rocketmqs_name() -> None:
    """Requests that are not served are refused with their reason, commands as well."""
    assert {each.name: each.value for each in RequestCode} | names().request_codes == {
        each.name: each.value for each in RequestCode
    }
    never_sent = {name for name, code in names().response_codes.items() if code < 0}
    ours = {each.name: each.value for each in ResponseCode}
    other = {name for name, code in names().response_codes.items() if ours.get(name) != code}
    assert other <= never_sent
    assert set(names().commands) <= set(get_command(mqadmin).commands)  # type: ignore[attr-defined]


def _as_java(default: str) -> str:
    return default.lower() if default in {"True", "False"} else default


@pytest.mark.parametrize("line", ["flushComitLogLeastPages=4", "sendMessageThreadPool=4", "aclEnabled=true"])
@pytest.mark.parametrize("program", MODELS)
def test_only_a_name_that_no_release_has_is_unknown(line: str, program: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        load(line + "\n", tmp_path, program)


def test_the_suggestion_for_a_typo_may_be_a_name_of_rocketmqs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'flushCommitLogLeastPages'\?"):
        load("flushComitLogLeastPages=4\n", tmp_path)


def test_of_two_names_that_are_as_close_the_first_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'brokerIP1'\?"):
        load("brokerIp=127.0.0.1\n", tmp_path)


def test_keys_of_a_controller_that_is_off_have_no_effect(tmp_path: Path) -> None:
    text = (
        "".join(f"{key}={value}\n" for key, value in NEEDED.items()) + "controllerRaftPeers=n0-127.0.0.1:1\n"
    )
    (line,) = load(text, tmp_path, "name server")
    assert line.endswith("(the controller is off; enableControllerInNamesrv=true turns it on)")
    assert "controllerRaftPeers" in line


def test_a_jraft_controller_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="no jRaft controller; name the controllers in controllerDLegerPeers"
    ):
        load("controllerType=jRaft\njRaftGroupId=a\n", tmp_path, "controller")


def test_it_cannot_be_set_while_the_broker_runs() -> None:
    config = BrokerConfig()
    for key in ("sendMessageThreadPoolNums", "useTLS"):
        with pytest.raises(ConfigError, match=f"{key} has no effect here: "):
            with_settings(config, {key: "1"}, "the request")


def test_a_program_that_reads_no_file_of_rocketmqs_names_their_keys() -> None:
    class Other(Config):
        listen_port: int = 1

    overrides = {"sendMessageThreadPoolNums": "1"}
    load_config(Other, path=None, environ={}, overrides=overrides)
    (line,) = without_effect(Other, path=None, environ={}, overrides=overrides)
    assert line == "without effect here: sendMessageThreadPoolNums (only brokers read it)"


def test_the_log_names_what_has_no_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    afile = tmp_path / "afile"
    afile.touch()
    more = {"storePathRootDir": afile, "flushCommitLogTimed": "true", "transferMsgByHeap": "false"}
    arguments = [part for key, value in more.items() for part in ("--set", f"{key}={value}")]
    with caplog.at_level(logging.INFO, "broker.app.program"):
        assert run(arguments) == 1  # there is no place for a store
    told = [record.getMessage() for record in caplog.records if "without effect" in record.getMessage()]
    assert told == [
        "without effect here: flushCommitLogTimed "
        "(every flushIntervalCommitLog everything is written to disk)",
        "without effect here: transferMsgByHeap (the system's buffer sizes are used)",
    ]


def test_the_printed_settings_name_what_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-p", "--set", "flushCommitLogTimed=true"]) == 0
    assert capsys.readouterr().out.startswith("# without effect here: flushCommitLogTimed (every ")
