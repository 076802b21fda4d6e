"""Each relation between two keys that a description states is checked: at the start, by `keelmq doctor`, and
at run time if the keys can change then. A description that names another key, or a bound, must be in one of
the tables here.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from broker.app.broker import Broker
from broker.config.broker_config import AT_RUN_TIME, BrokerConfig
from cli.doctor.rules import properties, rules
from keelmq.health.findings import Level
from keelmq.health.group_settings import MUST_BE_EQUAL, SHOULD_BE_EQUAL, group_rules
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Failed, Ok
from keelmq.remoting.operations.broker_admin import UPDATE_BROKER_CONFIG
from keelmq.runtime.config import ConfigError, load_config
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig
from tests.unit.broker.app.test_broker_app import config
from tests.unit.cli.doctor.test_doctor_files import BROKER, Files, bad, one


class Rule(NamedTuple):
    """settings break it. It is refused, or warned of if is_refused is False; `says` is a part of the text."""

    key: str
    settings: dict[str, str]
    says: str
    is_refused: bool = True


PLAIN = {"enableControllerMode": "false", "controllerAddr": ""}
RULES = [
    Rule(
        "haMaxTimeSlaveNotCatchup",
        {"allAckInSyncStateSet": "true", "haMaxTimeSlaveNotCatchup": "3000"},
        "is not below slaveTimeout 3000",
        is_refused=False,
    ),
    Rule(
        "haMaxTimeSlaveNotCatchup",
        {"inSyncReplicas": "2", "slaveTimeout": "1500"},
        "haMaxTimeSlaveNotCatchup 2000 is not below slaveTimeout 1500",
        is_refused=False,
    ),
    Rule(
        "haSendHeartbeatInterval",
        {"haSendHeartbeatInterval": "20000"},
        "must be below haHousekeepingInterval",
    ),
    Rule("checkSyncStateSetPeriod", {"haMaxTimeSlaveNotCatchup": "400"}, "must be below haMaxTime"),
    Rule(
        "controllerHeartBeatTimeoutMills",
        {"controllerHeartBeatTimeoutMills": "2999"},
        "at least 3 x brokerHeartbeatInterval",
    ),
    Rule(
        "controllerHeartBeatTimeoutMills",
        {"controllerHeartBeatTimeoutMills": "1000", "brokerHeartbeatInterval": "200"},
        "controllerHeartBeatTimeoutMills 1000 is below 1111",
        is_refused=False,
    ),
    Rule("maxCommitLogBytes", {"maxCommitLogBytes": "8000"}, "less than two files"),
    Rule(
        "quotaPercentForDiskPartition",
        {"replicasPerDiskPartition": "2", "quotaPercentForDiskPartition": "0.5"},
        "both set the quota",
    ),
    Rule(
        "forceVerifyPropCRC", {"forceVerifyPropCRC": "true", "checkCRCOnRecover": "false"}, "no effect", False
    ),
    Rule("totalReplicas", {**PLAIN, "brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}, "is not true"),
    Rule("brokerId", {**PLAIN, "brokerRole": "SLAVE", "brokerId": "0"}, "needs a brokerId above 0"),
    Rule("haListenPort", {"listenPort": "65535"}, "haListenPort would be 65536"),
    Rule("enableAutoInSyncReplicas", {"enableAutoInSyncReplicas": "true"}, "the SyncStateSet decide"),
]
EQUAL = {"mappedFileSizeCommitLog", "messageDelayLevel", "timerPrecisionMs"}
"""Their descriptions say: equal on all replicas."""
EXPLAINED = {
    "timerMaxDelaySec": "longer timers are rolled, so any value fits",
    **dict.fromkeys(
        ("aclEnable", "auditPath", "usersPath", "tls.config.file", "backupPath", "isolateLogEnable"),
        "says where a file is",
    ),
    **dict.fromkeys(
        (
            "autoCreateSubscriptionGroupMax", "autoCreateTopicMax", "maxConnections", "telemetryBytesMax",
            "minInSyncReplicas", "startAcceptSendRequestTimeStamp", "defaultInvisibleTimeMills",
        ),
        "says what happens at the bound",
    ),
    **dict.fromkeys(
        (
            "brokerIP2", "fastListenPort", "httpBindAddress", "httpPort", "httpTlsMode",
            "listeners", "advertisedListeners", "listenersTlsMode", "listenersAuthenticationEnabled",
            "listenersAuthorizationEnabled",
            "metricsExporterType", "metricsPromExporterHost", "haAuthenticationRequired", "haPlainMaster",
            "memberCertificateNames",
            "memberAuthenticationRequired", "tls.client.authServer", "tls.client.trustCertPath",
            "tls.test.mode.enable", "statefulAuthenticationCacheExpiredSecond", "shortPollingTimeMills",
            "replicasPerDiskPartition", "brokerRole", "haFlowControlEnable", "needWaitForService",
            "waitSecondsForService", "controllerConnectionProbeEnable", "inSyncReplicas",
            "enableSplitRegistration",
        ),
        "says where a default comes from, or which key has the value",
    ),
    **dict.fromkeys(
        (
            "authenticationEnabled", "configBlackList", "httpAllowedHosts", "frameTimeoutMillis",
            "msgTraceTopicName", "tls.client.verifyHostName", "innerClientAuthenticationCredentials",
        ),
        "a rule for requests, or for people",
    ),
    "tls.server.authClient": "test_tls_files.py and its own validator",
    "maxHaTransferByteInSecond": "depends on what producers write",
    "brokerElectionPriority": "an order",
    "controllerHungMasterDetectionEnable": "names a key of the brokers",
    "controllerGraceMs": "test_a_grace_that_is_too_short",
    "controllerHeartBeatTimeoutDefaultMs": "names no other key",
    "enableProxy": "says at which port",
    **dict.fromkeys(
        (
            "grpcClientConsumerMinLongPollingTimeoutMillis", "grpcClientConsumerMaxLongPollingTimeoutMillis",
            "maxDelayTimeMills", "maxMessageGroupSize",
        ),
        "a bound of requests of gRPC",
    ),
}  # fmt: skip
BOUND = re.compile(r"\b(below|above|at least|at most|relies|rely|must|shorter|longer|equal|not be)\b")


def stating() -> Iterator[str]:
    """The keys whose description names another key, or a bound."""
    for model in (BrokerConfig, NamesrvConfig, ControllerConfig):
        fields = {field.alias: field.description or "" for field in model.model_fields.values()}
        for key, text in fields.items():
            words = set(re.findall(r"[a-z][A-Za-z0-9.]+", text)) - {key}
            if key is not None and (words & fields.keys() or BOUND.search(text)):
                yield key


def test_each_stated_relation_is_a_rule_or_explained() -> None:
    known = {rule.key for rule in RULES} | EQUAL | EXPLAINED.keys()
    assert sorted(set(stating()) - known) == [], "new: check it, and put it into a table here"


def loaded(settings: dict[str, str]) -> BrokerConfig:
    (found,) = load_config(BrokerConfig, path=None, environ={}, overrides={**BROKER, **settings})
    assert isinstance(found, BrokerConfig)
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.key}: {rule.says}")
def test_the_start_tells(rule: Rule) -> None:
    if rule.is_refused:
        with pytest.raises(ConfigError, match=re.escape(rule.says)):
            loaded(rule.settings)
    else:
        assert rule.says in "\n".join(loaded(rule.settings).warnings())
        assert rule.says not in "\n".join(loaded({}).warnings())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.key}: {rule.says}")
def test_the_doctor_tells(rule: Rule, tmp_path: Path) -> None:
    file, found = Files(tmp_path).load("broker.conf", BROKER, rule.settings)
    level = Level.FAILED if rule.is_refused else Level.WARNING
    assert (file is None) is rule.is_refused
    assert rule.says in one(found, "config.loads", level).text


async def test_a_running_broker_tells(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Refused, and nothing has changed; or in force, and the answer and the log warn."""
    at_run_time = [rule for rule in RULES if rule.settings.keys() <= AT_RUN_TIME]
    assert len(at_run_time) >= 7
    async with Broker(config(tmp_path, enableControllerMode=True, controllerAddr="127.0.0.1:1")) as broker:
        client, before, defaults = RemotingClient(), dict(broker.config), properties(BrokerConfig())
        for rule in at_run_time:
            body = "".join(f"{key}={value}\n" for key, value in rule.settings.items()).encode()
            outcome = await client.call(broker.address, UPDATE_BROKER_CONFIG, Empty(), body)
            if rule.is_refused:
                assert isinstance(outcome, Failed) and rule.says in outcome.remark
                assert dict(broker.config) == before
                continue
            assert isinstance(outcome, Ok) and f"warning: {rule.key}" in (outcome.remark or ""), rule
            assert rule.says in (outcome.remark or "") and rule.says in caplog.text
            back = "".join(f"{key}={defaults[key]}\n" for key in rule.settings)
            again = await client.call(broker.address, UPDATE_BROKER_CONFIG, Empty(), back.encode())
            assert isinstance(again, Ok) and "warning" not in (again.remark or "")
        await client.close()


def test_replicas_that_must_be_equal() -> None:
    assert {*MUST_BE_EQUAL, *SHOULD_BE_EQUAL} >= EQUAL
    for key in EQUAL:
        found = list(group_rules("config.group", "g", {"one": {key: "1"}, "two": {key: "2"}}))
        assert key in found[0].text and found[0].level is not Level.OK


def test_a_grace_that_is_too_short(tmp_path: Path) -> None:
    """Masters rely on 3 s, or on their own timeout if that is shorter."""
    files = Files(tmp_path)
    short = files.controller(0, controllerGraceMs="2000")
    assert short.controller is not None and "is below 3000" in "\n".join(short.controller.warnings())

    def told(*brokers: dict[str, str]) -> bool:
        given = [files.broker(number, **keys) for number, keys in enumerate(brokers)]
        return any(finding.text.startswith("controllerGraceMs") for finding in bad(rules([short, *given])))

    assert told() and told({})
    assert not told({"controllerHeartBeatTimeoutMills": "1800", "brokerHeartbeatInterval": "500"})
    assert not told({"isolationLeaseEnable": "false"})
