"""QueueReader: requests about one queue, repeated with a fresh route until they succeed.

Every request here is safe to repeat, so each failure (lost connection, timeout, refusal) is reported to the
broker monitor, which decides when and by which route to repeat it, until the deadline. A queue is read from
its master, from the replica that the broker suggests, or from any replica while there is no master. Requests
that change offsets go to the master only.

A record that is damaged at one replica is requested from the others, before the pull reports it.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Any, TypeVar

from keelmq.client.cluster.broker_monitor import BrokerMonitor, Choose, PausedRead
from keelmq.client.cluster.routes import RouteError, TopicRoute
from keelmq.client.core.checks import check_text
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.subscription import ALL, ExpressionType, Subscription
from keelmq.client.message import (
    BODY_BYTES_MAX,
    DamagedRecord,
    DecodedPull,
    MessageExt,
    decode_pull,
    is_inner_batch,
    unreadable,
)
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import MASTER_ID, ResponseCode
from keelmq.remoting.damage_remarks import damaged_message
from keelmq.remoting.operation import Failed, Ok, Operation, Outcome, Unknown, Wire
from keelmq.remoting.operations.broker import (
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    PULL_MESSAGE,
    SEARCH_OFFSET_BY_TIMESTAMP,
    OffsetResponse,
    PullMessageRequest,
    PullMessageResponse,
    QueueRequest,
    SearchOffsetRequest,
)
from keelmq.remoting.operations.broker_metadata import (
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    ConsumerOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from keelmq.runtime.clock import now_ms

READ_TIMEOUT_MS = 5_000
ATTEMPT_TIMEOUT_MS = 3_000
PULL_SUSPEND_FLAG = 0x2
PULL_SUBSCRIPTION_FLAG = 0x4
PULL_MAX_NUMS = 32

COPY_TIMEOUT_MS = 3_000
"""Timeout of a request for a damaged record to another replica."""
COPIES_ASKED_MAX = 8
"""Damaged parts of one pull that are requested from other replicas."""

Resp = TypeVar("Resp", bound=Wire)


class PullStatus(IntEnum):
    """The outcome of a pull; its value is the response code."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


PULL_CODES = frozenset(PullStatus)
COPY_CODES = frozenset({PullStatus.FOUND, PullStatus.NO_MATCHED_MSG})
"""Codes of a replica that has the messages, or at which none of them matches."""
DONE = frozenset({ResponseCode.SUCCESS})


@dataclass(frozen=True, slots=True)
class PullResult:
    """The messages of a pull, and the queue's offsets. `next_begin_offset`: the offset of the next pull,
    whatever the status. `max_offset` is exclusive. `damaged`: records that no replica could deliver; the
    messages around them are delivered."""

    status: PullStatus
    messages: tuple[MessageExt, ...]
    next_begin_offset: int
    min_offset: int
    max_offset: int
    damaged: tuple[DamagedRecord, ...] = ()


class PullErrorKind(Enum):
    """Why a request about a queue failed."""

    NO_ROUTE = "no route"
    REFUSED = "refused"
    UNREACHABLE = "no answer"


class PullError(Exception):
    """A request about a queue failed. `code`: of the refusal, None if no broker answered. `damaged`: the
    broker refuses a pull because its first record is damaged, and no other replica delivers it now; it may be
    healed."""

    def __init__(
        self,
        kind: PullErrorKind,
        remark: str,
        code: int | None = None,
        *,
        damaged: DamagedRecord | None = None,
    ) -> None:
        super().__init__(f"{kind.value}: {remark}")
        self.kind, self.remark, self.code, self.damaged = kind, remark, code, damaged


