"""The client: Ok, Failed or Unknown, always soon; shared connections; pushes; nothing left behind."""

import asyncio
import itertools
import socket
from pathlib import Path
from typing import Any

import pytest

import keelmq.remoting.client
from keelmq.remoting.client import UNACKNOWLEDGED_MS, RemotingClient
from keelmq.remoting.command import decode, encode, request_command, response_frame
from keelmq.remoting.operation import Call, Empty, Failed, Ok, OperationTable, Unknown, Wire
from keelmq.remoting.operations.controller import (
    GET_NEXT_BROKER_ID,
    GET_REPLICA_INFO,
    NOTIFY_BROKER_ROLE_CHANGED,
    BrokerNameRequest,
    BrokerSetRequest,
    MasterInfo,
    NotifyBrokerRoleChangedRequest,
)
from keelmq.remoting.servers.tcp import TcpServer
from tests.support.ports import free_port
from tests.support.reach_in import socket_of
from tests.support.server_parts import address_of, server, until

RPC_SEND_TO_CHANNEL_FAILED = -1004
FRAMES = Path(__file__).parents[3] / "fixtures" / "frames"


def ask(name: str) -> BrokerSetRequest:
    return BrokerSetRequest(cluster_name="c", broker_name=name)


async def test_outcomes() -> None:
    async with server() as open_server:
        client, address = RemotingClient(), address_of(open_server)
        outcome = await client.call(address, GET_NEXT_BROKER_ID, ask("b"))
        assert isinstance(outcome, Ok) and outcome.header.next_broker_id == 3
        refused = await client.call(address, GET_NEXT_BROKER_ID, ask("refuse"))
        assert isinstance(refused, Failed) and (refused.code, refused.remark) == (2010, "register first")
        late = await client.call(address, GET_NEXT_BROKER_ID, ask("wait"), timeout_ms=30)
        assert isinstance(late, Unknown)
        good = await client.call(address, GET_REPLICA_INFO, BrokerNameRequest(broker_name=""), good=(1,))
        assert isinstance(good, Ok) and good.code == 1
        assert open_server.connection_count == 1
        await client.close()
    assert len(asyncio.all_tasks()) == 1


async def test_an_answer_that_cannot_be_read_is_unknown() -> None:
    async with server() as open_server:
        client = RemotingClient()
        # 1012 answers without the fields that a stricter response model wants
        operation = type(GET_NEXT_BROKER_ID)(1004, "odd", BrokerNameRequest, GET_NEXT_BROKER_ID.response)
        outcome = await client.call(address_of(open_server), operation, BrokerNameRequest(broker_name="b"))
        assert isinstance(outcome, Unknown) and "nextBrokerId is missing" in outcome.remark
        await client.close()


def running(of: TcpServer) -> int:
    """How many requests the server is carrying out."""
    return sum(each.in_flight for each in of.connections)


async def test_nobody_listens() -> None:
    client = RemotingClient()
    for address in (f"127.0.0.1:{free_port()}", "no-port", "host:99999"):
        outcome = await client.call(address, GET_NEXT_BROKER_ID, ask("b"))
        assert isinstance(outcome, Failed) and outcome.code == RPC_SEND_TO_CHANNEL_FAILED
        assert not await client.oneway(address, GET_NEXT_BROKER_ID, ask("b"))
    await client.close()


async def test_concurrent_calls_share_one_connection() -> None:
    async with server() as open_server:
        client, address = RemotingClient(), address_of(open_server)
        calls = (client.call(address, GET_NEXT_BROKER_ID, ask(f"b{n}")) for n in range(50))
        outcomes = await asyncio.gather(*calls)
        assert [o.header.broker_name for o in outcomes if isinstance(o, Ok)] == [f"b{n}" for n in range(50)]
        assert open_server.connection_count == 1
        await client.close()


async def test_a_connection_is_opened_before_the_first_call() -> None:
    async with server() as open_server:
        client, address = RemotingClient(), address_of(open_server)
        client.connect_soon(address)
        client.connect_soon(address)
        await until(lambda: open_server.connection_count == 1)
        await until(lambda: len(client.connections) == 1)
        client.connect_soon(address)
        assert isinstance(await client.call(address, GET_NEXT_BROKER_ID, ask("b")), Ok)
        assert open_server.connection_count == 1
        nobody = f"127.0.0.1:{free_port()}"
        client.connect_soon(nobody)
        refused = await client.call(nobody, GET_NEXT_BROKER_ID, ask("b"))
        assert isinstance(refused, Failed) and "Connection refused" in refused.remark
        client.connect_soon(nobody)
        await client.close()
        client.connect_soon(address)
    assert len(asyncio.all_tasks()) == 1


