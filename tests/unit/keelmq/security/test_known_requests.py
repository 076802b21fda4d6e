"""Requests of the data path that are like one that was admitted: only their signatures are checked, and they
are as safe."""

from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from itertools import takewhile
from typing import Any

import msgspec
import pytest

from keelmq.remoting.command import RemotingCommand, encode, response_frame
from keelmq.remoting.connection import BATCHED_MIN
from keelmq.remoting.dispatch import Dispatcher, fast_path_key
from keelmq.remoting.frame import Frame
from keelmq.remoting.operation import Batched, FastPath, OperationTable, Peer
from keelmq.remoting.turn_requests import TurnRequests
from keelmq.security.core import known_requests
from keelmq.security.core.access import AccessControl, AccessRequest, Granted, Refused
from keelmq.security.core.access_settings import AccessSettings
from keelmq.security.core.contexts import Role
from keelmq.security.core.known_requests import (
    DECODERS_MAX,
    GRANTED_MAX,
    SUBJECT_CHARS_MAX,
    KnownRequests,
    key_for_more,
)
from keelmq.security.core.member_proof import PROOF
from keelmq.security.core.plain_acl import PlainAcl, parse_plain_acl
from keelmq.security.core.signature import SecretKey, signed
from keelmq.security.core.users import User, UserStatus
from keelmq.security.server_access import ServerAccess
from tests.support.read_parts import Reader
from tests.support.server_parts import FastPathCommand, FastPathFields, raw_peer, server
from tests.unit.keelmq.security.parts import NOW_MS, SECRETS, acl_of, control, request, tables

SEND = 310
FIELDS = {"a": "p", "b": "t", "e": "0", "i": "text"}
KEY = SecretKey(SECRETS["alice"].encode())


class Counting(AccessControl):
    """Counts the requests that are checked as a whole."""

    whole = 0

    def check(self, request: AccessRequest, now_ms: int) -> Granted | Refused:
        self.whole += 1
        return super().check(request, now_ms)


class Guarded:
    """Serves 310, alone and in batches."""

    def __init__(self, **settings: Any) -> None:
        self.users = tables("Topic:t Pub Allow")
        both = {"authentication_enabled": True, "authorization_enabled": True, **settings}
        self.control = Counting(self.users, AccessSettings(**both))
        self.served: list[int] = []
        self.batches: list[int] = []
        self.turns: list[list[int]] = []
        self.soon: list[Callable[[], None]] = []
        self.turn = TurnRequests(_read, self._turn, fast_path_key(SEND), self.soon.append)
        self.table = OperationTable()
        self.table.access = ServerAccess(self.control, clock=lambda: NOW_MS)
        self.table.bind_fast_path(
            SEND, FastPath(FastPathCommand, _lenient, self._one, Batched(_read, self._many, self.turn))
        )

    def _one(self, command: FastPathCommand, body: bytes, peer: Peer) -> bytes:
        self.served.append(command.opaque)
        return response_frame(command.opaque, 0, command.extFields.b)

    def _many(self, requests: list[tuple[FastPathCommand, bytes]], peer: Peer) -> tuple[int, bytes]:
        self.batches.append(len(requests))
        return len(requests), b"".join([self._one(*each, peer) for each in requests])

    def _turn(self, requests: list[tuple[FastPathCommand, bytes]], peers: list[Peer]) -> list[bytes | None]:
        self.turns.append([command.opaque for command, _ in requests])
        return [self._one(*each, peer) for each, peer in zip(requests, peers, strict=True)]

    @asynccontextmanager
    async def peer(self) -> Any:
        async with server(self.table) as open_server, raw_peer(open_server) as peer:
            yield peer


def _read(frames: list[Frame], key: bytes) -> list[tuple[FastPathCommand, bytes]]:
    same = takewhile(lambda frame: frame[1].startswith(key), frames)
    return [
        (msgspec.json.decode(header, type=FastPathCommand, strict=False), body) for _, header, body, _ in same
    ]


def _lenient(code: int, opaque: int, flag: int, fields: Mapping[str, str]) -> FastPathCommand:
    return FastPathCommand(code, opaque, FastPathFields(0, fields.get("b", "")), flag)


def send(opaque: int = 1, *, body: bytes = b"body", signed_body: bytes | None = None, **fields: str) -> Any:
    ext = signed("alice", SECRETS["alice"], FIELDS | fields, body if signed_body is None else signed_body)
    return RemotingCommand(SEND, opaque, ext_fields=ext, body=body)