class QueueReader:
    """Of one consumer group. Owns neither the client nor the monitor."""

    def __init__(
        self,
        client: RemotingClient,
        monitor: BrokerMonitor,
        group: str,
        *,
        body_bytes_max: int = BODY_BYTES_MAX,
    ) -> None:
        """`body_bytes_max`: bytes of one inflated body, and of all inflated bodies of one pull."""
        self._client, self._monitor, self._group = client, monitor, group
        self._body_bytes_max = body_bytes_max
        self._suggested: dict[MessageQueue, int] = {}

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
        """Returns messages from `offset` on (PULL_MESSAGE, 11). `suspend_ms` > 0: long polling, in addition
        to timeout_ms. The request carries the subscription, so a broker without a heartbeat of this client
        can serve it as well. PullError."""
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
        try:
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
        except PullError as error:
            if error.damaged is None:
                raise
            error.damaged = _from_offset(error.damaged, offset)
            if not (copy := await self._copy(queue, header, error.damaged)):
                raise
            answer = copy
        else:
            self._suggest(queue, answer.header.suggest_which_broker_id)
        decoded = self._decoded(answer, queue, offset)
        found, damaged = decoded.messages, decoded.damaged
        if damaged:
            found, damaged = await self._from_copies(queue, header, found, damaged)
        messages, unread = wanted(found, offset, subscription)
        return PullResult(
            status=PullStatus(answer.code),
            messages=messages,
            next_begin_offset=decoded.end,
            min_offset=answer.header.min_offset,
            max_offset=answer.header.max_offset,
            damaged=tuple(sorted((*damaged, *unread), key=lambda each: each.queue_offset)),
        )

    async def _from_copies(
        self,
        queue: MessageQueue,
        header: PullMessageRequest,
        messages: list[MessageExt],
        damaged: Sequence[DamagedRecord],
    ) -> tuple[list[MessageExt], list[DamagedRecord]]:
        """Returns the messages of a pull with those that another replica has, and what is still damaged."""
        left = list(damaged[COPIES_ASKED_MAX:])
        for each in damaged[:COPIES_ASKED_MAX]:
            copy = await self._copy(queue, header, each)
            if copy is None:
                left.append(each)
                continue
            found = self._decoded(copy, queue, each.queue_offset).messages
            messages = messages + [
                at for at in found if each.queue_offset <= at.queue_offset < each.end_offset
            ]
        return sorted(messages, key=lambda at: at.queue_offset), sorted(left, key=lambda at: at.queue_offset)

    async def _copy(
        self, queue: MessageQueue, header: PullMessageRequest, damaged: DamagedRecord
    ) -> Ok[PullMessageResponse] | None:
        """Returns a replica's answer that has the damaged messages; None: no replica answers with all of
        them."""
        asked = _only(header, damaged)
        try:
            route = await self._monitor.route(queue.topic, fresh=False, of_send=False)
        except RouteError:
            return None
        for _, address in sorted(route.addresses.get(queue.broker_name, {}).items()):
            outcome = await self._client.call(
                address, PULL_MESSAGE, asked, timeout_ms=COPY_TIMEOUT_MS, good=COPY_CODES
            )
            if not isinstance(outcome, Ok) or outcome.header.next_begin_offset < damaged.end_offset:
                continue
            still = self._decoded(outcome, queue, damaged.queue_offset)
            is_all = still.end >= damaged.end_offset
            if is_all and all(each.queue_offset >= damaged.end_offset for each in still.damaged):
                return outcome
        return None

    def _decoded(self, answer: Ok[PullMessageResponse], queue: MessageQueue, offset: int) -> DecodedPull:
        return decode_pull(
            bytes(answer.body or b""),
            queue.broker_name,
            begin=offset,
            end=answer.header.next_begin_offset,
            inflated_max=self._body_bytes_max,
        )

    # -- offsets -----------------------------------------------------------------------------------------

    async def min_offset(self, queue: MessageQueue, *, timeout_ms: int = READ_TIMEOUT_MS) -> int:
        """Returns the offset of the oldest stored message (GET_MIN_OFFSET, 31). PullError."""
        return await self._offset(queue, GET_MIN_OFFSET, timeout_ms)

    async def max_offset(self, queue: MessageQueue, *, timeout_ms: int = READ_TIMEOUT_MS) -> int:
        """Returns the offset that the next readable message will get (GET_MAX_OFFSET, 30). PullError."""
        return await self._offset(queue, GET_MAX_OFFSET, timeout_ms)

    async def _offset(
        self, queue: MessageQueue, operation: Operation[QueueRequest, OffsetResponse], timeout_ms: int
    ) -> int:
        header = QueueRequest(topic=queue.topic, queue_id=queue.queue_id)
        return (await self.ask(queue, operation, header, timeout_ms=timeout_ms)).header.offset

    async def offset_at(
        self, queue: MessageQueue, timestamp_ms: int, *, timeout_ms: int = READ_TIMEOUT_MS
    ) -> int:
        """Returns the offset of the first message stored at that time (ms since 1970) or later
        (SEARCH_OFFSET_BY_TIMESTAMP, 29). PullError."""
        header = SearchOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        answer = await self.ask(queue, SEARCH_OFFSET_BY_TIMESTAMP, header, timeout_ms=timeout_ms)
        return answer.header.offset

    async def committed_offset(
        self, queue: MessageQueue, *, zero_if_young: bool = False, timeout_ms: int = READ_TIMEOUT_MS
    ) -> int | None:
        """Returns the group's committed offset; None: it has committed nothing in this queue
        (QUERY_CONSUMER_OFFSET, 14). `zero_if_young`: 0 instead, if the broker still has all messages of the
        queue, and they are recent. PullError."""
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
        """Commits `offset`, that of the next message to consume (UPDATE_CONSUMER_OFFSET, 15). PullError."""
        header = UpdateConsumerOffsetRequest(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self.ask(queue, UPDATE_CONSUMER_OFFSET, header, timeout_ms=timeout_ms, master_only=True)

    # -- requests ----------------------------------------------------------------------------------------

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
        """Sends the request until a response has one of the good codes; raises PullError with the last
        problem at the deadline, which also ends the look-up of a route. `may_wait`: the broker may hold the
        request for long."""
        deadline_ms = now_ms() + timeout_ms
        problem = PullError(PullErrorKind.NO_ROUTE, "the timeout passed before the first attempt")
        tried: set[str] = set()
        failures = 0
        fresh = False

        def choose(route: TopicRoute) -> str | None:
            if master_only:
                return route.master(queue.broker_name)
            suggested = self._suggested.get(queue, MASTER_ID) if from_suggested else MASTER_ID
            return route.replica(queue.broker_name, suggested)

        while deadline_ms > now_ms():
            try:
                async with asyncio.timeout((deadline_ms - now_ms()) / 1_000):
                    found = await self._address(queue, choose, fresh=fresh, master_only=master_only)
            except TimeoutError:
                break
            left_ms = deadline_ms - now_ms()
            if isinstance(found, PullError):
                problem = found
            elif left_ms > 0:
                token = self._monitor.expect_poll(found, queue, now_ms()) if may_wait else None
                try:
                    outcome: Outcome[Resp] = await self._client.call(
                        found, operation, header, body, timeout_ms=min(left_ms, attempt_ms), good=good
                    )
                finally:
                    if token is not None:
                        self._monitor.settled_poll(token)
                if isinstance(outcome, Ok):
                    self._monitor.heard(found)
                    return outcome
                problem = _problem(found, outcome)
                if problem.kind is PullErrorKind.REFUSED:
                    self._monitor.heard(found)
                if from_suggested:
                    self._suggested.pop(queue, None)
                if problem.damaged is not None:
                    raise problem
                tried.add(found)
            failures += 1
            read = PausedRead(queue.topic, choose, tried)
            try:
                async with asyncio.timeout((deadline_ms - now_ms()) / 1_000):
                    fresh = await self._monitor.read_failed(read, failures=failures, code=problem.code)
            except TimeoutError:
                break
        raise problem

    async def _address(
        self, queue: MessageQueue, choose: Choose, *, fresh: bool, master_only: bool
    ) -> str | PullError:
        try:
            route = await self._monitor.route(queue.topic, fresh=fresh, of_send=False)
        except RouteError as error:
            return PullError(PullErrorKind.NO_ROUTE, error.remark, error.code)
        address = choose(route)
        if address is None:
            what = "master" if master_only else "replica"
            return PullError(PullErrorKind.NO_ROUTE, f"no {what} of {queue.broker_name} is registered")
        return address

    def _suggest(self, queue: MessageQueue, broker_id: int) -> None:
        if broker_id == MASTER_ID:
            self._suggested.pop(queue, None)
        else:
            self._suggested[queue] = broker_id


def subscription_of(topic: str, expression: str | None, sql: str | None, *, version: int = 0) -> Subscription:
    """Returns the Subscription for "TagA || TagB", or for an SQL92 condition. ValueError: both are given.
    TypeError: one is of another type."""
    check_text("topic", topic)
    check_text("tags", expression, optional=True)
    check_text("sql", sql, optional=True)
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
    lost = damaged_message(outcome.remark) if outcome.code == ResponseCode.SYSTEM_ERROR else None
    damaged = None
    if lost is not None:  # as long as it can be healed; if an operator marks it as lost, the broker passes it
        damaged = DamagedRecord(lost.queue_offset, lost.next_offset, lost.start, lost.reason)
    return PullError(PullErrorKind.REFUSED, remark, outcome.code, damaged=damaged)


def wanted(
    found: Sequence[MessageExt], offset: int, subscription: Subscription
) -> tuple[tuple[MessageExt, ...], list[DamagedRecord]]:
    """Returns the messages from the offset on that match, and those of them whose bodies cannot be inflated.
    An inner batch arrives whole, including messages before the offset; of one that cannot be inflated the
    tags are not known."""
    messages, unread = list[MessageExt](), list[DamagedRecord]()
    for message in found:
        if message.body_error:
            record = unreadable(message)
            is_wanted = subscription.wants(message.tags) or is_inner_batch(message)
            if is_wanted and record.end_offset > offset:
                unread.append(record)
        elif message.queue_offset >= offset and subscription.wants(message.tags):
            messages.append(message)
    return tuple(messages), unread


def _from_offset(damaged: DamagedRecord, offset: int) -> DamagedRecord:
    """Returns the part from the offset on, at least one message, so that a reader makes progress."""
    begin = max(damaged.queue_offset, offset)
    return replace(damaged, queue_offset=begin, end_offset=max(damaged.end_offset, begin + 1))


def _only(header: PullMessageRequest, damaged: DamagedRecord) -> PullMessageRequest:
    """Returns the pull that asks for the damaged messages only, and does not wait."""
    return header.model_copy(
        update={
            "queue_offset": damaged.queue_offset,
            "max_msg_nums": damaged.end_offset - damaged.queue_offset,
            "sys_flag": header.sys_flag & ~PULL_SUSPEND_FLAG,
            "suspend_timeout_millis": 0,
        }
    )
