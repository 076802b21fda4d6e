"""ServerAccess at a real port: who is served, and what the others are told."""

from collections.abc import Mapping
from typing import Any

import pytest

from broker.naming.vip_port import without_pulls
from keelmq.remoting.command import RemotingCommand, response_frame
from keelmq.remoting.operation import Call, CommandError, Empty, FastPath, Operation, OperationTable, Peer
from keelmq.security.core.signature import signed
from keelmq.security.server_access import ServerAccess, ip_of
from tests.support.server_parts import FastPathCommand, FastPathFields, raw_peer, server
from tests.unit.keelmq.security.parts import NOW_MS, SECRETS, control, tables

VIEW, END_TRANSACTION, SEND, PULL, SEND_V2 = 33, 37, 10, 11, 310
FIELDS: Mapping[int, dict[str, str]] = {
    SEND: {"topic": "t", "producerGroup": "p", "e": "0"},
    PULL: {"topic": "t", "consumerGroup": "g", "e": "0"},
    SEND_V2: {"a": "p", "b": "t", "e": "0"},
}
RIGHTS = ("Topic:t Pub,Sub Allow", "Group:g Sub Allow")


class Guarded:
    """A table with three data-path codes and one coroutine handler, which looks its topic up."""

    def __init__(self) -> None:
        self.served: list[int] = []
        self.found_topic = "t"
        self.access = ServerAccess(control(tables(*RIGHTS)), clock=lambda: NOW_MS)
        self.table = OperationTable()
        self.table.access = self.access
        for code in FIELDS:
            self.table.bind_fast_path(code, FastPath(FastPathCommand, _lenient, self._fast))
        self.table.bind(Operation(END_TRANSACTION, "END_TRANSACTION", Empty, Empty), self._look_up)

    def _fast(self, command: FastPathCommand, body: bytes, peer: Peer) -> bytes:
        self.served.append(command.code)
        return response_frame(command.opaque, 0, "", body=body)

    async def _look_up(self, _: Empty, call: Call) -> Empty:
        call.caller.check_topic(self.found_topic)
        self.served.append(END_TRANSACTION)
        return Empty()


def _lenient(code: int, opaque: int, flag: int, fields: Mapping[str, str]) -> FastPathCommand:
    return FastPathCommand(code, opaque, FastPathFields(0, fields.get("b", "")), flag)


def command(code: int, fields: Mapping[str, str], *, secret: str | None = None, **more: Any) -> Any:
    """secret None: unsigned."""
    ext = dict(fields) if secret is None else signed("alice", secret, fields, b"body")
    return RemotingCommand(code, 5, ext_fields=ext, body=b"body", **more)


@pytest.mark.parametrize("code", FIELDS)
async def test_data_path_codes_are_checked_like_all_others(code: int) -> None:
    guarded, right = Guarded(), SECRETS["alice"]
    other = FIELDS[code] | {"b" if code == SEND_V2 else "topic": "other"}
    async with server(guarded.table) as open_server, raw_peer(open_server) as peer:
        answer = await peer.ask(command(code, FIELDS[code]))
        assert (answer.code, answer.remark) == (16, "username cannot be null.")
        answer = await peer.ask(command(code, FIELDS[code], secret="wrong"))
        assert (answer.code, answer.remark) == (16, "check signature failed.")
        answer = await peer.ask(command(code, other, secret=right))
        assert answer.code == 16
        assert answer.remark == (
            "User:alice has no permission to access Topic:other from 127.0.0.1, no matched policies."
        )
        assert guarded.served == []
        answer = await peer.ask(command(code, FIELDS[code], secret=right))
        assert (answer.code, answer.body) == (0, b"body")
    assert guarded.served == [code]
    assert guarded.access.refusals == {"unsigned": 1, "signature": 1, "rights": 1}


async def test_a_refused_oneway_request_gets_no_answer_and_has_no_effect() -> None:
    guarded = Guarded()
    async with server(guarded.table) as open_server, raw_peer(open_server) as peer:
        peer.write(command(SEND, FIELDS[SEND], flag=2))
        answer = await peer.ask(command(SEND, FIELDS[SEND], secret=SECRETS["alice"]))
        assert answer.code == 0
    assert guarded.served == [SEND]
    assert guarded.access.refusals == {"unsigned": 1}


async def test_a_topic_that_the_handler_finds_is_checked() -> None:
    guarded = Guarded()
    fields = {"commitLogOffset": "7", "producerGroup": "p"}
    async with server(guarded.table) as open_server, raw_peer(open_server) as peer:
        answer = await peer.ask(command(END_TRANSACTION, fields, secret=SECRETS["alice"]))
        assert answer.code == 0
        guarded.found_topic = "other"
        answer = await peer.ask(command(END_TRANSACTION, fields, secret=SECRETS["alice"]))
        assert answer.code == 16
        assert "Topic:other" in (answer.remark or "")
    assert guarded.served == [END_TRANSACTION]
    assert guarded.access.refusals == {"rights": 1}


class _Peer:
    connection_id, address, is_tls = 1, "10.0.0.7:5000", False

    def __init__(self, *certificate_names: str) -> None:
        self.certificate_names = certificate_names


def test_the_caller_has_the_name_of_the_user() -> None:
    caller = Guarded().access.admit(command(SEND, FIELDS[SEND], secret=SECRETS["alice"]), _Peer())  # type: ignore[arg-type]
    assert caller.user == "alice"


def test_a_member_is_known_by_its_certificate() -> None:
    made = control(tables(), member_certificates=frozenset({"broker-a"}), members_required=True)
    access = ServerAccess(made, clock=lambda: NOW_MS)
    request = command(1003, {"brokerName": "b"})
    assert access.admit(request, _Peer("broker-a")).user == "broker-a"  # type: ignore[arg-type]
    with pytest.raises(CommandError):
        access.admit(request, _Peer("broker-x"))  # type: ignore[arg-type]


def test_the_fast_port_of_a_broker_asks_the_same_access() -> None:
    guarded = Guarded()
    assert without_pulls(guarded.table).access is guarded.access


def test_an_unsigned_request_raises_the_code_of_acl_2() -> None:
    with pytest.raises(CommandError) as raised:
        Guarded().access.admit(command(VIEW, {}), _Peer())  # type: ignore[arg-type]
    assert raised.value.code == 16


@pytest.mark.parametrize(
    ("address", "ip"),
    [("10.0.0.7:1", "10.0.0.7"), ("[::1]:1", "::1"), ("fe80::1%eth0:1", "fe80::1"), ("http", "http")],
)
def test_ip_of(address: str, ip: str) -> None:
    assert ip_of(address) == ip
