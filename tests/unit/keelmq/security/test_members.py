"""Members of a cluster among themselves: what they sign, what they push, and what both ends log if clocks or
credentials differ."""

import logging
from typing import Any

import pytest

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import RequestCode as Code
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import encode, request_command
from keelmq.remoting.operation import Call, Empty, Failed, Ok, OperationTable, Reply
from keelmq.remoting.operations.controller import (
    GET_METADATA_INFO,
    NOTIFY_BROKER_ROLE_CHANGED,
    NotifyBrokerRoleChangedRequest,
)
from keelmq.remoting.operations.route import BROKER_HEARTBEAT, BrokerHeartbeatRequest
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.runtime.clock import now_ms as monotonic_ms
from keelmq.security import signer as signer_module
from keelmq.security.core.member_proof import MemberProofs
from keelmq.security.refusal_log import PERIOD_MS, RefusalLog
from keelmq.security.server_access import ServerAccess
from keelmq.security.signer import Credentials, Signer, signer_of
from tests.support.server_parts import raw_peer, server, until
from tests.unit.keelmq.security.parts import NOW_MS, SECRETS, control, tables

INNER = Credentials("inner", SECRETS["inner"])
HEARTBEAT = BrokerHeartbeatRequest(cluster_name="c", broker_name="b", broker_addr="10.0.0.7:1", broker_id=1)
SETTINGS: dict[str, Any] = {"members_required": True, "member_users": frozenset({"inner"})}


def access(*, now_ms: int = NOW_MS) -> ServerAccess:
    proofs = MemberProofs(uptime=monotonic_ms)
    return ServerAccess(control(tables(), proofs=proofs, **SETTINGS), clock=lambda: now_ms, proofs=proofs)


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signer_module, "wall_ms", lambda: NOW_MS)


def address_of(of: TcpServer) -> str:
    return "{}:{}".format(*of.address)


class Receiver:
    """Serves heartbeats and 1008."""

    def __init__(self, found: ServerAccess | None) -> None:
        self.served: list[int] = []
        self.users: list[str] = []
        self.table = OperationTable()
        self.table.access = found
        for operation in (BROKER_HEARTBEAT, NOTIFY_BROKER_ROLE_CHANGED, GET_METADATA_INFO):
            self.table.bind(operation, self._serve(operation.code))

    def _serve(self, code: int) -> Any:
        async def serve(header: object, call: Call) -> Reply:
            self.served.append(code)
            self.users.append(call.caller.user)
            return Reply()

        return serve


@pytest.mark.parametrize(
    ("signer", "remark"),
    [
        (None, "username cannot be null."),
        (signer_of(INNER), "the proof of a member is missing"),
        (signer_of(Credentials("inner", "wrong"), proof=True), "check signature failed."),
        (signer_of(Credentials("root", SECRETS["root"]), proof=True), "for members of this cluster only"),
    ],
)
async def test_what_is_no_proof_of_a_member(signer: Signer | None, remark: str) -> None:
    receiver = Receiver(access())
    refused: list[tuple[str, str, str]] = []
    async with server(receiver.table) as open_server:
        address = address_of(open_server)
        client = RemotingClient(signer=signer, on_refused=lambda *told: refused.append(told))
        outcome = await client.call(address, BROKER_HEARTBEAT, HEARTBEAT)
        await client.close()
    assert isinstance(outcome, Failed) and outcome.code == ResponseCode.NO_PERMISSION
    assert remark in outcome.remark
    assert refused == [(address, "brokerHeartbeat", outcome.remark)]
    assert receiver.served == []


async def test_a_member_proves_itself() -> None:
    receiver = Receiver(access())
    async with server(receiver.table) as open_server:
        client = RemotingClient(
            signer=signer_of(INNER, proof=True), on_refused=lambda *told: pytest.fail(str(told))
        )
        for address in (address_of(open_server), f"localhost:{open_server.address[1]}"):
            for _ in range(2):
                outcome = await client.call(address, BROKER_HEARTBEAT, HEARTBEAT)
                assert isinstance(outcome, Ok), outcome
            assert await client.oneway(address, BROKER_HEARTBEAT, HEARTBEAT)
        await until(lambda: len(receiver.users) == 6, "all requests arrive")
        await client.close()
    assert receiver.users == ["inner"] * 6


async def test_a_server_behind_a_translated_address_refuses_one_request() -> None:
    """As behind the address of a Kubernetes service."""
    found = access()
    receiver = Receiver(found)
    async with server(receiver.table) as open_server:
        client = RemotingClient(
            signer=signer_of(INNER, proof=True), on_refused=lambda *told: pytest.fail(str(told))
        )
        address = address_of(open_server)
        outcome = await client.call(address, BROKER_HEARTBEAT, HEARTBEAT)
        assert isinstance(outcome, Ok)
        (connection,) = open_server.connections
        connection.own_address = "10.96.0.1:9878"
        for _ in range(3):
            outcome = await client.call(address, BROKER_HEARTBEAT, HEARTBEAT)
            assert isinstance(outcome, Ok), outcome
        await client.close()
    assert receiver.users == ["inner"] * 4
    assert found.refusals == {"proof": 1}


