"""PullMessage, QueryOffset, GetOffset and UpdateOffset: the requests 11, 29 to 31, 14 and 15 of remoting.

A client that pulls keeps its place in each queue itself, so nothing is invisible, and nothing is given back.
"""

import logging
from collections.abc import AsyncGenerator
from typing import Any, Final

from keelmq.client.cluster.queue_reader import (
    PULL_CODES,
    PULL_SUBSCRIPTION_FLAG,
    PULL_SUSPEND_FLAG,
    PullStatus,
    wanted,
)
from keelmq.client.cluster.routes import TopicRoute
from keelmq.client.core.queues import MessageQueue
from keelmq.client.message import DamagedRecord, decode_pull
from keelmq.remoting.operation import Ok, Operation, Outcome, Wire
from keelmq.remoting.operations.broker import (
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    PULL_MESSAGE,
    SEARCH_OFFSET_BY_TIMESTAMP,
    PullMessageRequest,
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
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from proxy.core.limits import BATCH_MAX, Limits
from proxy.core.messages import message_of
from proxy.core.names import group_name, topic_name
from proxy.core.statuses import OK, Refused, status_of, status_of_offset
from proxy.core.times import ms_of
from proxy.server.cluster import Call, Cluster
from proxy.server.members import Members
from proxy.server.receiving import NOTHING, POP_ANSWER_MS, POP_ROOM_MS, subscription_of
from proxy.wire import messaging_pb2 as pb

logger = logging.getLogger(__name__)

TIME_MS_MAX: Final = (1 << 63) - 1


class Pulling:
    def __init__(self, cluster: Cluster, members: Members, limits: Limits) -> None:
        self._cluster, self._members, self._limits = cluster, members, limits
        self._failures = RateLimitedLogger(logger, level=logging.WARNING)

    async def pull_message(
        self, request: pb.PullMessageRequest, call: Call
    ) -> AsyncGenerator[pb.PullMessageResponse, None]:
        """Yields a status, the messages, and the offset of the next pull, also if there is no message
        (MESSAGE_NOT_FOUND), or none at this offset (ILLEGAL_OFFSET). Raises Refused."""
        group, queue = group_name(request.group, call.client), _queue_of(request.message_queue, call)
        subscription, offset = subscription_of(request, call), _checked(request.offset)
        self._members.consumes(call, group, queue.broker_name, subscription, is_push=False)
        # A client that does not say how long it waits gets what is there.
        poll_ms = min(ms_of(request.long_polling_timeout), self._limits.poll_ms_max)
        header = PullMessageRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=min(max(request.batch_size, 1), BATCH_MAX),
            subscription=subscription.expression,
            expression_type=subscription.type.value,
            bname=queue.broker_name,
        )
        outcome = await self._pull(header, queue, min(poll_ms, call.left_ms - POP_ROOM_MS), call)
        if not isinstance(outcome, Ok):
            yield pb.PullMessageResponse(status=status_of(outcome))
            return
        next_offset = outcome.header.next_begin_offset
        if outcome.code == PullStatus.OFFSET_ILLEGAL:
            remark = f"no message can be pulled at offset {offset}; the next one is at {next_offset}"
            yield pb.PullMessageResponse(status=pb.Status(code=pb.ILLEGAL_OFFSET, message=remark))
            yield pb.PullMessageResponse(next_offset=next_offset)
            return
        pulled = decode_pull(bytes(outcome.body or b""), queue.broker_name, begin=offset, end=next_offset)
        messages, unread = wanted(pulled.messages, offset, subscription)
        self._tell_damaged(queue, [*pulled.damaged, *unread])
        yield pb.PullMessageResponse(status=OK if messages else NOTHING)
        for message in messages:
            attempt = message.reconsume_times + 1
            shown = message_of(message, request.message_queue.topic, attempt=attempt)
            yield pb.PullMessageResponse(message=shown)
        yield pb.PullMessageResponse(next_offset=pulled.end)

    async def _pull(
        self, header: PullMessageRequest, queue: MessageQueue, poll_ms: int, call: Call
    ) -> Outcome[Any]:
        """Each attempt waits only for what is left of the poll time."""
        end_ms = now_ms() + poll_ms

        async def attempt(route: TopicRoute) -> Outcome[Any]:
            left_ms = max(end_ms - now_ms(), 0)
            flags = PULL_SUBSCRIPTION_FLAG | (PULL_SUSPEND_FLAG if left_ms else 0)
            update = {"sys_flag": flags, "suspend_timeout_millis": left_ms}
            asked, timeout_ms = header.model_copy(update=update), left_ms + POP_ANSWER_MS
            return await self._cluster.once(
                route,
                queue.broker_name,
                PULL_MESSAGE,
                asked,
                call=call,
                timeout_ms=timeout_ms,
                good=PULL_CODES,
            )

        return await self._cluster.repeat(queue.topic, attempt, call)

    def _tell_damaged(self, queue: MessageQueue, damaged: list[DamagedRecord]) -> None:
        for each in damaged:
            text = "%s: offsets %d to %d are damaged, and are not delivered: %s"
            self._failures.tell(now_ms(), text, queue, each.queue_offset, each.end_offset, each.reason)

    # -- offsets -----------------------------------------------------------------------------------------

    async def query_offset(self, request: pb.QueryOffsetRequest, call: Call) -> pb.QueryOffsetResponse:
        """Returns the first or the last offset of a queue, or that of a time. Raises Refused."""
        queue, policy = _queue_of(request.message_queue, call), request.query_offset_policy
        header: Wire = QueueRequest(topic=queue.topic, queue_id=queue.queue_id)
        if policy == pb.TIMESTAMP:
            if not request.HasField("timestamp"):
                raise Refused(pb.BAD_REQUEST, "query_offset_policy is TIMESTAMP, and there is no timestamp")
            at_ms = min(max(ms_of(request.timestamp), 0), TIME_MS_MAX)
            header = SearchOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp=at_ms)
            operation: Operation[Any, Any] = SEARCH_OFFSET_BY_TIMESTAMP
        elif policy in (pb.BEGINNING, pb.END):
            operation = GET_MIN_OFFSET if policy == pb.BEGINNING else GET_MAX_OFFSET
        else:
            raise Refused(pb.BAD_REQUEST, f"query_offset_policy {policy} is unknown")
        outcome = await self._cluster.call(queue.topic, queue.broker_name, operation, header, call=call)
        if not isinstance(outcome, Ok):
            return pb.QueryOffsetResponse(status=status_of(outcome))
        return pb.QueryOffsetResponse(status=OK, offset=outcome.header.offset)

    async def get_offset(self, request: pb.GetOffsetRequest, call: Call) -> pb.GetOffsetResponse:
        """Returns the group's offset of a queue; OFFSET_NOT_FOUND: it has none. Raises Refused."""
        group, queue = group_name(request.group, call.client), _queue_of(request.message_queue, call)
        header = ConsumerOffsetRequest(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
        )
        outcome = await self._cluster.call(
            queue.topic, queue.broker_name, QUERY_CONSUMER_OFFSET, header, call=call
        )
        if not isinstance(outcome, Ok):
            return pb.GetOffsetResponse(status=status_of_offset(outcome))
        return pb.GetOffsetResponse(status=OK, offset=outcome.header.offset)

    async def update_offset(self, request: pb.UpdateOffsetRequest, call: Call) -> pb.UpdateOffsetResponse:
        """Sets the group's offset of a queue: that of the next message to consume. Raises Refused."""
        group, queue = group_name(request.group, call.client), _queue_of(request.message_queue, call)
        header = UpdateConsumerOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=_checked(request.offset),
        )
        outcome = await self._cluster.call(
            queue.topic, queue.broker_name, UPDATE_CONSUMER_OFFSET, header, call=call
        )
        return pb.UpdateOffsetResponse(status=OK if isinstance(outcome, Ok) else status_of(outcome))


def _queue_of(queue: pb.MessageQueue, call: Call) -> MessageQueue:
    """Raises Refused: it is no queue of a broker."""
    topic = topic_name(queue.topic, call.client)
    if not queue.broker.name or queue.id < 0:
        raise Refused(pb.BAD_REQUEST, "the message queue names no broker, or no queue of it")
    return MessageQueue(topic, queue.broker.name, queue.id)


def _checked(offset: int) -> int:
    """Raises Refused."""
    if offset < 0:
        raise Refused(pb.ILLEGAL_OFFSET, f"the offset {offset} is below 0")
    return offset
