"""PullConsumer: reads queues by offset, with long polling. Keeps no offsets and joins no group's balance.

A read may be repeated at will, so every failure (lost connection, timeout, refused) refreshes the route and
asks again until the deadline. A queue is read from its master, or from another replica while there is none.
"""

import asyncio
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import TracebackType
from typing import Self, TypeVar

from client.message import MessageExt, decode_messages
from client.route import MessageQueue, RouteCache, RouteError
from remoting.client import RemotingClient
from remoting.clock import now_ms
from remoting.codes import ResponseCode
from remoting.operation import Failed, Ok, Operation, Outcome, RemoteProtocolError, Unknown, Wire
from remoting.operations.broker import (
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    PULL_MESSAGE,
    OffsetResponse,
    PullMessageRequest,
    QueueRequest,
)

READ_TIMEOUT_MS = 5_000
ATTEMPT_TIMEOUT_MS = 3_000
RETRY_PAUSE_MS = 20
PULL_SUSPEND_FLAG = 0x2
PULL_SUBSCRIPTION_FLAG = 0x4
PULL_MAX_NUMS = 32

Resp = TypeVar("Resp", bound=Wire)


class PullStatus(IntEnum):
    """The response code is the status."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


@dataclass(frozen=True, slots=True)
class PullResult:
    """`next_begin_offset`: where to go on, whatever the status. `max_offset` of the queue is exclusive."""

    status: PullStatus
    messages: tuple[MessageExt, ...]
    next_begin_offset: int
    min_offset: int
    max_offset: int


class PullErrorKind(Enum):
    NO_ROUTE = "no route"
    REFUSED = "refused"
    UNREACHABLE = "no answer"


class PullError(Exception):
    def __init__(self, kind: PullErrorKind, remark: str) -> None:
        super().__init__(f"{kind.value}: {remark}")
        self.kind, self.remark = kind, remark


class PullConsumer:
    def __init__(
        self, namesrv_addr: str, group: str = "DEFAULT_CONSUMER", *, client: RemotingClient | None = None
    ) -> None:
        self._group = group
        self._own_client = client is None
        self._client = client or RemotingClient(drop_silent_ms=ATTEMPT_TIMEOUT_MS)
        self._routes = RouteCache(self._client, namesrv_addr)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._routes.close()
        if self._own_client:
            await self._client.close()

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The readable queues now, asked from the name server. PullError when there is no route."""
        try:
            return list((await self._routes.refresh(topic)).read_queues)
        except RouteError as error:
            raise PullError(PullErrorKind.NO_ROUTE, error.remark) from None

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_nums: int = PULL_MAX_NUMS,
        *,
        subscription: str = "*",
        suspend_ms: int = 0,
        timeout_ms: int = READ_TIMEOUT_MS,
    ) -> PullResult:
        """Messages from `offset` on. `subscription`: "*" or "TagA || TagB". `suspend_ms` > 0: long polling,
        an empty queue answers when a message arrives or after that time (on top of timeout_ms)."""
        header = PullMessageRequest(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_nums,
            sys_flag=PULL_SUBSCRIPTION_FLAG | (PULL_SUSPEND_FLAG if suspend_ms else 0),
            suspend_timeout_millis=suspend_ms,
            subscription=subscription,
            expression_type="TAG",
            bname=queue.broker_name,
        )
        answer = await self._read(
            queue, PULL_MESSAGE, header, timeout_ms + suspend_ms, suspend_ms + ATTEMPT_TIMEOUT_MS
        )
        try:
            messages = decode_messages(answer.body or b"", queue.broker_name)
        except RemoteProtocolError as error:
            raise PullError(PullErrorKind.REFUSED, str(error)) from None
        wanted = _tags(subscription)
        return PullResult(
            status=PullStatus(answer.code),
            messages=tuple(message for message in messages if not wanted or message.tags in wanted),
            next_begin_offset=answer.header.next_begin_offset,
            min_offset=answer.header.min_offset,
            max_offset=answer.header.max_offset,
        )

    async def min_offset(self, queue: MessageQueue, *, timeout_ms: int = READ_TIMEOUT_MS) -> int:
        return await self._offset(queue, GET_MIN_OFFSET, timeout_ms)

    async def max_offset(self, queue: MessageQueue, *, timeout_ms: int = READ_TIMEOUT_MS) -> int:
        """Exclusive: the offset that the next readable message gets."""
        return await self._offset(queue, GET_MAX_OFFSET, timeout_ms)

    async def _offset(
        self, queue: MessageQueue, operation: Operation[QueueRequest, OffsetResponse], timeout_ms: int
    ) -> int:
        header = QueueRequest(topic=queue.topic, queue_id=queue.queue_id)
        answer = await self._read(queue, operation, header, timeout_ms, ATTEMPT_TIMEOUT_MS)
        return answer.header.offset

    async def _read(
        self,
        queue: MessageQueue,
        operation: Operation[Wire, Resp]
        | Operation[PullMessageRequest, Resp]
        | Operation[QueueRequest, Resp],
        header: Wire,
        timeout_ms: int,
        attempt_ms: int,
    ) -> Ok[Resp]:
        """Ask until one of the good codes comes, or the deadline passes: PullError with the last problem."""
        deadline_ms = now_ms() + timeout_ms
        problem = PullError(PullErrorKind.UNREACHABLE, "no attempt was made")
        fresh = False
        while (left_ms := deadline_ms - now_ms()) > 0:
            try:
                route = await (
                    self._routes.refresh(queue.topic, rotate=True)
                    if fresh
                    else self._routes.find(queue.topic)
                )
            except RouteError as error:
                problem = PullError(PullErrorKind.NO_ROUTE, error.remark)
            else:
                address = route.replica(queue.broker_name)
                if address is None:
                    problem = PullError(
                        PullErrorKind.NO_ROUTE, f"no replica of {queue.broker_name} is registered"
                    )
                else:
                    timeout = min(left_ms, attempt_ms)
                    outcome: Outcome[Resp] = await self._client.call(
                        address, operation, header, timeout_ms=timeout, good=tuple(PullStatus)
                    )
                    if isinstance(outcome, Ok):
                        return outcome
                    problem = _problem(address, outcome)
            fresh = True
            await asyncio.sleep(RETRY_PAUSE_MS / 1_000)
        raise problem


def _problem(address: str, outcome: Failed | Unknown) -> PullError:
    if isinstance(outcome, Unknown):
        return PullError(PullErrorKind.UNREACHABLE, f"{address}: {outcome.remark}")
    unreachable = outcome.code == ResponseCode.RPC_SEND_TO_CHANNEL_FAILED
    kind = PullErrorKind.UNREACHABLE if unreachable else PullErrorKind.REFUSED
    return PullError(kind, f"{address} answered {outcome.code} {outcome.remark}".rstrip())


def _tags(subscription: str) -> frozenset[str]:
    """Empty: everything. Brokers compare 32-bit hashes of tags, and two may be equal: the text counts."""
    if subscription.strip() in ("", "*"):
        return frozenset()
    return frozenset(tag.strip() for tag in subscription.split("||") if tag.strip())
