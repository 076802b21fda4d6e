"""Registration with name servers: all of them, at once when asked, again when a lost one comes back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from broker.core.readiness import NOT_ASKED
from broker.naming.route_registration import UNRENEWED_MS, Registrations, RouteRegistration
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, OperationTable, Reply
from keelmq.remoting.operations.namesrv_admin import GET_NAMESRV_CONFIG
from keelmq.remoting.operations.route import (
    GET_BROKER_MEMBER_GROUP,
    QUERY_DATA_VERSION,
    REGISTER_BROKER,
    UNREGISTER_BROKER,
    BrokerMemberGroup,
    BrokerMemberGroupBody,
    BrokerMemberGroupRequest,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    UnregisterBrokerRequest,
)
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.runtime.tasks import TaskSet
from tests.unit.broker.ha.test_ha_service import until

GONE = UnregisterBrokerRequest(broker_name="b", broker_addr="me:1", cluster_name="C", broker_id=0)


class FakeNameServer:
    def __init__(self, port: int = 0) -> None:
        self.seen: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self.refuse = False
        self.settings: bytes | None = None
        """The answer to 319; None: it is refused."""
        self.asked: list[int] = []
        self.silent: set[int] = set()
        """Requests that get no answer."""
        table = OperationTable()
        table.bind(REGISTER_BROKER, self._register)
        table.bind(UNREGISTER_BROKER, self._unregister)
        table.bind(QUERY_DATA_VERSION, self._version)
        table.bind(GET_NAMESRV_CONFIG, self._settings)
        table.bind(GET_BROKER_MEMBER_GROUP, self._members)
        self.listener = TcpServer(table, host="127.0.0.1", port=port, name="name server")

    async def start(self) -> str:
        await self.listener.start()
        return "{}:{}".format(*self.listener.address)

    async def _register(self, request: RegisterBrokerRequest, call: Call) -> RegisterBrokerResponse:
        if self.refuse:
            raise CommandError(ResponseCode.SYSTEM_ERROR, "stateVersion is older")
        self.seen.put_nowait((request.broker_id, call.raw_body))
        return RegisterBrokerResponse(master_addr="m:1", ha_server_addr="m:2")

    async def _version(self, request: QueryDataVersionRequest, call: Call) -> QueryDataVersionResponse:
        self.asked.append(322)
        await self._answer(322)
        return QueryDataVersionResponse(changed=True)

    async def _answer(self, code: int) -> None:
        if code in self.silent:
            await asyncio.Event().wait()

    async def _settings(self, request: Empty, call: Call) -> Reply:
        self.asked.append(319)
        await self._answer(319)
        if self.settings is None:
            raise CommandError(ResponseCode.NO_PERMISSION, "not for brokers")
        return Reply(body=self.settings)

    async def _members(self, request: BrokerMemberGroupRequest, call: Call) -> Reply:
        found = {0: "m:1", 1: "s:1"} if request.broker_name == "b" else {}
        group = BrokerMemberGroup(cluster="C", broker_name=request.broker_name, broker_addrs=found)
        return Reply(body=BrokerMemberGroupBody(broker_member_group=group))

    async def _unregister(self, request: UnregisterBrokerRequest, call: Call) -> Empty:
        self.seen.put_nowait((-1, b""))
        return Empty()


def announced(broker_id: int) -> Registrations:
    header = RegisterBrokerRequest(broker_name="b", broker_addr="me:1", cluster_name="C", broker_id=broker_id)
    return Registrations([(header, b"{}")])


async def master() -> Registrations:
    return announced(0)


@asynccontextmanager
async def registering(
    registration: Callable[[], Awaitable[Registrations | None]],
    *servers: FakeNameServer,
    timeout_ms: int = 1_000,
    on_answer: Callable[[RegisterBrokerResponse], None] = lambda answer: None,
) -> AsyncIterator[RouteRegistration]:
    client, tasks = RemotingClient(on_closed=lambda lost: routes.connection_lost(lost)), TaskSet()
    routes = RouteRegistration(
        client,
        [await server.start() for server in servers],
        period_ms=60_000,
        timeout_ms=timeout_ms,
        registration=registration,
        on_answer=on_answer,
    )
    routes.start(tasks)
    async with asyncio.timeout(10):
        yield routes
    await tasks.stop()
    await client.close()
    for server in servers:
        await server.listener.close()


async def test_every_name_server_hears_every_change_and_the_end() -> None:
    servers = [FakeNameServer(), FakeNameServer()]
    now: Registrations | None = None

    async def present() -> Registrations | None:
        return now

    answers: list[RegisterBrokerResponse] = []
    async with registering(present, *servers, on_answer=answers.append) as routes:
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
    assert all(server.seen.empty() for server in servers)


async def test_a_restarted_name_server_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.naming.route_registration.UNREGISTERED_PERIOD_MS", 20)
    server = FakeNameServer()
    async with registering(master, server):
        await server.seen.get()
        port = server.listener.address[1]
        await server.listener.close()
        again = FakeNameServer(port)
        await again.start()
        await again.seen.get()
    await again.listener.close()


async def test_a_refusal_is_logged_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("broker.naming.route_registration.UNREGISTERED_PERIOD_MS", 10)
    server = FakeNameServer()
    server.refuse = True
    tries, enough = 0, asyncio.Event()

    async def registration() -> Registrations:
        nonlocal tries
        tries += 1
        if tries == 5:
            server.refuse = False
            enough.set()
        return announced(0)

    async with registering(registration, server):
        await enough.wait()
        await server.seen.get()
    assert caplog.text.count("does not have this broker") == 1
    assert "stateVersion is older" in caplog.text


async def test_a_broker_that_does_not_renew_its_registration_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The name server has dropped it by then, and the broker said that it was registered."""
    server = FakeNameServer()
    now_ms = 1_000_000
    monkeypatch.setattr("broker.naming.route_registration.now_ms", lambda: now_ms)
    present: Registrations | None = announced(0)
    asked = asyncio.Event()

    async def registration() -> Registrations | None:
        asked.set()
        return present

    async def another_round() -> None:
        await asyncio.sleep(0)
        asked.clear()
        routes.trigger()
        await asked.wait()
        await asyncio.sleep(0)

    async with registering(registration, server) as routes:
        await server.seen.get()
        await until(lambda: bool(routes.registered))
        present = None
        now_ms += UNRENEWED_MS - 1
        await another_round()
        (address,) = routes.registered
        now_ms += 1
        for _ in range(3):
            await another_round()
        assert routes.registered == () and "role is not settled" in routes.problems[address]
        assert caplog.text.count("does not have this broker") == 1
        present = announced(0)
        await another_round()
        await until(lambda: bool(routes.registered))


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


