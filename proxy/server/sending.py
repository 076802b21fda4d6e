"""SendMessage and RecallMessage: messages of gRPC become requests 310 of remoting.

The server chooses the queue: by the message group, or round-robin among the groups of brokers that have a
master. A failed attempt goes to another group of brokers, if the topic has several, until the call's
deadline."""

from collections import OrderedDict
from typing import Any, Final

from broker.message.timer_properties import parse_handle
from keelmq.client.cluster.routes import TopicRoute
from keelmq.client.core.batches import Item, encode_batches
from keelmq.client.core.queue_choice import QueueChooser, queue_of_key
from keelmq.client.core.queues import MessageQueue
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, LocalProtocolError, Ok, Outcome
from keelmq.remoting.operations.broker import (
    SEND_MESSAGE_V2,
    SendMessageRequestV2,
)
from keelmq.remoting.operations.broker import SendMessageResponse as Stored
from keelmq.remoting.operations.timers import RECALL_MESSAGE, RecallMessageRequest
from keelmq.runtime.clock import now_ms, wall_ms
from proxy.core.limits import BATCH_MAX, Limits
from proxy.core.messages import Sent, sent_of
from proxy.core.names import topic_name
from proxy.core.routes import check_type, types_of
from proxy.core.statuses import OK, Refused, status_of, total_of
from proxy.core.transactions import HalfMessage
from proxy.server.cluster import Call, Cluster
from proxy.server.guard import Guard
from proxy.server.members import Members
from proxy.wire import messaging_pb2 as pb

PRODUCER_GROUP: Final = "KEELMQ_PROXY"
"""The producer group of messages that are not of a transaction; brokers only show it."""
TOPICS_MAX: Final = 10_000
HANDLE_CHARACTERS_MAX: Final = 2_048