async def test_a_lost_connection_settles_every_call_at_once() -> None:
    lost: list[str] = []
    async with server() as open_server:
        client, address = RemotingClient(on_closed=lost.append), address_of(open_server)
        calls = [
            asyncio.create_task(client.call(address, GET_NEXT_BROKER_ID, ask("wait"), timeout_ms=60_000))
            for _ in range(3)
        ]
        await until(lambda: running(open_server) == 3)
        await open_server.close()
        async with asyncio.timeout(1):
            assert all(isinstance(outcome, Unknown) for outcome in await asyncio.gather(*calls))
        assert lost == [address]
        again = await client.call(address, GET_NEXT_BROKER_ID, ask("b"))
        assert isinstance(again, Failed)
        await client.close()


async def test_closing_the_client_ends_its_calls() -> None:
    async with server() as open_server:
        client = RemotingClient()
        call = asyncio.create_task(
            client.call(address_of(open_server), GET_NEXT_BROKER_ID, ask("wait"), timeout_ms=60_000)
        )
        await until(lambda: running(open_server) == 1)
        await client.close()
        assert isinstance(await call, Unknown)
        outcome = await client.call(address_of(open_server), GET_NEXT_BROKER_ID, ask("b"))
        assert isinstance(outcome, Failed) and outcome.remark == "client is closed"


async def test_a_cancelled_call_leaves_no_entry() -> None:
    async with server() as open_server:
        client = RemotingClient()
        call = asyncio.create_task(client.call(address_of(open_server), GET_NEXT_BROKER_ID, ask("wait")))
        await until(lambda: running(open_server) == 1)
        (connection,) = client.connections
        assert len(connection.pending) == 1
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert connection.pending == {}
        await client.close()


async def test_time_to_connect_counts() -> None:
    """A listener whose queue is full does not answer the handshake: no connection, surely not sent."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        client = RemotingClient(connect_timeout_ms=40)
        address = "{}:{}".format(*full.getsockname())
        outcomes = await asyncio.gather(
            client.call(address, GET_NEXT_BROKER_ID, ask("b"), timeout_ms=20),
            client.call(address, GET_NEXT_BROKER_ID, ask("b"), timeout_ms=2000),
        )
        assert all(isinstance(o, Failed) and o.code == RPC_SEND_TO_CHANNEL_FAILED for o in outcomes)
        await client.close()
        for filler in fillers:
            filler.close()


async def test_pushed_requests_are_served() -> None:
    seen: list[Any] = []

    async def role_changed(request: Wire, call: Call) -> None:
        seen.append((request, call.peer.address))

    pushes = OperationTable()
    pushes.bind(NOTIFY_BROKER_ROLE_CHANGED, role_changed)
    async with server() as open_server:
        client, address = RemotingClient(pushes), address_of(open_server)
        await client.call(address, GET_NEXT_BROKER_ID, ask("b"))
        (served,) = open_server.connections
        push = NotifyBrokerRoleChangedRequest(master_epoch=4, broker_name="b")
        assert served.send(encode(request_command(NOTIFY_BROKER_ROLE_CHANGED, push)))
        await until(lambda: seen == [(push, address)])
        await client.close()


async def test_go_away_is_repeated_once_on_a_new_connection() -> None:
    opaques: list[int] = []

    async def leaving(_: Wire, call: Call) -> None:
        opaques.append(call.opaque)
        code = 1500 if len(opaques) != 2 else 0
        call.peer.send(response_frame(call.opaque, code, "please go away"))

    of = OperationTable()
    of.bind(GET_REPLICA_INFO, leaving)
    async with server(of) as open_server:
        client, address = RemotingClient(), address_of(open_server)
        header = BrokerNameRequest(broker_name="b")
        assert await client.call(address, GET_REPLICA_INFO, header) == Ok(MasterInfo())
        assert len(set(opaques)) == 2
        assert open_server.connection_count == 2
        twice = await client.call(address, GET_REPLICA_INFO, header)
        assert isinstance(twice, Failed) and twice.code == 1500
        await client.close()


async def test_silent_connections_are_dropped_when_asked_to() -> None:
    async with server() as open_server:
        client, address = RemotingClient(drop_silent_ms=20), address_of(open_server)
        assert isinstance(await client.call(address, GET_NEXT_BROKER_ID, ask("b")), Ok)
        assert isinstance(await client.call(address, GET_NEXT_BROKER_ID, ask("wait"), timeout_ms=30), Unknown)
        await until(lambda: open_server.connection_count == 0)
        await client.close()


async def test_a_late_answer_is_not_given_to_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remoting pitfall 14: what RocketMQ 5.1.4 answered to a 1012 of this number, when our call is over."""
    captured = (FRAMES / "1012-get-next-broker-id-broker-2.resp.bin").read_bytes()
    number = decode(captured[4:]).opaque
    monkeypatch.setattr(keelmq.remoting.client, "_opaques", itertools.count(number))
    async with server() as open_server:
        client, address = RemotingClient(), address_of(open_server)
        assert isinstance(await client.call(address, GET_NEXT_BROKER_ID, ask("wait"), timeout_ms=30), Unknown)
        newer = asyncio.create_task(client.call(address, GET_NEXT_BROKER_ID, ask("wait"), timeout_ms=60_000))
        (connection,) = client.connections
        await until(lambda: list(connection.pending) == [number + 1])
        (served,) = open_server.connections
        before = connection.activity
        served.send(captured)
        await until(lambda: connection.activity > before)
        assert list(connection.pending) == [number + 1] and not newer.done()
        served.send(captured.replace(b'"opaque":%d,' % number, b'"opaque":%d,' % (number + 1)))
        outcome = await newer
        assert isinstance(outcome, Ok) and outcome.header.next_broker_id == 2
        await client.close()