def split(*bodies: bytes, broker_id: int = 0, is_current: Callable[[], bool] = lambda: True) -> Registrations:
    header = announced(broker_id).requests[0][0]
    return Registrations([(header, body) for body in bodies], is_current=is_current)


async def test_parts_are_sent_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """And from the first again, after one was refused."""
    monkeypatch.setattr("broker.naming.route_registration.UNREGISTERED_PERIOD_MS", 20)
    server = FakeNameServer()

    async def registration() -> Registrations:
        return split(b"1", b"2", b"3", is_current=second_is_refused)

    asked = 0

    def second_is_refused() -> bool:
        nonlocal asked
        asked += 1
        server.refuse = asked == 2
        return True

    async with registering(registration, server) as routes:
        assert [(await server.seen.get())[1] for _ in range(4)] == [b"1", b"1", b"2", b"3"]
        await until(lambda: routes.registered != ())
        assert server.asked == [322, 319], "once, not for each round"


async def test_another_role_ends_a_round() -> None:
    """The rest of the parts would be registered with the id of the old role."""
    server, broker_id, looks = FakeNameServer(), 0, 0

    async def registration() -> Registrations:
        registered = broker_id
        return split(b"1", b"2", broker_id=registered, is_current=lambda: is_current(registered))

    def is_current(registered: int) -> bool:
        nonlocal broker_id, looks
        looks += 1
        if looks == 2:
            broker_id = 2
        return registered == broker_id

    async with registering(registration, server) as routes:
        assert [await server.seen.get() for _ in range(3)] == [(0, b"1"), (2, b"1"), (2, b"2")]
        await until(lambda: routes.registered != ())