class Sending:
    def __init__(self, cluster: Cluster, guard: Guard, members: Members, limits: Limits) -> None:
        self._cluster, self._guard, self._members, self._limits = cluster, guard, members, limits
        self._choosers: OrderedDict[str, QueueChooser] = OrderedDict()

    async def send_message(self, request: pb.SendMessageRequest, call: Call) -> pb.SendMessageResponse:
        """Sends the messages of one topic. One entry for each, in their order. Raises Refused: none was
        sent."""
        topic = self._topic(request, call)
        await self._guard.may_publish(topic, call.sender)  # a refusal below would tell settings of the topic
        now = wall_ms()
        sent = [sent_of(each, topic, now_ms=now, limits=self._limits) for each in request.messages]
        route = await self._cluster.route(topic, call)
        config = await self._cluster.topic_config(topic, route)
        types = types_of({} if config is None else config.attributes)
        for each in sent:
            check_type(each.kind, types, topic)
        if len(sent) > 1 and {each.kind for each in sent} <= {pb.NORMAL, pb.FIFO}:
            entries = await self._send_batch(topic, sent, call)
        else:
            entries = [await self._send_one(topic, each, call) for each in sent]
        for broker_name in route.addresses:
            self._members.produces(call, topic, broker_name)
        return pb.SendMessageResponse(status=total_of(each.status for each in entries), entries=entries)

    def _topic(self, request: pb.SendMessageRequest, call: Call) -> str:
        if not 0 < len(request.messages) <= BATCH_MAX:
            raise Refused(pb.BAD_REQUEST, f"{len(request.messages)} messages; 1 to {BATCH_MAX} are possible")
        topics = {topic_name(each.topic, call.client) for each in request.messages}
        if len(topics) > 1:
            raise Refused(pb.MESSAGE_CORRUPTED, f"the messages are of {len(topics)} topics, not of one")
        groups = {each.system_properties.message_group for each in request.messages}
        if len(groups) > 1:
            raise Refused(pb.ILLEGAL_MESSAGE_GROUP, "the messages are of several message groups")
        return topics.pop()

    async def recall_message(self, request: pb.RecallMessageRequest, call: Call) -> pb.RecallMessageResponse:
        """Recalls a delayed message. Raises Refused."""
        topic = topic_name(request.topic, call.client)
        try:
            handle = parse_handle(request.recall_handle[:HANDLE_CHARACTERS_MAX])
        except ValueError as error:
            raise Refused(pb.BAD_REQUEST, str(error)) from None
        header = RecallMessageRequest(
            producer_group=PRODUCER_GROUP, topic=topic, recall_handle=request.recall_handle
        )
        outcome = await self._cluster.call(topic, handle.broker_name, RECALL_MESSAGE, header, call=call)
        if not isinstance(outcome, Ok):
            return pb.RecallMessageResponse(status=status_of(outcome))
        return pb.RecallMessageResponse(status=OK, message_id=outcome.header.msg_id)

    # -- attempts ----------------------------------------------------------------------------------------

    async def _send_one(self, topic: str, sent: Sent, call: Call) -> pb.SendResultEntry:
        last = ""

        async def attempt(route: TopicRoute) -> Outcome[Any]:
            nonlocal last
            queue = self._queue(route, sent, last)
            if queue is None:
                return Failed(ResponseCode.SERVICE_NOT_AVAILABLE, route.why_not_writable(None))
            last = queue.broker_name
            return await self._attempt(route, queue, sent, sent.body, call)

        # A second half message would be checked later, and committed as well.
        may_repeat = sent.kind != pb.TRANSACTION
        outcome = await self._cluster.repeat(topic, attempt, call, may_repeat=may_repeat, asked=lambda: last)
        return _entry(sent, last, outcome)

    async def _send_batch(self, topic: str, sent: list[Sent], call: Call) -> list[pb.SendResultEntry]:
        """Stores all of them, or none: as one request to one queue."""
        try:
            bodies = list(
                encode_batches(
                    (Item(each.body, each.properties) for each in sent),
                    bytes_max=self._limits.max_message_size,
                )
            )
        except ValueError as error:
            raise Refused(pb.MESSAGE_PROPERTIES_TOO_LARGE, str(error)) from None
        if len(bodies) > 1:
            raise Refused(pb.MESSAGE_BODY_TOO_LARGE, "the messages together are too large for one batch")
        last = ""

        async def attempt(route: TopicRoute) -> Outcome[Any]:
            nonlocal last
            queue = self._queue(route, sent[0], last)
            if queue is None:
                return Failed(ResponseCode.SERVICE_NOT_AVAILABLE, route.why_not_writable(None))
            last = queue.broker_name
            return await self._attempt(route, queue, sent[0], bodies[0][1], call, is_batch=True)

        outcome = await self._cluster.repeat(topic, attempt, call, asked=lambda: last)
        return [_entry(each, last, outcome, at) for at, each in enumerate(sent)]

    def _queue(self, route: TopicRoute, sent: Sent, last: str) -> MessageQueue | None:
        if sent.message_group is not None:
            return queue_of_key(route.ordered_queues, sent.message_group)
        chooser = self._choosers.get(route.topic)
        if chooser is None:
            if len(self._choosers) >= TOPICS_MAX:
                self._choosers.popitem(last=False)
            chooser = self._choosers[route.topic] = QueueChooser()
        return chooser.choose(route.write_queues, last, now_ms=now_ms())

    async def _attempt(
        self,
        route: TopicRoute,
        queue: MessageQueue,
        sent: Sent,
        body: bytes,
        call: Call,
        *,
        is_batch: bool = False,
    ) -> Outcome[Any]:
        header = SendMessageRequestV2(
            a=route.topic if sent.kind == pb.TRANSACTION else PRODUCER_GROUP,
            b=route.topic,
            e=queue.queue_id,
            f=sent.sys_flag,
            g=wall_ms(),
            i="" if is_batch else sent.properties,
            m=is_batch,
            n=queue.broker_name,
        )
        try:
            outcome = await self._cluster.once(
                route, queue.broker_name, SEND_MESSAGE_V2, header, body, call=call
            )
        except LocalProtocolError as error:
            raise Refused(pb.PAYLOAD_TOO_LARGE, str(error)) from None
        if isinstance(outcome, Ok) and outcome.header.master_address is not None:
            self._cluster.forwarded(route.topic)
        return outcome


def _entry(sent: Sent, broker_name: str, outcome: Outcome[Any], index: int = 0) -> pb.SendResultEntry:
    """index: of the message in a batch."""
    if not isinstance(outcome, Ok):
        return pb.SendResultEntry(status=status_of(outcome), message_id=sent.message_id)
    stored = outcome.header
    assert isinstance(stored, Stored)
    transaction_id = ""
    if sent.kind == pb.TRANSACTION:
        half = HalfMessage(broker_name, _log_offset(stored), stored.queue_offset, sent.message_id)
        transaction_id = half.text()
    return pb.SendResultEntry(
        status=OK,
        message_id=sent.message_id,
        transaction_id=transaction_id,
        offset=stored.queue_offset + index,
        recall_handle=stored.recall_handle or "",
    )


def _log_offset(stored: Stored) -> int:
    """The offset message id ends with the offset in the CommitLog."""
    return int(stored.msg_id[-16:], 16)
