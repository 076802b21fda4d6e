"""Requests to a master that is lost without a sign: its connections stay open, and no answer comes."""

import asyncio
from typing import Any

import pytest

from broker.clients.proxied_requests import NO_ADDRESS, Sender
from keelmq.client.cluster.routes import RouteError, TopicRoute, make_route
from keelmq.remoting.operation import Ok, Outcome, Unknown
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageResponse
from keelmq.remoting.operations.route import BrokerData, QueueData, TopicRouteData
from keelmq.runtime.clock import now_ms
from proxy.core.limits import Limits
from proxy.core.names import Client
from proxy.server.cluster import Call, Cluster
from proxy.server.guard import Guard
from proxy.server.masters import BrokerRequest
from proxy.server.members import Members
from proxy.server.sending import Sending
from proxy.wire import messaging_pb2 as pb
from tests.unit.proxy.server.parts import TOPIC

OLD, NEW = "10.0.0.1:1", "10.0.0.2:1"
CALL_MS = 3_000
STORED = Ok(SendMessageResponse(msg_id="01", queue_id=0, queue_offset=7), None)
HANDED_ON = Ok(SendMessageResponse(msg_id="01", queue_id=0, queue_offset=7, master_address=NEW), None)


def route_to(master: str) -> TopicRoute:
    queues = QueueData(broker_name="b", read_queue_nums=1, write_queue_nums=1, perm=6)
    broker = BrokerData(cluster="C", broker_name="b", broker_addrs={0: master})
    return make_route(TOPIC.name, TopicRouteData(queue_datas=[queues], broker_datas=[broker]))


class Routes:
    """What name servers say: `master`; None: they do not answer. The cache keeps what they said last."""

    def __init__(self) -> None:
        self.master: str | None = OLD
        self.asked = self.asked_soon = 0
        self.asked_twice = asyncio.Event()
        self._kept = route_to(OLD)

    async def find(self, topic: str, *, borrow: bool = False) -> TopicRoute:
        return self._kept

    async def refresh(self, topic: str, *, borrow: bool = False, rotate: bool = False) -> TopicRoute:
        self.asked += 1
        if self.asked == 2:
            self.asked_twice.set()
        if self.master is None:
            raise RouteError("no name server answered")
        self._kept = route_to(self.master)
        return self._kept

    def refresh_soon(self, topic: str) -> None:
        self.asked_soon += 1

    async def close(self) -> None: ...


class Brokers:
    """OLD answers with `old` once `answers` is set. NEW stores messages."""

    def __init__(self, old: Outcome[Any]) -> None:
        self._old, self.answers = old, asyncio.Event()
        self.sends: list[str] = []

    async def call(self, route: TopicRoute, broker_name: str, request: BrokerRequest) -> Outcome[Any]:
        address = route.master(broker_name)
        assert address is not None
        if request.operation is not SEND_MESSAGE_V2:  # a fact about the topic, or a heartbeat
            return Unknown("not of interest")
        self.sends.append(address)
        if address == NEW:
            return STORED
        try:
            async with asyncio.timeout(request.timeout_ms / 1_000):
                await self.answers.wait()
        except TimeoutError:
            return Unknown("no answer")
        return self._old


async def send(routes: Routes, brokers: Brokers, kind: pb.MessageType = pb.NORMAL) -> tuple[pb.Code, int]:
    """Returns the code of one message, and how long it took."""
    guard = Guard()
    cluster = Cluster(routes, brokers, guard)
    system = pb.SystemProperties(message_id="01", message_type=kind)
    request = pb.SendMessageRequest(messages=[pb.Message(topic=TOPIC, body=b"1", system_properties=system)])
    began_ms = now_ms()
    call = Call(Client("tester"), Sender(NO_ADDRESS), began_ms + CALL_MS)
    answer = await Sending(cluster, guard, Members(cluster), Limits()).send_message(request, call)
    await cluster.close()
    return answer.status.code, now_ms() - began_ms


async def test_a_send_leaves_a_silent_broker_when_another_one_is_master() -> None:
    routes, brokers = Routes(), Brokers(STORED)
    routes.master = NEW
    code, took_ms = await send(routes, brokers)
    assert (code, brokers.sends) == (pb.OK, [OLD, NEW])
    assert took_ms < CALL_MS / 2


async def test_a_slow_master_gets_a_message_once() -> None:
    routes, brokers = Routes(), Brokers(STORED)
    sending = asyncio.create_task(send(routes, brokers))
    async with asyncio.timeout(5):
        await routes.asked_twice.wait()
    brokers.answers.set()
    assert (await sending)[0] == pb.OK
    assert brokers.sends == [OLD]


async def test_a_silent_broker_is_waited_for_while_no_name_server_answers() -> None:
    routes, brokers = Routes(), Brokers(STORED)
    routes.master = None
    code, took_ms = await send(routes, brokers)
    assert code == pb.PROXY_TIMEOUT and took_ms >= CALL_MS - 500
    assert routes.asked_soon == 1, "for the next call"


async def test_a_half_message_is_not_sent_to_another_broker() -> None:
    routes, brokers = Routes(), Brokers(STORED)
    routes.master = NEW
    code, _ = await send(routes, brokers, pb.TRANSACTION)
    assert (code, brokers.sends) == (pb.PROXY_TIMEOUT, [OLD])


@pytest.mark.parametrize(("answer", "asked_soon"), [(HANDED_ON, 1), (STORED, 0)])
async def test_a_forwarded_message_makes_the_route_old(answer: Outcome[Any], asked_soon: int) -> None:
    """A master that handed over forwards: it must not be asked until the next poll."""
    routes, brokers = Routes(), Brokers(answer)
    brokers.answers.set()
    assert (await send(routes, brokers))[0] == pb.OK
    assert routes.asked_soon == asked_soon
