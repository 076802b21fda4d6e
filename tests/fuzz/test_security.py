"""A slice of the fuzzer of the security code (`keelmq fuzz security` runs the rest), tests of the fuzzer, and
what it found."""

import json
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import (
    REMARK_CHARS_MAX,
    RemotingCommand,
    SerializeType,
    decode,
    encode,
    response_frame,
)
from keelmq.security.core import access as access_module
from keelmq.security.core.access import Refused
from keelmq.security.core.acls import InvalidAcl, parse_acl
from keelmq.security.core.audited import remark_of, resources_of
from keelmq.security.core.known_requests import KnownRequests, remembered_decoders
from keelmq.security.core.plain_acl import BadPlainAcl, parse_plain_acl
from keelmq.security.core.signature import SecretKey, remembered_orders, sign, signed
from keelmq.security.plain_acl_files import load_yaml
from keelmq.security.server_access import ServerAccess
from tests.fuzz import security
from tests.fuzz.frames import Finding
from tests.fuzz.security import Report, fuzz, run_round, tried
from tests.fuzz.security_targets import Base, makers
from tests.support.server_parts import raw_peer, server, table
from tests.unit.keelmq.security.parts import NOW_MS, SECRETS, control, request, tables

INPUTS = 400
TARGETS = makers()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", TARGETS)
def test_hostile_input(name: str, seed: int) -> None:
    report = fuzz(seed, INPUTS, [(name, TARGETS[name])])
    assert report.findings == []
    assert report.inputs == INPUTS
    assert len(report.outcomes) > 1, "valid input as well as refused"


def test_the_same_seed_gives_the_same_inputs(tmp_path: Path) -> None:
    for name in ("access", "plain-acl", "addresses"):
        one, other = (TARGETS[name](Random(7), tmp_path) for _ in range(2))
        for _ in range(50):
            mine, theirs = one.make(), other.make()
            assert mine == theirs
            tried(one, mine)
            tried(other, theirs)


# ---- test the tester ----


class Broken(Base):
    name = "broken"
    allowed = (ValueError,)

    def __init__(self, kind: str, path: Path) -> None:
        super().__init__(Random(1), path)
        self.kind = kind

    def make(self) -> bytes:
        return bytes(self.random.randrange(100))

    def run(self, value: bytes) -> str:
        match self.kind:
            case "documented":
                raise ValueError("refused")
            case "raises":
                raise KeyError("bug")
            case "asserts":
                raise AssertionError("wrong")
            case "is slow":
                begun = time.process_time()
                while time.process_time() - begun < 0.08:
                    pass
            case "never ends":
                while True:
                    pass
        return "done"

    def check(self) -> None:
        assert self.kind != "remembers", "too much is remembered"


@pytest.mark.parametrize("kind", ["works", "documented"])
def test_what_is_documented_is_no_finding(kind: str, tmp_path: Path) -> None:
    report = Report()
    run_round(Broken(kind, tmp_path), 20, report)
    assert report.inputs == 20


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("raises", "KeyError: 'bug'"),
        ("asserts", "wrong"),
        ("is slow", "s of CPU time for"),
        ("never ends", "no end after"),
        ("remembers", "too much is remembered"),
    ],
)
def test_broken_code_is_found(kind: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "WATCHDOG_S", 0.3)
    with pytest.raises((Finding, AssertionError), match=found):
        run_round(Broken(kind, tmp_path), 20, Report())


def test_a_check_that_grants_everything_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "verify", lambda *_: True)
    report = fuzz(1, INPUTS, [("access", TARGETS["access"])])
    assert "without a right signature" in "".join(report.findings)


# ---- found ----


@pytest.mark.parametrize(
    "text",
    [
        b"accounts: !!int ''", b"a: !!timestamp x", b"a: !!bool x", b"accounts: 1" + b":59" * 100_000,
        b"accounts: [{accessKey: 0x" + b"f" * 5_000 + b", secretKey: 12345678}]",
        b"accounts:\n- accessKey: abcdefgh\n  secretKey: !hunter2hunter2\n",
        b"accounts:\n- accessKey: abcdefgh\n  secretKey: *hunter2hunter2\n",
        b"globalWhiteRemoteAddresses:\n- {secretKey: hunter2hunter2}\n",
        b"globalWhiteRemoteAddresses:\n- 'x\n  hunter2hunter2'\n",
    ],
)  # fmt: skip
def test_yaml_that_raised_or_took_long_or_told_secrets(text: bytes) -> None:
    """Constructors of tags raise what is no YAMLError; numbers in base 60 take the square of their length; an
    unquoted secret may begin as an alias or a tag does."""
    begun = time.process_time()
    with pytest.raises(BadPlainAcl) as caught:
        parse_plain_acl([("f.yml", load_yaml(text, "f.yml"))])
    assert time.process_time() - begun < 0.5
    assert "hunter2" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("same", [False, True])
