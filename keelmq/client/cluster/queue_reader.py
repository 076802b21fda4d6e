"""Questions about queues: asked of the right broker, and asked again, with a fresh route, until answered.

Every question here may be repeated at will, so each failure (lost connection, timeout, refused) refreshes the
route and asks again until the deadline. A queue is read from its master, or from the replica that the broker
suggests, or from any while there is no master. What changes offsets goes to the master alone.
"""

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, TypeVar

from client.core.queues import MessageQueue
from client.core.subscription import ALL, ExpressionType, Subscription
from client.message import MessageExt, decode_messages
from client.route import RouteCache, RouteError
from client.silence import PROBE_INTERVAL_MS, SilenceWatch
from remoting.client import RemotingClient
from remoting.clock import now_ms
from remoting.codes import MASTER_ID, ResponseCode
from remoting.operation import Failed, Ok, Operation, Outcome, RemoteProtocolError, Unknown, Wire
from remoting.operations.broker import (
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    PULL_MESSAGE,
    SEARCH_OFFSET_BY_TIMESTAMP,
    OffsetResponse,
    PullMessageRequest,
    QueueRequest,
    SearchOffsetRequest,
)
from remoting.operations.broker_metadata import (
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    ConsumerOffsetRequest,
    UpdateConsumerOffsetRequest,
)

READ_TIMEOUT_MS = 5_000
ATTEMPT_TIMEOUT_MS = 3_000
RETRY_PAUSE_MIN_MS = 20
RETRY_PAUSE_MAX_MS = 100
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


PULL_CODES = frozenset(PullStatus)
DONE = frozenset({ResponseCode.SUCCESS})


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
    """`code`: of the refusal, None when nobody answered."""

    def __init__(self, kind: PullErrorKind, remark: str, code: int | None = None) -> None:
        super().__init__(f"{kind.value}: {remark}")
        self.kind, self.remark, self.code = kind, remark, code


