"""A name server and a broker behind real TcpDoors, answering from scripts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Operation, OperationTable, Reply, Wire
from keelmq.remoting.operations.broker import (
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    PULL_MESSAGE,
    SEND_MESSAGE_V2,
    OffsetResponse,
    PullMessageRequest,
    PullMessageResponse,
    QueueRequest,
    SendMessageRequestV2,
    SendMessageResponse,
)
from keelmq.remoting.operations.route import (
    GET_ROUTEINFO_BY_TOPIC,
    BrokerData,
    QueueData,
    RouteRequest,
    TopicRouteData,
)
from keelmq.remoting.servers.tcp import TcpServer

HOST = "127.0.0.1"


class Server:
    """One door with handlers bound before it starts."""

    def __init__(self) -> None:
        self.table = OperationTable()
        self.server = TcpServer(self.table, host=HOST, port=0, name="fake")

    def bind(
        self,
        operation: Operation[Wire, Wire],
        handler: Callable[[Wire, Call], Awaitable[Reply | Wire | None]],
    ) -> None:
        self.table.bind(operation, handler)

    @property
    def address(self) -> str:
        host, port = self.server.address
        return f"{host}:{port}"

    async def __aenter__(self) -> Self:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()


class FakeNameServer(Server):
    """`routes`: topic -> masters and slaves of "broker-a", or a callable asked anew each time. `brokers`: of
    every topic in routes instead, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.routes: dict[str, dict[int, str] | Callable[[], dict[int, str]]] = {}
        self.queue_nums = 4
        self.brokers: dict[str, dict[int, str]] = {}
        self.asked: list[str] = []
        self.table.bind(GET_ROUTEINFO_BY_TOPIC, self._route)

    async def _route(self, request: RouteRequest, _: Call) -> Reply:
        self.asked.append(request.topic)
        found = self.routes.get(request.topic)
        if found is None:
            raise CommandError(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info: {request.topic}")
        addresses = found() if callable(found) else found
        count = self.queue_nums
        brokers = self.brokers or {"broker-a": addresses}
        return Reply(
            body=TopicRouteData(
                broker_datas=[
                    BrokerData(cluster="c", broker_name=name, broker_addrs=table)
                    for name, table in brokers.items()
                ],
                queue_datas=[
                    QueueData(broker_name=name, read_queue_nums=count, write_queue_nums=count, perm=6)
                    for name in brokers
                ],
            )
        )


class FakeBroker(Server):
    """Sends get the codes of `script` one after the other, then 0. None: closes the connection unanswered."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[int | None] = []
        self.moved_to: str | None = None
        self.extra: dict[str, str] = {}  # fields of the answers to sends
        self.hold = asyncio.Event()
        self.hold.set()
        self.sends: list[tuple[SendMessageRequestV2, bytes]] = []
        self._arrived = asyncio.Event()
        self.pulls: list[PullMessageRequest] = []
        self.pull_replies: list[Reply | CommandError] = []
        self.table.bind(SEND_MESSAGE_V2, self._send)
        self.table.bind(PULL_MESSAGE, self._pull)
        self.table.bind(GET_MAX_OFFSET, self._max_offset)
        self.table.bind(GET_MIN_OFFSET, self._min_offset)

    async def received(self, count: int) -> None:
        while len(self.sends) < count:
            self._arrived.clear()
            await self._arrived.wait()

    async def _send(self, request: SendMessageRequestV2, call: Call) -> Reply | None:
        self.sends.append((request, call.raw_body))
        self._arrived.set()
        await self.hold.wait()
        code = self.script.pop(0) if self.script else 0
        if code is None:
            call.peer.close()  # type: ignore[attr-defined]
            return None
        if code:
            raise CommandError(code, "scripted")
        offset = len(self.sends) - 1
        answer = SendMessageResponse(msg_id="7F", queue_id=request.queue_id, queue_offset=offset)
        return Reply(answer.model_copy(update={"master_address": self.moved_to, **self.extra}))

    async def _pull(self, request: PullMessageRequest, _: Call) -> Reply:
        self.pulls.append(request)
        reply = self.pull_replies.pop(0)
        if isinstance(reply, CommandError):
            raise reply
        return reply

    async def _max_offset(self, _: QueueRequest, __: Call) -> OffsetResponse:
        await self.hold.wait()  # a broker that hangs answers nothing at all
        return OffsetResponse(offset=7)

    async def _min_offset(self, _: QueueRequest, __: Call) -> OffsetResponse:
        return OffsetResponse(offset=2)


def pull_reply(code: int, *, next_begin_offset: int = 0, body: bytes = b"") -> Reply:
    header = PullMessageResponse(next_begin_offset=next_begin_offset, min_offset=0, max_offset=28)
    return Reply(header, body or None, code=code)