async def test_the_second_request_is_not_checked_as_a_whole() -> None:
    guarded = Guarded()
    async with guarded.peer() as peer:
        for opaque in range(5):
            assert (await peer.ask(send(opaque, i=f"properties {opaque}", body=b"%d" % opaque))).code == 0
    assert guarded.served == [0, 1, 2, 3, 4]
    assert guarded.control.whole == 1


async def test_accounts_of_acl_1_are_remembered_too() -> None:
    guarded = Guarded(authentication_enabled=False, authorization_enabled=False)
    account = {"accessKey": "RocketMQ", "secretKey": "12345678", "topicPerms": ["t=PUB"]}
    plain, _ = parse_plain_acl([("f", {"accounts": [account]})])
    guarded.control.set_plain(plain)

    def by_account(body: bytes = b"body", **fields: str) -> RemotingCommand:
        return RemotingCommand(SEND, 1, ext_fields=signed("RocketMQ", "12345678", FIELDS | fields), body=body)

    async with guarded.peer() as peer:
        assert [(await peer.ask(by_account(b""))).code for _ in range(3)] == [0, 0, 0]
        assert guarded.control.whole == 1
        for wrong in (by_account(), by_account(b"", b="other")):
            answer = await peer.ask(wrong)
            assert answer.code == 16 and "AclException" in (answer.remark or "")
        guarded.control.set_plain(PlainAcl())
        assert (await peer.ask(by_account(b""))).code == 16


async def test_without_a_check_everything_is_open_at_once() -> None:
    """Only members are asked for: what clients send does not lose the fast path."""
    guarded = Guarded(authentication_enabled=False, authorization_enabled=False, members_required=True)
    async with guarded.peer() as peer:
        for _ in range(3):
            answer = await peer.ask(RemotingCommand(SEND, 1, ext_fields=dict(FIELDS), body=b"body"))
            assert answer.code == 0
    assert guarded.control.whole == 1  # limits count anonymous clients until then


async def test_with_the_stateful_strategy_a_signature_counts_for_a_while() -> None:
    guarded = Guarded(stateful_authentication=True, stateful_expired_ms=60_000)
    times = [NOW_MS]
    guarded.table.access = ServerAccess(guarded.control, clock=lambda: times[-1])
    unsigned = RemotingCommand(SEND, 1, ext_fields=send().ext_fields | {"Signature": "x"}, body=b"body")
    async with guarded.peer() as peer:
        assert (await peer.ask(send())).code == 0  # a whole check
        assert (await peer.ask(send())).code == 0  # and a signature
        times.append(NOW_MS + 59_999)
        assert (await peer.ask(unsigned)).code == 0
        assert guarded.control.whole == 1
        assert (await peer.ask(send(b="other"))).code == 16
        times.append(NOW_MS + 120_000)
        assert (await peer.ask(unsigned)).remark == "check signature failed."
        assert (await peer.ask(send())).code == 0
        assert (await peer.ask(unsigned)).code == 0
        guarded.users.put(User("alice", "another secret"))
        assert (await peer.ask(unsigned)).remark == "check signature failed."


async def test_each_signature_is_checked() -> None:
    guarded = Guarded()
    async with guarded.peer() as peer:
        assert (await peer.ask(send())).code == 0
        for wrong in (
            send(signed_body=b"another"),
            RemotingCommand(SEND, 1, ext_fields=send().ext_fields | {"i": "other"}, body=b"body"),
            RemotingCommand(SEND, 1, ext_fields=send().ext_fields | {"z": "unsigned"}, body=b"body"),
            RemotingCommand(SEND, 1, ext_fields=send().ext_fields | {"Signature": ""}, body=b"body"),
            RemotingCommand(SEND, 1, ext_fields=send().ext_fields | {"Signature": "\u00e9"}, body=b"body"),
        ):
            answer = await peer.ask(wrong)
            assert (answer.code, answer.remark) == (16, "check signature failed.")
        unsigned = await peer.ask(RemotingCommand(SEND, 1, ext_fields=dict(FIELDS), body=b"body"))
        assert unsigned.remark == "username cannot be null."
        assert (await peer.ask(send())).code == 0
    assert guarded.served == [1, 1]