class QueueReader:
    """Of one consumer group. Owns neither the client nor the routes. `probe_interval_ms`: see
    client/silence.py."""

    def __init__(
        self,
        client: RemotingClient,
        routes: RouteCache,
        group: str,
        *,
        probe_interval_ms: int = PROBE_INTERVAL_MS,
    ) -> None:
        self._client, self._routes, self._group = client, routes, group
        self._suggested: dict[MessageQueue, int] = {}
        self._silence = SilenceWatch(client, routes, probe_interval_ms=probe_interval_ms)

    async def close(self) -> None:
        await self._silence.close()

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_nums: int,
        subscription: Subscription,
        *,
        suspend_ms: int,
        timeout_ms: int = READ_TIMEOUT_MS,
    ) -> PullResult:
        """`suspend_ms` > 0: long polling, on top of timeout_ms. The subscription goes along, so that a broker
        which has not had our heartbeat yet can answer, too. PullError."""
        header = PullMessageRequest(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_nums,
            sys_flag=PULL_SUBSCRIPTION_FLAG | (PULL_SUSPEND_FLAG if suspend_ms else 0),
            suspend_timeout_millis=suspend_ms,
            subscription=subscription.expression,
            sub_version=subscription.version,
            expression_type=subscription.type.value,
            bname=queue.broker_name,
        )
        answer = await self.ask(
            queue,
            PULL_MESSAGE,
            header,
            timeout_ms=timeout_ms + suspend_ms,
            attempt_ms=suspend_ms + ATTEMPT_TIMEOUT_MS,
            good=PULL_CODES,
            from_suggested=True,
            may_wait=suspend_ms > 0,
        )
        try:
            messages = decode_messages(answer.body or b"", queue.broker_name)
        except RemoteProtocolError as error:
            raise PullError(PullErrorKind.REFUSED, str(error)) from None
        self._suggest(queue, answer.header.suggest_which_broker_id)
        return PullResult(
            status=PullStatus(answer.code),
            messages=tuple(  # an inner batch comes whole, with what is in front of the offset
                message
                for message in messages
                if message.queue_offset >= offset and subscription.wants(message.tags)
            ),
            next_begin_offset=answer.header.next_begin_offset,
            min_offset=answer.header.min_offset,
            max_offset=answer.header.max_offset,
        )

    # -- offsets -----------------------------------------------------------------------------------------

    async def min_offset(self, queue: MessageQueue, *, timeout_ms: int = READ_TIMEOUT_MS) -> int:
        return await self._offset(queue, GET_MIN_OFFSET, timeout_ms)

    async def max_offset(self, queue: MessageQueue, *, timeout_ms: int = READ_TIMEOUT_MS) -> int:
        """Exclusive: the offset that the next readable message gets."""
        return await self._offset(queue, GET_MAX_OFFSET, timeout_ms)

    async def _offset(
        self, queue: MessageQueue, operation: Operation[QueueRequest, OffsetResponse], timeout_ms: int
    ) -> int:
        header = QueueRequest(topic=queue.topic, queue_id=queue.queue_id)
        return (await self.ask(queue, operation, header, timeout_ms=timeout_ms)).header.offset

    async def offset_at(
        self, queue: MessageQueue, timestamp_ms: int, *, timeout_ms: int = READ_TIMEOUT_MS
    ) -> int:
        """Of the first message that was stored at that time (ms since 1970) or later."""
        header = SearchOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        answer = await self.ask(queue, SEARCH_OFFSET_BY_TIMESTAMP, header, timeout_ms=timeout_ms)
        return answer.header.offset

    async def committed_offset(
        self, queue: MessageQueue, *, zero_if_young: bool = False, timeout_ms: int = READ_TIMEOUT_MS
    ) -> int | None:
        """None: the group has never committed in this queue. `zero_if_young`: 0 then, if all that was ever
        in the queue is still there and recent, by the broker's judgement."""
        header = ConsumerOffsetRequest(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=None if zero_if_young else False,
        )
        good = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})
        answer = await self.ask(queue, QUERY_CONSUMER_OFFSET, header, timeout_ms=timeout_ms, good=good)
        return answer.header.offset if answer.code == ResponseCode.SUCCESS else None

    async def commit(self, queue: MessageQueue, offset: int, *, timeout_ms: int = READ_TIMEOUT_MS) -> None:
        """`offset`: of the next message that the group wants."""
        header = UpdateConsumerOffsetRequest(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self.ask(queue, UPDATE_CONSUMER_OFFSET, header, timeout_ms=timeout_ms, master_only=True)

    # -- asking ------------------------------------------------------------------------------------------

    async def ask(
        self,
        queue: MessageQueue,
        operation: Operation[Any, Resp],
        header: Wire,
        body: object = None,
        *,
        timeout_ms: int = READ_TIMEOUT_MS,
        attempt_ms: int = ATTEMPT_TIMEOUT_MS,
        good: Collection[int] = DONE,
        master_only: bool = False,
        from_suggested: bool = False,
        may_wait: bool = False,
    ) -> Ok[Resp]:
        """Until one of the good codes comes, or the deadline passes: PullError with the last problem.
        `may_wait`: a broker that is alive may be silent for long."""
        deadline_ms = now_ms() + timeout_ms
        problem = PullError(PullErrorKind.UNREACHABLE, "no attempt was made")
        fresh, pause_ms = False, RETRY_PAUSE_MIN_MS
        while (left_ms := deadline_ms - now_ms()) > 0:
            broker_id = self._suggested.get(queue, MASTER_ID) if from_suggested else MASTER_ID
            found = await self._address(queue, broker_id, fresh=fresh, master_only=master_only)
            if isinstance(found, PullError):
                problem = found
            else:
                with self._silence.waiting(found, queue) if may_wait else contextlib.nullcontext():
                    outcome: Outcome[Resp] = await self._client.call(
                        found, operation, header, body, timeout_ms=min(left_ms, attempt_ms), good=good
                    )
                if not isinstance(outcome, Unknown):
                    self._silence.heard(found)
                if isinstance(outcome, Ok):
                    return outcome
                problem = _problem(found, outcome)
                if from_suggested:
                    self._suggested.pop(queue, None)
            fresh = True
            await asyncio.sleep(pause_ms / 1_000)
            pause_ms = min(2 * pause_ms, RETRY_PAUSE_MAX_MS)
        raise problem

    async def _address(
        self, queue: MessageQueue, broker_id: int, *, fresh: bool, master_only: bool
    ) -> str | PullError:
        try:
            if fresh:
                route = await self._routes.refresh(queue.topic, rotate=True)
            else:
                route = await self._routes.find(queue.topic)
        except RouteError as error:
            return PullError(PullErrorKind.NO_ROUTE, error.remark, error.code)
        name = queue.broker_name
        address = route.master(name) if master_only else route.replica(name, broker_id)
        if address is None:
            what = "master" if master_only else "replica"
            return PullError(PullErrorKind.NO_ROUTE, f"no {what} of {name} is registered")
        return address

    def _suggest(self, queue: MessageQueue, broker_id: int) -> None:
        if broker_id == MASTER_ID:
            self._suggested.pop(queue, None)
        else:
            self._suggested[queue] = broker_id


def subscription_of(topic: str, expression: str | None, sql: str | None, *, version: int = 0) -> Subscription:
    """From "TagA || TagB", or from an SQL92 condition."""
    if sql is not None:
        if expression not in (None, ALL):
            raise ValueError("a subscription is by tags or by sql, not both")
        return Subscription(topic, sql, ExpressionType.SQL92, version)
    return Subscription(topic, expression or ALL, ExpressionType.TAG, version)


def _problem(address: str, outcome: Failed | Unknown) -> PullError:
    if isinstance(outcome, Unknown):
        return PullError(PullErrorKind.UNREACHABLE, f"{address}: {outcome.remark}")
    if outcome.code == ResponseCode.RPC_SEND_TO_CHANNEL_FAILED:
        return PullError(PullErrorKind.UNREACHABLE, outcome.remark)
    remark = f"{address} answered {outcome.code} {outcome.remark}".rstrip()
    return PullError(PullErrorKind.REFUSED, remark, outcome.code)