async def test_numbers_begin_again_and_none_is_awaited_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remoting pitfall 14: after 2^31 - 1, what RocketMQ's counter wraps at, comes 0; not in any time-out."""
    last = 2**31 - 1
    async with server() as open_server:
        client, address = RemotingClient(), address_of(open_server)
        calls = []
        for begin, numbers in ((last, [last]), (last, [last, 0]), (last, [last, 0, 1])):
            monkeypatch.setattr(keelmq.remoting.client, "_opaques", itertools.count(begin))
            call = client.call(address, GET_NEXT_BROKER_ID, ask("wait"), timeout_ms=60_000)
            calls.append(asyncio.create_task(call))
            await until(lambda numbers=numbers: _awaited(client) == numbers)  # type: ignore[misc]
        await client.close()
        assert all(isinstance(outcome, Unknown) for outcome in await asyncio.gather(*calls))


def _awaited(client: RemotingClient) -> list[int]:
    return [number for connection in client.connections for number in connection.pending]


async def test_oneway_is_never_answered() -> None:
    async with server() as open_server:
        client, address = RemotingClient(), address_of(open_server)
        assert await client.oneway(address, GET_NEXT_BROKER_ID, Empty())
        assert await client.send(address, encode(request_command(GET_NEXT_BROKER_ID, ask("b"), oneway=True)))
        (connection,) = client.connections
        assert isinstance(await client.call(address, GET_NEXT_BROKER_ID, ask("b")), Ok)
        assert connection.activity == 4  # three writes, one read
        await client.close()


async def test_a_name_is_resolved_anew_for_every_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod comes back with another address."""
    async with server() as open_server:
        port = open_server.address[1]
        real, names = socket.getaddrinfo, {"pod-0": "127.0.0.2"}

        def fake(host: str, *args: Any, **options: Any) -> Any:
            return real(names.get(host, host), *args, **options)

        monkeypatch.setattr(socket, "getaddrinfo", fake)
        client = RemotingClient()
        old = await client.call(f"pod-0:{port}", GET_NEXT_BROKER_ID, ask("b"))
        assert isinstance(old, Failed) and "cannot connect" in old.remark
        names["pod-0"] = "127.0.0.1"
        assert isinstance(await client.call(f"pod-0:{port}", GET_NEXT_BROKER_ID, ask("b")), Ok)
        await client.close()


@pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux can bound the silence of a link"
)
async def test_a_machine_that_vanished_is_given_up_in_seconds() -> None:
    """Heartbeats have no answer whose absence would tell; tests/deploy cuts a real link."""
    async with server() as open_server:
        client, address = RemotingClient(), address_of(open_server)
        assert await client.oneway(address, GET_NEXT_BROKER_ID, ask("b"))
        (connection,) = client.connections
        sock = socket_of(connection)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNACKNOWLEDGED_MS
        await client.close()