async def test_a_name_server_that_would_delete_gets_no_part() -> None:
    """Each part would remove the topics of all others. One that hides its setting has the default."""
    deletes, keeps, hides = FakeNameServer(), FakeNameServer(), FakeNameServer()
    deletes.settings = b"listenPort=1\ndeleteTopicWithBrokerRegistration=true\n"
    keeps.settings = b"deleteTopicWithBrokerRegistration=false\n"

    async def registration() -> Registrations:
        return split(b"1", b"2")

    async with registering(registration, deletes, keeps, hides) as routes:
        await until(lambda: len(routes.registered) == 2 and bool(routes.no_split))
        (address,) = routes.problems
        assert "deleteTopicWithBrokerRegistration=true" in routes.problems[address]
        assert address in routes.no_split and deletes.seen.empty()
        deletes.settings = b""
        await deletes.listener.close()
        deletes.listener = FakeNameServer(int(address.rpartition(":")[2])).listener
        await deletes.listener.start()
        await until(lambda: len(routes.registered) == 3)
        assert routes.no_split == ""


@pytest.mark.parametrize("silent", [322, 319])
async def test_a_name_server_that_does_not_tell_its_setting_in_time_gets_no_part(
    monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    """It may be one that would delete. It is asked again."""
    monkeypatch.setattr("broker.naming.route_registration.UNREGISTERED_PERIOD_MS", 20)
    slow = FakeNameServer()
    slow.silent, slow.settings = {silent}, b"deleteTopicWithBrokerRegistration=true\n"

    async def registration() -> Registrations:
        return split(b"1", b"2")

    async with registering(registration, slow, timeout_ms=50) as routes:
        await until(lambda: slow.asked.count(silent) > 1)
        assert slow.seen.empty() and "does not tell" in "".join(routes.problems.values())
        slow.silent.clear()
        await until(lambda: bool(routes.no_split))
        assert slow.seen.empty()


async def test_the_setting_is_known_before_the_topics_do_not_fit() -> None:
    """So that the topic that does not fit is refused, instead of registered nowhere."""
    server = FakeNameServer()
    server.settings = b"deleteTopicWithBrokerRegistration=true\n"

    async def registration() -> Registrations:
        return Registrations(announced(0).requests, near_split=True)

    async with registering(registration, server) as routes:
        assert (await server.seen.get())[1] == b"{}"
        await until(lambda: routes.registered != ())
        assert "deleteTopicWithBrokerRegistration" in routes.no_split


async def test_why_this_broker_is_not_registered() -> None:
    refuses, gone = FakeNameServer(), FakeNameServer()
    refuses.refuse = True
    client, tasks = RemotingClient(), TaskSet()
    addresses = [await refuses.start(), await gone.start()]
    await gone.listener.close()
    routes = RouteRegistration(
        client,
        addresses,
        period_ms=60_000,
        timeout_ms=1_000,
        registration=master,
        on_answer=lambda answer: None,
    )
    assert list(routes.problems) == addresses and set(routes.problems.values()) == {NOT_ASKED}
    routes.start(tasks)
    async with asyncio.timeout(5):
        await until(lambda: NOT_ASKED not in routes.problems.values())
    assert "stateVersion is older" in routes.problems[addresses[0]]
    assert "refused" in routes.problems[addresses[1]] and routes.registered == ()
    refuses.refuse = False
    routes.trigger()
    async with asyncio.timeout(5):
        await until(lambda: routes.registered == (addresses[0],))
    assert list(routes.problems) == [addresses[1]]
    await tasks.stop()
    await client.close()
    await refuses.listener.close()


async def test_the_members_of_a_group() -> None:
    """From a name server that is registered with; a damaged log without controllers is healed from them."""
    server = FakeNameServer()

    async def registration() -> Registrations:
        return split(b"1")

    async with registering(registration, server) as routes:
        await until(lambda: routes.registered != ())
        assert await routes.members("C", "b") == {0: "m:1", 1: "s:1"}
        assert await routes.members("C", "other") == {}