def test_an_acl_of_many_policies_is_refused_at_once(same: bool) -> None:
    """Each was merged with all before it: a body of 16 MiB took hours."""
    entry = {"actions": ["Pub"], "decision": "Allow"}
    policies = [
        {"entries": [entry | {"resource": "Topic:t" if same else f"Topic:t{number}"}]}
        for number in range(100_000)
    ]
    begun = time.process_time()
    with pytest.raises(InvalidAcl, match="at most 1000"):
        parse_acl({"subject": "User:alice", "policies": policies})
    assert time.process_time() - begun < 1.0


def test_long_names_are_not_remembered() -> None:
    """A user with a right to a prefix could fill the memory with ten thousand names of 16 MiB."""
    access = control(tables("Topic:t* Pub Allow"))
    for length in (10, 1_000_000):
        sent = request(RequestCode.SEND_MESSAGE_V2, {"a": "p", "b": "t" * length})
        assert not isinstance(access.check(sent, NOW_MS), Refused)
    assert access.remembered[0] == 1
    known = KnownRequests(object())
    for length in (10, 1_000_000):
        fields = signed("alice", "secret", {"a": "p", "b": "t" * length})
        known.add(RequestCode.SEND_MESSAGE_V2, fields, ("AccessKey", "b"), SecretKey(b"secret"))
    assert len(known.kinds[RequestCode.SEND_MESSAGE_V2]) == 1
    decoders = remembered_decoders()
    many = {f"n{number}": "v" for number in range(100)}
    known.add(10, signed("alice", "secret", many), ("AccessKey",), SecretKey(b"secret"))
    assert 10 not in known.kinds
    assert remembered_decoders() == decoders
    before = remembered_orders()
    for fields in ({"n" * 10_000: "v", "x": "v"}, {f"n{number}": "v" for number in range(100)}):
        assert sign("secret", fields)
    assert remembered_orders() == before


def test_the_audit_log_reads_no_large_body() -> None:
    """Anybody can make it write a line: of a refused request, too."""
    topics = [{"topicName": f"t{number}"} for number in range(100_000)]
    body = json.dumps({"topicConfigList": topics}).encode()
    lines = b"token=a\n" * 500_000
    begun = time.process_time()
    assert resources_of(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body) == []
    assert len(remark_of(25, "x" * 4_000, lines)) < 400
    assert len(remark_of(25, "line 1: '" * 1_000_000, b"a=b")) < 400
    assert len(remark_of(3001, "a" * 10_000_000, b'{"password":"a"}')) < 400
    assert remark_of(3001, "refused", b"[" * 30_000) == "refused"
    assert time.process_time() - begun < 0.3
    assert resources_of(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, json.dumps({"topicConfigList": topics[:2]}).encode()
    )


@pytest.mark.parametrize("name", ['"', "\\", "\x00", "\ud800", "", "é", "class", "a b"])
def test_names_that_no_struct_can_have_are_not_remembered(name: str) -> None:
    """msgspec raised a ValueError out of the connection."""
    known = KnownRequests(object())
    fields = signed("alice", "secret", {name: "v"})
    known.add(10, fields, ("AccessKey",), SecretKey(b"secret"))
    assert (10 in known.kinds) is (name in ("é", "class", "a b"))


@pytest.mark.parametrize(
    "header", ["Basic é", "Basic ÿÿÿÿ", "Basic /////w==", "Basic", "Basic =", "Bearer é", "é"]
)
def test_a_header_that_is_no_base64_is_no_server_error(header: str, tmp_path: Path) -> None:
    """b64decode() raises binascii.Error for bad base64, and ValueError for what is not ASCII."""
    target = TARGETS["http"](Random(1), tmp_path)
    outcome, _ = tried(target, (header, "127.0.0.1", ""))
    assert outcome == "Unauthenticated"


@pytest.mark.parametrize("character", ["\x01", "a"])
def test_a_remark_fits_into_a_response(character: str) -> None:
    frame = response_frame(1, 16, character * 16_000_000)
    remark = decode(frame[4:]).remark
    assert remark is not None and remark.startswith(character * REMARK_CHARS_MAX)
    assert remark.endswith("... (16000000 characters)")


async def test_a_refusal_of_a_very_long_name_keeps_the_connection() -> None:
    """It quoted the name: control characters are six times as long in JSON."""
    guarded = table()
    guarded.access = ServerAccess(control(tables()), clock=lambda: NOW_MS)
    name = "\x01" * 1_000_000
    fields: dict[str, Any] = signed(name, "x", {"e": "0"})
    asked = RemotingCommand(310, 7, ext_fields=fields, serialize_type=SerializeType.ROCKETMQ)
    async with server(guarded) as of, raw_peer(of) as peer:
        peer.writer.write(encode(asked))
        answer = await peer.read()
        assert (answer.opaque, answer.code) == (7, ResponseCode.NO_PERMISSION)
        fields = signed("alice", SECRETS["alice"], {"e": "0"})
        assert (await peer.ask(RemotingCommand(310, 8, ext_fields=fields))).opaque == 8