async def test_other_resources_are_decided_anew() -> None:
    guarded = Guarded()
    async with guarded.peer() as peer:
        assert (await peer.ask(send())).code == 0
        assert (await peer.ask(send(b="other"))).code == 16
        # The signature is the same if a character moves from one value to the next.
        moved = send(b="tx", e="0").ext_fields
        assert (await peer.ask(RemotingCommand(SEND, 1, ext_fields=moved, body=b"body"))).code == 16
        guarded.users.put(acl_of("alice", "Topic:* Pub Allow"))
        assert (await peer.ask(send(b="other"))).code == 0
        assert (await peer.ask(send())).code == 0
    assert guarded.served == [1, 1, 1]


@pytest.mark.parametrize(
    "change",
    [
        lambda guarded: guarded.users.put(acl_of("alice", "Topic:t Sub Allow")),
        lambda guarded: guarded.users.put(User("alice", SECRETS["alice"], status=UserStatus.DISABLE)),
        lambda guarded: guarded.users.put(User("alice", "another secret")),
        lambda guarded: guarded.control.set_plain(PlainAcl()),
    ],
)
async def test_a_change_counts_with_the_next_request(change: Any) -> None:
    guarded = Guarded()
    async with guarded.peer() as peer:
        assert (await peer.ask(send())).code == (await peer.ask(send())).code == 0
        change(guarded)
        assert (await peer.ask(send())).code == 16
    assert len(guarded.served) == 2


async def test_what_one_connection_may_is_not_known_on_another() -> None:
    guarded = Guarded()
    async with server(guarded.table) as open_server:
        for _ in range(2):
            async with raw_peer(open_server) as peer:
                assert (await peer.ask(send())).code == 0
    assert guarded.control.whole == 2


async def test_a_batch_ends_before_a_request_that_is_refused() -> None:
    guarded, count = Guarded(), 3 * BATCHED_MIN
    async with guarded.peer() as peer:
        assert (await peer.ask(send(1_000))).code == 0
        sends = [send(opaque) for opaque in range(count)]
        sends[BATCHED_MIN] = send(BATCHED_MIN, signed_body=b"another")
        peer.writer.write(b"".join(encode(each) for each in sends))
        answers = [await peer.read() for _ in sends]
    assert [answer.opaque for answer in answers] == list(range(count))
    assert [answer.opaque for answer in answers if answer.code] == [BATCHED_MIN]
    assert BATCHED_MIN in guarded.batches
    assert guarded.control.whole == 2


async def test_what_is_collected_has_been_checked() -> None:
    """Of many connections. A connection whose first request this is, or whose signature is wrong, is answered
    at once."""
    guarded = Guarded()
    dispatcher = Dispatcher(guarded.table, name="test")
    readers = [Reader(dispatcher) for _ in range(9)]
    for reader in readers[:-1]:
        reader.read(encode(send(100)))
    guarded.turn.is_on = True
    sends = [send(opaque, signed_body=b"another" if opaque == 3 else None) for opaque in range(9)]
    for reader, each in zip(readers, sends, strict=True):
        reader.read(encode(each))
    assert guarded.served == [100] * 8 + [8]
    (end_of_turn,) = guarded.soon
    end_of_turn()
    assert guarded.turns == [[0, 1, 2, 4, 5, 6, 7]]
    answers = [reader.answers()[-1] for reader in readers]
    assert [(each.opaque, each.code) for each in answers] == [(n, 16 if n == 3 else 0) for n in range(9)]
    assert guarded.control.whole == 8 + 2


@pytest.mark.parametrize("text", ["0", "-1", "1.50", "1e3", "true", "18446744073709551616"])
async def test_values_that_are_no_texts_are_checked_as_a_whole(text: str) -> None:
    """C++ clients write numbers, Node.js clients booleans too; both sign the text that they write."""
    guarded = Guarded()
    async with guarded.peer() as peer:
        assert (await peer.ask(send(e=text))).code == 0
        frame = encode(send(e=text))
        quoted = b'"e":"%s"' % text.encode()
        assert frame.count(quoted) == 1
        header = frame[8:].replace(quoted, b'"e":%s' % text.encode())
        size = int.from_bytes(frame[4:8]) - 2
        peer.writer.write((4 + len(header)).to_bytes(4) + size.to_bytes(4) + header)
        assert (await peer.read()).code == 0
    assert guarded.control.whole == 2


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"member_users": frozenset({"alice"}), "proof_required": False}, {}),
        ({}, {"_UNIQUE_KEY_QUERY": "true"}),
    ],
)
async def test_what_depends_on_more_is_always_checked(settings: Any, fields: dict[str, str]) -> None:
    guarded = Guarded(**settings)
    async with guarded.peer() as peer:
        for _ in range(3):
            assert (await peer.ask(send(**fields))).code == 0
    assert guarded.control.whole == 3