async def test_a_captured_request_is_for_one_server() -> None:
    """What the first one accepts, the second one refuses."""
    answers = []
    command = request_command(BROKER_HEARTBEAT, HEARTBEAT)
    async with server(Receiver(access()).table) as first, server(Receiver(access()).table) as second:
        signer_of(INNER, proof=True)(command, address_of(first))
        for open_server in (first, second, first):
            async with raw_peer(open_server) as peer:
                answers.append(await peer.ask(command))
    assert [answer.code for answer in answers] == [0, 16, 16]
    assert "another recipient" in (answers[1].remark or "")
    assert "the request was sent before" in (answers[2].remark or "")


async def test_what_a_server_pushes_is_checked_like_what_arrives_at_a_port() -> None:
    """A broker opens the connection, but over plain TCP that does not prove who answers at the address."""
    pushed, at_port = Receiver(access()), Receiver(None)
    async with server(at_port.table) as controller:
        client = RemotingClient(pushed.table)
        outcome = await client.call(address_of(controller), GET_METADATA_INFO, Empty())
        assert isinstance(outcome, Ok), outcome
        (connection,) = controller.connections

        def push(signer: Signer | None) -> bytes:
            header = NotifyBrokerRoleChangedRequest(broker_name="b", master_epoch=1, sync_state_set_epoch=1)
            command = request_command(NOTIFY_BROKER_ROLE_CHANGED, header, oneway=True)
            if signer is not None:
                signer(command, "")
            return encode(command)

        right = push(signer_of(INNER, proof=True))
        for frame in (push(None), push(signer_of(INNER)), right, right):
            connection.send(frame)
        await until(lambda: len(pushed.served) == 1, "the notification arrives")
        assert pushed.table.access is not None
        await until(lambda: sum(pushed.table.access.refusals.values()) == 3, "the others are refused")  # type: ignore[attr-defined]
        await client.close()
    assert pushed.served == [Code.NOTIFY_BROKER_ROLE_CHANGED]


@pytest.mark.parametrize("behind_ms", [31_000, -31_000])
async def test_clocks_that_differ_too_much_are_logged_at_both_ends(
    behind_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    receiver = Receiver(access(now_ms=NOW_MS + behind_ms))
    async with server(receiver.table) as open_server:
        address = address_of(open_server)
        client = RemotingClient(signer=signer_of(INNER, proof=True), on_refused=RefusalLog().refused)
        outcome = await client.call(address, BROKER_HEARTBEAT, HEARTBEAT)
        await client.close()
        other = RemotingClient(signer=signer_of(Credentials("root", SECRETS["root"])))
        assert isinstance(await other.call(address, GET_METADATA_INFO, Empty()), Ok)  # its clock is not known
        await other.close()
    when = "31.0 s ago" if behind_ms > 0 else "31.0 s in the future"
    remark = (
        f"BROKER_HEARTBEAT (904) is refused: the request was sent {when} by the clock of this server, and "
        "30 s is the limit: synchronize the clocks of both machines"
    )
    assert isinstance(outcome, Failed) and outcome.remark == remark
    here, there = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert here.startswith("refused request 904 of 127.0.0.1:") and here.endswith(f": {remark}")
    assert there == f"{address} refuses brokerHeartbeat of this program: {remark}"
    assert receiver.served == [GET_METADATA_INFO.code] and receiver.table.access.refusals == {"proof": 1}  # type: ignore[union-attr]


async def test_clocks_that_begin_to_differ_are_logged_while_all_still_works(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver = Receiver(access(now_ms=NOW_MS + 16_000))
    async with server(receiver.table) as open_server:
        client = RemotingClient(signer=signer_of(INNER, proof=True))
        for _ in range(2):
            outcome = await client.call(address_of(open_server), BROKER_HEARTBEAT, HEARTBEAT)
            assert isinstance(outcome, Ok)
        await client.close()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.endswith(
        "its clock and this one differ by 16.0 s; beyond 30 s its requests are refused, those of a member "
        "from the next start of either on: synchronize the clocks of both machines"
    )


def test_refusals_are_logged_with_advice_and_not_too_often(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0, 1, PERIOD_MS - 1, PERIOD_MS, PERIOD_MS])
    log = RefusalLog(clock=lambda: next(times))
    for _ in range(4):
        log.refused("10.0.0.7:9876", "registerBroker", "check signature failed.")
    log.refused("10.0.0.8:9876", "registerBroker", "some other remark")
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" (and")[0] for line in lines] == [
        "10.0.0.7:9876 refuses registerBroker of this program: check signature failed. "
        "(innerClientAuthenticationCredentials, or the file, must be equal at all members of the cluster)",
    ] * 2 + ["10.0.0.8:9876 refuses registerBroker of this program: some other remark"]
    assert lines[1].endswith("(and 2 more like it before)")
