"""Registration with name servers: all of them, at once when asked, again when a lost one comes back."""

import asyncio

import pytest

from broker.naming.route_registration import Registrations, RouteRegistration
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, OperationTable
from keelmq.remoting.operations.route import (
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    UnregisterBrokerRequest,
)
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.runtime.tasks import TaskSet

GONE = UnregisterBrokerRequest(broker_name="b", broker_addr="me:1", cluster_name="C", broker_id=0)


class FakeNameServer:
    def __init__(self, port: int = 0) -> None:
        self.seen: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self.refuse = False
        table = OperationTable()
        table.bind(REGISTER_BROKER, self._register)
        table.bind(UNREGISTER_BROKER, self._unregister)
        self.listener = TcpServer(table, host="127.0.0.1", port=port, name="name server")

    async def start(self) -> str:
        await self.listener.start()
        return "{}:{}".format(*self.listener.address)

    async def _register(self, request: RegisterBrokerRequest, call: Call) -> RegisterBrokerResponse:
        if self.refuse:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "stateVersion is older")
        self.seen.put_nowait((request.broker_id, call.raw_body))
        return RegisterBrokerResponse(master_addr="m:1", ha_server_addr="m:2")

    async def _unregister(self, request: UnregisterBrokerRequest, call: Call) -> Empty:
        self.seen.put_nowait((-1, b""))
        return Empty()


def announced(broker_id: int) -> Registrations:
    header = RegisterBrokerRequest(broker_name="b", broker_addr="me:1", cluster_name="C", broker_id=broker_id)
    return Registrations([(header, b"{}")])


async def master() -> Registrations:
    return announced(0)


async def test_every_name_server_hears_every_change_and_the_end() -> None:
    servers = [FakeNameServer(), FakeNameServer()]
    addresses = [await server.start() for server in servers]
    now: Registrations | None = None

    async def present() -> Registrations | None:
        return now

    answers: list[RegisterBrokerResponse] = []
    client, tasks = RemotingClient(), TaskSet()
    routes = RouteRegistration(
        client,
        addresses,
        period_ms=60_000,
        timeout_ms=1_000,
        registration=present,
        on_answer=answers.append,
    )
    routes.start(tasks)
    async with asyncio.timeout(5):
        await routes.unregister(GONE)  # nobody knows us yet: nothing is said
        for broker_id in (2, 0):
            now = announced(broker_id)
            routes.trigger()
            for server in servers:
                assert await server.seen.get() == (broker_id, b"{}")
        await routes.unregister(GONE)
        for server in servers:
            assert (await server.seen.get())[0] == -1
    assert answers[0].ha_server_addr == "m:2"
    await tasks.stop()
    await client.close()
    for server in servers:
        assert server.seen.empty()
        await server.listener.close()


async def test_a_restarted_name_server_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.naming.route_registration.UNREGISTERED_PERIOD_MS", 20)
    server = FakeNameServer()
    address = await server.start()
    tasks = TaskSet()
    routes: RouteRegistration
    client = RemotingClient(on_closed=lambda lost: routes.connection_lost(lost))
    routes = RouteRegistration(
        client,
        [address],
        period_ms=60_000,
        timeout_ms=1_000,
        registration=master,
        on_answer=lambda answer: None,
    )
    routes.start(tasks)
    async with asyncio.timeout(5):
        await server.seen.get()
        await server.listener.close()
        again = FakeNameServer(int(address.rpartition(":")[2]))
        await again.start()
        await again.seen.get()
    await tasks.stop()
    await client.close()
    await again.listener.close()


async def test_a_refusal_is_logged_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("broker.naming.route_registration.UNREGISTERED_PERIOD_MS", 10)
    server = FakeNameServer()
    server.refuse = True
    address = await server.start()
    tries, enough = 0, asyncio.Event()

    async def registration() -> Registrations:
        nonlocal tries
        tries += 1
        if tries == 5:
            server.refuse = False
            enough.set()
        return announced(0)

    client, tasks = RemotingClient(), TaskSet()
    RouteRegistration(
        client,
        [address],
        period_ms=60_000,
        timeout_ms=1_000,
        registration=registration,
        on_answer=lambda answer: None,
    ).start(tasks)
    async with asyncio.timeout(5):
        await enough.wait()
        await server.seen.get()
    assert caplog.text.count("does not accept the registration") == 1
    assert "stateVersion is older" in caplog.text
    await tasks.stop()
    await client.close()
    await server.listener.close()


async def test_who_closes_instead_of_answering_is_not_asked_again_at_once() -> None:
    """An HTTP port in namesrvAddr, or a load balancer without servers: it was a loop without a pause."""
    asked, more = 0, asyncio.Event()

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            more.set()
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(closes, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    tasks = TaskSet()
    client = RemotingClient(on_closed=lambda lost: routes.connection_lost(lost))
    routes = RouteRegistration(
        client,
        [f"{host}:{port}"],
        period_ms=60_000,
        timeout_ms=1_000,
        registration=master,
        on_answer=lambda answer: None,
    )
    begun = asyncio.get_running_loop().time()
    routes.start(tasks)
    async with asyncio.timeout(5):
        await more.wait()
    assert asyncio.get_running_loop().time() - begun > 0.9
    await tasks.stop()
    await client.close()
    server.close()
    await server.wait_closed()