PLAIN, _ = parse_plain_acl([("f", {"accounts": [{"accessKey": "alice12", "secretKey": "alice-secret"}]})])
BOTH = {"authentication_enabled": True, "authorization_enabled": True}


@pytest.mark.parametrize(
    ("code", "fields", "settings"),
    [
        (SEND, {}, {}),  # nobody signs
        (SEND, {}, {"authorization_enabled": True}),
        (17, {"topic": "t"}, BOTH | {"member_users": frozenset({"alice"}), "proof_required": False}),
        (25, {}, BOTH),  # administers
        (41, {}, BOTH),  # the body decides
        (33, {"offset": "7"}, BOTH),  # the handler looks up
        (SEND, {PROOF: "x"}, BOTH),
        (SEND, {"_UNIQUE_KEY_QUERY": "true"}, BOTH),
    ],
)
def test_only_what_the_signature_and_the_fields_decide_is_known(
    code: int, fields: dict[str, str], settings: Any
) -> None:
    made = AccessSettings(**settings)
    access = AccessControl(tables("* All Allow"), made)
    sent = request(code, FIELDS | fields)
    granted = Granted("alice", Role.OPERATE, is_member="alice" in made.member_users)
    assert key_for_more(access, sent, granted) is None


def test_where_two_signatures_count_no_request_is_known() -> None:
    users = tables("* All Allow")
    users.put(User("alice12", "alice-secret"))
    sent, granted = request(SEND, FIELDS), Granted("alice12", Role.OPERATE)
    both = AccessControl(users, AccessSettings(authentication_enabled=True), plain=PLAIN)
    assert key_for_more(both, sent, granted) is None
    for one in (
        AccessControl(users, AccessSettings(authentication_enabled=True)),
        AccessControl(users, AccessSettings(), plain=PLAIN),
    ):
        assert key_for_more(one, sent, granted) is not None


def test_an_ordinary_request_is_known() -> None:
    access = control(tables("* All Allow"))
    found = key_for_more(access, request(SEND, FIELDS), Granted("alice", Role.OPERATE))
    assert found is not None and found[1][0] == "AccessKey"


async def test_after_a_change_requests_become_known_again() -> None:
    guarded = Guarded()
    async with guarded.peer() as peer:
        for whole in (1, 2):
            for _ in range(3):
                assert (await peer.ask(send())).code == 0
            assert guarded.control.whole == whole
            guarded.users.put(User("somebody", "else"))


def test_long_names_are_not_remembered() -> None:
    known = KnownRequests(object())
    ext = signed("alice", SECRETS["alice"], {"b": "t" * (SUBJECT_CHARS_MAX + 1)})
    known.add(SEND, ext, ("AccessKey", "b"), KEY)
    assert len(known.kinds[SEND]) == 0


def test_names_need_not_be_identifiers() -> None:
    known, fields = KnownRequests(object()), {"class": "1", "v0": "2", "a b": "3", "\u00e9": "4", "b": "t"}
    ext = signed("alice", SECRETS["alice"], fields, b"body")
    known.add(SEND, ext, ("AccessKey", "b"), KEY)
    frame = encode(RemotingCommand(SEND, 1, ext_fields=ext, body=b"body"))
    header = frame[8 : 8 + int.from_bytes(frame[5:8])]
    assert known.kinds[SEND].has(header, b"body")
    assert not known.kinds[SEND].has(header, b"other")


def test_what_is_remembered_is_bounded() -> None:
    known = KnownRequests(object())
    for number in range(GRANTED_MAX + 10):
        ext = signed("alice", SECRETS["alice"], {"b": f"t{number}"})
        known.add(SEND, ext, ("AccessKey", "b"), KEY)
    assert len(known.kinds[SEND]) <= GRANTED_MAX
    for number in range(DECODERS_MAX + 10):
        ext = signed("alice", SECRETS["alice"], {"b": "t", f"x{number}": ""})
        known.add(SEND, ext, ("AccessKey", "b"), KEY)
    assert known_requests.remembered_decoders() <= DECODERS_MAX
    assert len(known.kinds) == 1


def test_a_null_is_not_remembered() -> None:
    known = KnownRequests(object())
    known.add(SEND, {"AccessKey": "alice", "b": None, "Signature": "x"}, ("AccessKey", "b"), KEY)
    known.add(SEND, {"AccessKey": "alice", "b": "t"}, ("AccessKey", "b"), KEY)
    assert known.kinds == {}
