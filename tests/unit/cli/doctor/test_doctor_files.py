"""The doctor reads configuration files: which program they are for, whether it would start, whether several
fit together.
"""

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.doctor import machine
from cli.doctor.certificates import check_certificates
from cli.doctor.files import ConfigFile, Kind, environment, kind_of, load
from cli.doctor.rules import rules
from cli.keelmq import app
from keelmq.health.findings import CHECKS, Finding, Level, failed, merged, ok
from namesrv.plugins.controller.raft.api import TlsFiles
from tests.support.raft_certificates import Authority

SECRET = "0123456789abcdef0123456789abcdef"
CONTROLLER = {
    "controllerDLegerGroup": "g",
    "controllerDLegerPeers": "n0-10.0.0.1:9878;n1-10.0.0.2:9878;n2-10.0.0.3:9878",
    "controllerDLegerSelfId": "n0",
}
BROKER = {
    "brokerName": "broker-a",
    "brokerClusterName": "C",
    "brokerIP1": "10.0.0.7",
    "namesrvAddr": "10.0.0.1:9876;10.0.0.2:9876",
    "enableControllerMode": "true",
    "controllerAddr": "10.0.0.1:9878;10.0.0.2:9878;10.0.0.3:9878",
}


class Files:
    """Writes and loads configuration files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.secret = directory / "secret"
        self.secret.write_text(SECRET)
        self.secret.chmod(0o600)

    def load(
        self, name: str, *layers: dict[str, str], **keys: str
    ) -> tuple[ConfigFile | None, list[Finding]]:
        path = self.directory / name
        settings = {key: value for layer in (*layers, keys) for key, value in layer.items()}
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return load(path, None, name)

    def file(self, name: str, *layers: dict[str, str], **keys: str) -> ConfigFile:
        file, findings = self.load(name, *layers, **keys)
        assert file is not None, findings
        return file

    def controller(self, number: int, **keys: str) -> ConfigFile:
        own = {"controllerDLegerSelfId": f"n{number}", "controllerRaftSecretFile": str(self.secret)}
        return self.file(f"controller-{number}.conf", CONTROLLER, own, **keys)

    def broker(self, number: int, **keys: str) -> ConfigFile:
        return self.file(f"broker-{number}.conf", BROKER, **keys)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def bad(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level is not Level.OK]


def one(findings: list[Finding], check: str, level: Level = Level.FAILED) -> Finding:
    found = [each for each in findings if (each.check, each.level) == (check, level)]
    assert len(found) == 1, findings
    return found[0]


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"listenPort": "9876", "kvConfigPath": "/tmp/kv"}, Kind.NAMESRV),
        ({"enableControllerInNamesrv": "true", **CONTROLLER}, Kind.NAMESRV),
        (CONTROLLER, Kind.CONTROLLER),
        (BROKER, Kind.BROKER),
        ({"listenPort": "10911", "reviveQueueNum": "8"}, Kind.BROKER),  # which only RocketMQ has
        ({"jRaftGroupId": "group1"}, Kind.CONTROLLER),
        ({"listenPort": "9876", "serverWorkerThreads": "8"}, None),
        ({"listenPort": "9876"}, None),
        ({}, None),
    ],
)
def test_the_program_is_told_by_the_keys(settings: dict[str, str], kind: Kind | None) -> None:
    assert kind_of(settings) is kind


def test_files_that_load(files: Files) -> None:
    file, found = files.load("broker.conf", BROKER, allAckInSyncStateSet="true", minInSyncReplicas="2")
    assert file is not None and file.broker is not None
    assert found[0].text == f"loads as mqbroker: broker-a of C; {file.broker.promise()}"
    controller = files.controller(0)
    assert controller.kind is Kind.CONTROLLER and controller.controller is not None
    embedded = files.file(
        "namesrv.conf",
        CONTROLLER,
        enableControllerInNamesrv="true",
        controllerRaftSecretFile=str(files.secret),
    )
    assert embedded.kind is Kind.NAMESRV and embedded.controller is not None
    plain = files.file("plain.conf", kvConfigPath=str(files.directory / "kv.json"))
    assert plain.kind is Kind.NAMESRV and plain.controller is None


def test_keys_of_rocketmqs_without_effect_are_named(files: Files) -> None:
    _, found = files.load("broker.conf", BROKER, transferMsgByHeap="false", reviveQueueNum="8")
    texts = [each.text for each in found if each.level is Level.OK]
    assert "without effect here: transferMsgByHeap (the system's buffer sizes are used)" in texts
    assert any(text.startswith("without effect here: reviveQueueNum (") for text in texts)


def test_files_that_do_not_load(files: Files, tmp_path: Path) -> None:
    file, found = files.load("broker.conf", BROKER, brokerNam="x", checkSyncStateSetPeriod="many")
    assert file is None and "brokerName" in one(found, "config.loads").text  # the suggestion
    assert one(found, "config.loads").next_step == "correct the file; mqbroker -p lists all keys"
    file, found = files.load("b.conf", BROKER, checkSyncStateSetPeriod="5000")
    assert file is None and "haMaxTimeSlaveNotCatchup" in one(found, "config.loads").text
    file, found = files.load("c.conf", CONTROLLER, controllerDLegerSelfId="n7")
    assert (
        file is None
        and "mqcontroller -p, once its required keys are set," in one(found, "config.loads").next_step
    )
    (tmp_path / "no-value").write_text("listenPort\n")
    (finding,) = load(tmp_path / "no-value", None, "no-value")[1]
    assert finding.next_step == "correct the file"
    file, found = files.load("unclear.conf", listenPort="1")
    assert file is None and "--kind" in one(found, "config.loads").next_step
    assert load(tmp_path / "unclear.conf", Kind.BROKER, "unclear.conf")[0] is not None
    file, found = load(tmp_path / "nosuch", None, "nosuch")
    assert file is None and "No such file" in one(found, "config.loads").text
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "UTF-8" in one(load(tmp_path / "binary", None, "binary")[1], "config.loads").text


def test_what_a_program_would_warn_of(files: Files) -> None:
    _, found = files.load("broker.conf", BROKER, namesrvAddr="")
    assert [each.level for each in bad(found)] == [Level.WARNING]
    own = {"controllerRaftSecretFile": str(files.secret), "enableElectUncleanMaster": "true"}
    _, found = files.load("c.conf", CONTROLLER, own)
    assert "acknowledged" in one(found, "config.loads", Level.WARNING).text


def test_environment_variables_are_named(files: Files) -> None:
    assert not environment({"KEELMQ_listenPort": "1"}, [])
    (found,) = environment({"KEELMQ_listenPort": "1", "PATH": "x"}, [files.broker(0)])
    assert found.subject == "KEELMQ_listenPort" and found.level is Level.WARNING


def test_replicas_that_agree(files: Files) -> None:
    assert not bad(rules([files.broker(index, listenPort=str(7000 + index)) for index in range(3)]))


@pytest.mark.parametrize(
    ("key", "value", "level"),
    [
        ("brokerClusterName", "D", Level.FAILED),  # controller pitfall 48
        ("mappedFileSizeCommitLog", "65536", Level.FAILED),
        ("minInSyncReplicas", "2", Level.WARNING),
        ("allAckInSyncStateSet", "true", Level.WARNING),
        ("namesrvAddr", "10.0.0.1:9876", Level.WARNING),
    ],
)
def test_replicas_that_differ(key: str, value: str, level: Level, files: Files) -> None:
    found = bad(rules([files.broker(0), files.broker(1), files.broker(2, **{key: value})]))
    differs = one(found, "config.group", level)
    assert key in differs.text and value in differs.text and "broker-2.conf" in differs.text


def test_the_same_addresses_in_another_order_are_the_same(files: Files) -> None:
    other = files.broker(1, namesrvAddr="10.0.0.2:9876;10.0.0.1:9876")
    assert not bad(rules([files.broker(0), other]))


def test_a_promise_that_the_number_of_replicas_cannot_hold(files: Files) -> None:
    def group(count: int, least: str) -> list[Finding]:
        return bad(rules([files.broker(index, minInSyncReplicas=least) for index in range(count)]))

    assert "every message is refused" in one(group(2, "3"), "config.group").next_step
    assert "stops all writes" in one(group(2, "2"), "config.group", Level.WARNING).text
    assert not group(3, "2")
    learner = files.broker(2, minInSyncReplicas="3", asyncLearner="true")
    others = [files.broker(index, minInSyncReplicas="3") for index in range(2)]
    one(bad(rules([*others, learner])), "config.group")


def test_controllers_that_agree(files: Files) -> None:
    assert not bad(rules([files.controller(index) for index in range(3)]))
    missing = one(rules([files.controller(0), files.controller(1)]), "config.controllers", Level.WARNING)
    assert "n2" in missing.text


def test_controllers_that_differ(files: Files) -> None:
    other = CONTROLLER["controllerDLegerPeers"].replace("10.0.0.3", "10.0.0.4")
    found = bad(rules([files.controller(0), files.controller(1, controllerDLegerPeers=other)]))
    texts = [each.subject for each in found if each.check == "config.controllers"]
    assert texts == ["controllerDLegerPeers", "controllerRaftPeers"]
    twice = bad(rules([files.controller(0), files.file("x", CONTROLLER, {
        "controllerDLegerSelfId": "n0", "controllerRaftSecretFile": str(files.secret)})]))  # fmt: skip
    assert "n0" in one(twice, "config.controllers").text
    group = bad(rules([files.controller(0), files.controller(1, controllerDLegerGroup="h")]))
    assert one(group, "config.controllers").subject == "controllerDLegerGroup"


def test_loopback_in_the_peers(files: Files) -> None:
    """controller pitfall 44: a warning; with other members elsewhere it can never work."""
    alone = files.file("c.conf", CONTROLLER, controllerDLegerPeers="n0-127.0.0.1:9878")
    assert "127.0.0.1" in one(bad(rules([alone])), "config.addresses", Level.WARNING).text
    mixed = files.controller(0, controllerDLegerPeers="n0-127.0.0.1:9878;n1-10.0.0.2:9878;n2-10.0.0.3:9878")
    assert one(bad(rules([mixed])), "config.addresses").text.startswith("n0 of")
    two = files.controller(0, controllerDLegerPeers="n0-10.0.0.1:9878;n1-10.0.0.2:9878")
    assert "survive no more" in one(bad(rules([two])), "config.addresses", Level.WARNING).text


def test_a_broker_that_announces_loopback(files: Files) -> None:
    """user-pain 45."""
    found = bad(rules([files.broker(0, brokerIP1="127.0.0.1")]))
    assert "brokerIP1=127.0.0.1" in one(found, "config.addresses").text
    local = {"namesrvAddr": "127.0.0.1:9876", "controllerAddr": "127.0.0.1:9878"}
    assert not bad(rules([files.broker(0, brokerIP1="127.0.0.1", **local)]))


def test_a_broker_that_does_not_list_every_controller(files: Files) -> None:
    """user-pain 47: the one that gets no heartbeats takes it for dead once it leads."""
    controllers = [files.controller(index) for index in range(3)]
    lacks = files.broker(0, controllerAddr="10.0.0.1:9878;10.0.0.2:9878")
    assert "n2 (10.0.0.3:9878)" in one(bad(rules([*controllers, lacks])), "config.addresses").text
    wrong = files.broker(0, controllerAddr="10.9.9.9:9878")
    assert "none of" in one(bad(rules([*controllers, wrong])), "config.addresses").text
    by_name = files.broker(0, controllerAddr="controllers.example:9878")  # may stand for all of them
    assert not bad(rules([*controllers, by_name]))


@pytest.mark.parametrize(
    "settings",
    [
        {"registerNameServerPeriod": "120000"},
        {"syncBrokerMetadataPeriod": "9000"},
    ],
    ids=lambda settings: list(settings)[-1],
)
def test_timeouts_that_do_not_fit(settings: dict[str, str], files: Files) -> None:
    found = one(bad(rules([files.broker(0, **settings)])), "config.timeouts", Level.WARNING)
    assert list(settings)[-1] in found.text


def test_secrets(files: Files, tmp_path: Path) -> None:
    good = files.controller(0)
    assert not bad(machine.check_secrets([good]))
    files.secret.chmod(0o644)
    assert "read by others" in one(machine.check_secrets([good]), "config.secret", Level.WARNING).text
    files.secret.chmod(0o640)  # a group of its own is fine
    assert not bad(machine.check_secrets([good]))
    files.secret.chmod(0o666)
    assert "changed by others" in one(machine.check_secrets([good]), "config.secret").text
    files.secret.chmod(0o600)
    other = tmp_path / "other"
    other.write_text(SECRET[::-1])
    other.chmod(0o600)
    differs = files.controller(1, controllerRaftSecretFile=str(other))
    assert "different keys" in one(bad(machine.check_secrets([good, differs])), "config.secret").text
    assert SECRET not in str(machine.check_secrets([good, differs]))
    other.write_text("short")
    assert "32 are needed" in one(machine.check_secrets([differs]), "config.secret").text
    other.unlink()
    assert "No such file" in one(machine.check_secrets([differs]), "config.secret").text
    inline = files.file("inline.conf", CONTROLLER, controllerRaftSecret=SECRET)
    found = one(machine.check_secrets([inline]), "config.secret", Level.WARNING)
    assert "file of its own" in found.next_step and SECRET not in str(found)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def with_certificate(files: Files, number: int, made: TlsFiles) -> ConfigFile:
    made.key.chmod(0o600)
    keys = {
        "controllerDLegerSelfId": f"n{number}",
        "controllerRaftTlsCertPath": str(made.certificate),
        "controllerRaftTlsKeyPath": str(made.key),
        "controllerRaftTlsTrustCertPath": str(made.trust),
    }
    return files.file(f"tls-{number}.conf", CONTROLLER, keys)


def test_certificates(files: Files, authority: Authority) -> None:
    good = with_certificate(files, 0, authority.issue("n0"))
    both = [good, with_certificate(files, 1, authority.issue("n1"))]
    found = check_certificates(both)
    assert not bad(found) and "for n0, until 2" in found[0].text
    assert not check_certificates([files.controller(0)]) and not machine.check_secrets(both)
    mixed = check_certificates([good, files.controller(1)])
    assert "tls-0.conf have certificates, controller-1.conf do not" in one(mixed, "config.secret").text
    other = with_certificate(files, 1, Authority(files.directory / "other").issue("n1"))
    assert "different CA files" in one(check_certificates([good, other]), "config.secret", Level.WARNING).text
    (authority.directory / "n0.key").chmod(0o644)
    assert "read by others" in one(check_certificates([good]), "config.secret", Level.WARNING).text


@pytest.mark.parametrize(
    ("names", "days", "level", "text"),
    [
        (["n0"], (-1, 20), Level.WARNING, "20 days left"),
        (["n0"], (-1, 3), Level.FAILED, "3 days left"),
        (["n0"], (-9, -1), Level.FAILED, "expired"),
        (["n7"], (-1, 90), Level.FAILED, "lacks DNS:n0"),
    ],
)
def test_certificates_that_end_or_are_not_ours(
    files: Files, authority: Authority, names: list[str], days: tuple[float, float], level: Level, text: str
) -> None:
    found = check_certificates([with_certificate(files, 0, authority.issue(*names, days=days))])
    assert text in one(found, "config.secret", level).text
    assert "keelmq certificates" in one(found, "config.secret", level).next_step


def test_one_line_and_no_check_without_a_name() -> None:
    finding = failed("config.loads", "a.conf", "line one\nline two", "do this")
    assert finding.line() == "FAILED   a.conf: line one line two; next: do this"
    with pytest.raises(AssertionError):
        ok("no.such.check", "a", "b")
    with pytest.raises(AssertionError):
        failed("config.loads", "a", "b", "")
    assert all(CHECKS.values())


def test_the_same_of_several_is_said_once() -> None:
    found = [ok("config.loads", "a", "x"), ok("config.loads", "b", "y"), ok("config.loads", "c", "x")]
    assert [(each.subject, each.text) for each in merged(found)] == [("a, c", "x"), ("b", "y")]


def test_no_check_writes(files: Files, tmp_path: Path) -> None:
    """The doctor changes nothing: not even a probe file."""
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    file = files.directory / "broker.conf"
    settings = {**BROKER, "storePathRootDir": str(tmp_path / "not" / "there")}
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    loaded, _ = load(file, None, "broker.conf")
    assert loaded is not None
    file.unlink()
    machine.check_directories(loaded)
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
    assert os.listdir(tmp_path) == ["secret"]


def test_a_file_that_cannot_be_read_is_a_finding_beside_those_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, other = tmp_path / "private.conf", tmp_path / "other.conf"
    private.write_text("brokerName=a\n")
    other.write_text("brokerName=b\n")
    opened, access = Path.open, os.access

    def open_(path: Path, *args: str, **options: Any) -> Any:
        if path == private:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **options)

    monkeypatch.setattr(Path, "open", open_)
    monkeypatch.setattr(
        os, "access", lambda path, mode, **more: Path(path) != private and access(path, mode, **more)
    )
    result = CliRunner().invoke(app, ["doctor", "--offline", "-c", str(private), "-c", str(other)])
    assert result.exit_code == 1, result.output
    assert "private.conf: cannot be read: Permission denied" in result.output
    assert "other.conf: loads as mqbroker" in result.output


PROXY = {"namesrvAddr": "10.0.0.1:9876", "grpcServerPort": "9081"}


def test_a_proxy_is_told_by_its_keys() -> None:
    assert kind_of(PROXY) is Kind.PROXY
    assert kind_of({"proxyAddress": "h"}) is Kind.PROXY
    assert kind_of(BROKER | {"enableProxy": "true", "grpcServerPort": "9081"}) is Kind.BROKER
    assert kind_of({"namesrvAddr": "10.0.0.1:9876"}) is not Kind.PROXY


def test_a_proxy_and_its_ports(tmp_path: Path) -> None:
    files = Files(tmp_path)
    file, findings = files.load("proxy.conf", PROXY, bindAddress="127.0.0.1")
    assert file is not None
    assert [each.text for each in findings] == ["loads as mqproxy for the brokers that 10.0.0.1:9876 lists"]
    ports = [(each.role, each.number) for each in machine.ports_of(file)]
    assert ports == [("gRPC", 9081), ("http", 19081)]
    broker = files.file("broker.conf", BROKER, enableProxy="true", grpcServerPort="9081")
    assert ("gRPC", 9081) in [(each.role, each.number) for each in machine.ports_of(broker)]


def test_a_proxy_without_name_servers_or_with_a_wrong_limit(tmp_path: Path) -> None:
    files = Files(tmp_path)
    _, findings = files.load("proxy.conf", grpcServerPort="9081")
    assert [each.text for each in findings if each.level is Level.WARNING] == [
        "namesrvAddr is empty: it finds no brokers"
    ]
    file, findings = files.load("proxy.conf", PROXY, grpcMaxInboundMessageSize="1")
    assert file is None
    assert findings[0].level is Level.FAILED and "mqproxy -p lists all keys" in (findings[0].next_step)


# ---- listeners ----

NAME_SERVER = {"enableControllerInNamesrv": "false", "listeners": "external://0.0.0.0:9976"}


def test_listeners_that_fit(files: Files) -> None:
    server = files.file("namesrv.conf", NAME_SERVER)
    brokers = [
        files.broker(each, listeners="external://0.0.0.0:20001", advertisedListeners=f"external://mq:{each}")
        for each in (1, 2)
    ]
    assert not [each for each in rules([server, *brokers]) if each.check == "config.listeners"]


def test_a_listener_that_a_name_server_lacks(files: Files) -> None:
    server = files.file("namesrv.conf", NAME_SERVER)
    found = one(rules([server, files.broker(1, listeners="vpn://10.8.0.1:20001")]), "config.listeners")
    assert (found.subject, found.text) == ("broker-1.conf", "no client gets its listener vpn at namesrv.conf")


def test_two_brokers_with_one_announced_address(files: Files) -> None:
    keys = {"listeners": "external://0.0.0.0:20001", "advertisedListeners": "external://mq:1"}
    found = one(rules([files.broker(1, **keys), files.broker(2, **keys)]), "config.listeners")
    assert found.text == "announces mq:1, and so does broker-1.conf"
