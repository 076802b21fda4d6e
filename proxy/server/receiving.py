"""ReceiveMessage, AckMessage and ChangeInvisibleDuration: pops of remoting and their acknowledgements.

A message that a client did not get is given back: its call may be cancelled while a broker pops messages for
it, and its stream may break halfway.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from typing import Any, Final

from broker.admission.send_forwarder import is_too_early
from keelmq.client.cluster.routes import TopicRoute
from keelmq.client.core.subscription import ALL, ExpressionType, Subscription
from keelmq.client.message import decode_messages
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok, Operation, Outcome, RemoteProtocolError, Wire
from keelmq.remoting.operations.clients import CONSUMER_SEND_MSG_BACK
from keelmq.remoting.operations.pop import (
    ACK_MESSAGE,
    BATCH_ACK_MESSAGE,
    CHANGE_MESSAGE_INVISIBLETIME,
    POP_MESSAGE,
    PopMessageRequest,
)
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.runtime.tasks import cancel_all
from proxy.core.absences import GONE_MS, Absences
from proxy.core.handles import Receipt, batch_ack_of, receipt_of, receipts_of
from proxy.core.limits import BATCH_MAX, INVISIBLE_MS_MAX, INVISIBLE_MS_MIN, Limits
from proxy.core.messages import message_of
from proxy.core.names import group_name, topic_name
from proxy.core.renewals import Place
from proxy.core.routes import ANY_QUEUE
from proxy.core.settings import nack_ms
from proxy.core.statuses import OK, Refused, status_of, status_of_dead_letter, status_of_handle, total_of
from proxy.core.times import ms_of, timestamp
from proxy.server.cluster import CALL_MS, Call, Cluster
from proxy.server.members import Members
from proxy.server.renewing import BACK_MS, Renewing
from proxy.wire import messaging_pb2 as pb

logger = logging.getLogger(__name__)

POP_ANSWER_MS: Final = 3_000
"""How much longer than its poll time a pop may take."""
POP_ROOM_MS: Final = 500
"""A pop ends this long before its call's answer must leave."""
NOTHING: Final = pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no message that matches")
NEW_TOPIC_PAUSE_MS: Final = 1_000
FROM_END: Final = 1
"""initMode of a pop: a group that is new begins at the end, as at RocketMQ's proxy."""
ENTRIES_MAX: Final = 1_024
CLOSE_S: Final = 0.5


class Receiving:
    def __init__(self, cluster: Cluster, renewing: Renewing, members: Members, limits: Limits) -> None:
        self._cluster, self._renewing, self._members, self._limits = cluster, renewing, members, limits
        self._absences = Absences()
        self._returning: set[asyncio.Task[None]] = set()
        self._failures = RateLimitedLogger(logger, level=logging.WARNING)

    async def close(self) -> None:
        """Gives back what nobody got. A pop that still waits ends with its connection, and takes nothing."""
        if self._returning:
            await asyncio.wait(self._returning, timeout=CLOSE_S)
        await cancel_all(self._returning)

    async def receive_message(
        self, request: pb.ReceiveMessageRequest, call: Call
    ) -> AsyncGenerator[pb.ReceiveMessageResponse, None]:
        """Yields a status, the messages, and the time of their delivery. Raises Refused."""
        subscription = subscription_of(request, call)
        pop, broker_name = await self._pop_request(request, subscription, call)
        self._members.consumes(
            call, pop.consumer_group, broker_name, subscription, is_push=request.auto_renew
        )
        popping = asyncio.ensure_future(self._pop(pop, broker_name, call))
        try:
            outcome = await asyncio.shield(popping)
        except asyncio.CancelledError:
            self._in_background(self._give_back_later(popping, pop, broker_name, call))
            raise
        if not isinstance(outcome, Ok):
            yield pb.ReceiveMessageResponse(status=await self._nothing(outcome, call))
            yield pb.ReceiveMessageResponse(delivery_timestamp=timestamp(wall_ms()))
            return
        popped = _popped(outcome, pop, broker_name)
        others = [receipt for receipt, _, message in popped if not subscription.wants(message.tags)]
        if others:  # their tags have the hash of one that is wanted
            self._in_background(self._ack_others(others, call))
            popped = [each for each in popped if subscription.wants(each[2].tags)]
        topic, left = request.message_queue.topic, [receipt for receipt, _, _ in popped]
        try:
            yield pb.ReceiveMessageResponse(status=OK if popped else NOTHING)
            for receipt, attempt, message in popped:
                if message.body_error:
                    self._failures.tell(now_ms(), "%s: a message is not delivered: %s", receipt.text(),
                                        message.body_error)  # fmt: skip
                else:
                    yield pb.ReceiveMessageResponse(message=message_of(message, topic, receipt, attempt))
                left.pop(0)
            yield pb.ReceiveMessageResponse(delivery_timestamp=timestamp(wall_ms()))
            if popped and pop.owner:
                place = Place(pop.consumer_group, pop.topic, broker_name)
                self._renewing.answered_pop(call, place, outcome.header.pop_time)
        finally:
            if left:
                self._in_background(self._give_back(left, call))

    async def _pop_request(
        self, request: pb.ReceiveMessageRequest, subscription: Subscription, call: Call
    ) -> tuple[PopMessageRequest, str]:
        """Returns the pop, and the name of the group of brokers. Raises Refused."""
        queue, topic = request.message_queue, subscription.topic
        group = group_name(request.group, call.client)
        if not queue.broker.name:
            raise Refused(pb.BAD_REQUEST, "the message queue names no broker")
        route = await self._cluster.route(topic, call)
        config = await self._cluster.group_config(group, route)
        is_fifo = config is not None and config.consume_message_orderly
        asked_ms = ms_of(request.long_polling_timeout) if request.HasField("long_polling_timeout") else 0
        pop = PopMessageRequest(
            consumer_group=group,
            topic=topic,
            # A simple consumer walks over the queues: it would wait at empty ones while others have messages.
            queue_id=queue.id if request.auto_renew else ANY_QUEUE,
            max_msg_nums=min(max(request.batch_size, 1), BATCH_MAX),
            invisible_time=self._renewing.invisible_ms if request.auto_renew else _invisible_ms(request),
            poll_time=self._limits.poll_ms(asked_ms, call.left_ms - POP_ROOM_MS),
            born_time=wall_ms(),
            init_mode=FROM_END,
            exp_type=subscription.type.value,
            exp=subscription.expression,
            order=is_fifo,
            attempt_id=request.attempt_id or None,
            owner=call.client.client_id if request.auto_renew else None,
        )
        if request.auto_renew:
            self._renewing.heard(call)
        return pop, queue.broker.name

    async def _pop(self, pop: PopMessageRequest, broker_name: str, call: Call) -> Outcome[Any]:
        """Each attempt waits only for what is left of the poll time."""
        end_ms = now_ms() + pop.poll_time

        async def attempt(route: TopicRoute) -> Outcome[Any]:
            left_ms = max(end_ms - now_ms(), 0)
            header = pop.model_copy(update={"poll_time": left_ms, "born_time": wall_ms()})
            return await self._cluster.once(
                route, broker_name, POP_MESSAGE, header, call=call, timeout_ms=left_ms + POP_ANSWER_MS
            )

        return await self._cluster.repeat(pop.topic, attempt, call)

    async def _nothing(self, outcome: Any, call: Call) -> pb.Status:
        """The status of a pop without messages. A topic that does not exist yet has none."""
        if isinstance(outcome, Failed) and outcome.code == ResponseCode.TOPIC_NOT_EXIST:
            await asyncio.sleep(min(call.left_ms, NEW_TOPIC_PAUSE_MS) / 1_000)
            return pb.Status(code=pb.MESSAGE_NOT_FOUND, message=outcome.remark)
        return status_of(outcome)

    # -- giving back -------------------------------------------------------------------------------------

    def _in_background(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _give_back_later(
        self, popping: "asyncio.Future[Outcome[Any]]", pop: PopMessageRequest, broker_name: str, call: Call
    ) -> None:
        """The broker may still pop messages for a client that is gone."""
        try:
            outcome = await popping
        except Refused:
            return
        if isinstance(outcome, Ok):
            await self._give_back([each for each, _, _ in _popped(outcome, pop, broker_name)], call)

    async def _ack_others(self, receipts: list[Receipt], call: Call) -> None:
        """Acknowledges messages of one pop that the client has not asked for."""
        again = Call(call.client, call.sender, now_ms() + CALL_MS)
        handles, one = [each.text() for each in receipts], receipts[0]
        for handle, status in zip(
            handles, await self._ack_all(handles, one.group, one.topic, again), strict=True
        ):
            if status.code != pb.OK:
                text = "%s: its tag is not wanted, and it cannot be acknowledged: %s"
                self._failures.tell(now_ms(), text, handle, status.message)

    async def _give_back(self, receipts: Iterable[Receipt], call: Call) -> None:
        again = Call(call.client, call.sender, now_ms() + CALL_MS)
        for receipt in receipts:
            try:
                outcome = await self._change(receipt, BACK_MS, again, suspend=True)
            except Refused as refused:
                outcome = Failed(0, str(refused))
            if not isinstance(outcome, Ok):
                text = "%s: cannot be given back, and is invisible for its time: %s"
                self._failures.tell(now_ms(), text, receipt.text(), outcome.remark)

    # -- acknowledging -----------------------------------------------------------------------------------

    async def ack_message(self, request: pb.AckMessageRequest, call: Call) -> pb.AckMessageResponse:
        """Acknowledges messages; one entry for each, in their order. Raises Refused."""
        group, topic = group_name(request.group, call.client), topic_name(request.topic, call.client)
        if not 0 < len(request.entries) <= ENTRIES_MAX:
            raise Refused(pb.BAD_REQUEST, f"{len(request.entries)} entries; 1 to {ENTRIES_MAX} are possible")
        handles = [each.receipt_handle for each in request.entries]
        statuses = await self._ack_all(handles, group, topic, call)
        entries = [
            pb.AckMessageResultEntry(
                message_id=each.message_id, receipt_handle=each.receipt_handle, status=status
            )
            for each, status in zip(request.entries, statuses, strict=True)
        ]
        return pb.AckMessageResponse(status=total_of(statuses), entries=entries)

    async def _ack_all(self, handles: list[str], group: str, topic: str, call: Call) -> list[pb.Status]:
        """Returns the status of each. Those that a batch did not acknowledge are sent one by one: each shows
        why."""
        acked = await self._ack_batches(handles, group, topic, call) if len(handles) > 1 else ()
        return [OK if each in acked else await self._ack(each, group, topic, call) for each in handles]

    async def _ack_batches(self, handles: list[str], group: str, topic: str, call: Call) -> set[str]:
        """Acknowledges messages with one request to each broker. Returns the handles of those that are."""
        at_broker: dict[str, dict[str, Receipt]] = {}
        for each in handles:
            with suppress(Refused):
                receipt = receipt_of(each, group=group, topic=topic)
                if receipt.fits_batch:
                    at_broker.setdefault(receipt.broker_name, {})[each] = receipt
        acked: set[str] = set()
        for name, receipts in at_broker.items():
            body = batch_ack_of(receipts.values())
            outcome = await self._cluster.call(topic, name, BATCH_ACK_MESSAGE, Empty(), body, call=call)
            if isinstance(outcome, Ok):
                acked |= receipts.keys()
        return acked

    async def _ack(self, handle: str, group: str, topic: str, call: Call) -> pb.Status:
        try:
            receipt = receipt_of(handle, group=group, topic=topic)
            outcome = await self._call(receipt, ACK_MESSAGE, receipt.ack(), call)
        except Refused as refused:
            return refused.status
        return OK if isinstance(outcome, Ok) else status_of_handle(outcome)

    async def change_invisible_duration(
        self, request: pb.ChangeInvisibleDurationRequest, call: Call
    ) -> pb.ChangeInvisibleDurationResponse:
        """Sets when a message is visible again. The answer always has a handle: Python keeps that of a
        refusal, too."""
        try:
            group, topic = group_name(request.group, call.client), topic_name(request.topic, call.client)
            receipt = receipt_of(request.receipt_handle, group=group, topic=topic)
            asked_ms = ms_of(request.invisible_duration)
            if not 0 <= asked_ms <= INVISIBLE_MS_MAX:
                raise Refused(pb.ILLEGAL_INVISIBLE_TIME, f"{asked_ms} ms is not in 0..{INVISIBLE_MS_MAX}")
            outcome = await self._change(
                receipt, nack_ms(asked_ms, call.client), call, suspend=request.suspend
            )
        except Refused as refused:
            return _changed(refused.status, request.receipt_handle)
        if not isinstance(outcome, Ok):
            return _changed(status_of_handle(outcome), request.receipt_handle)
        return _changed(OK, receipt.changed(outcome.header).text())

    async def forward_message_to_dead_letter_queue(
        self, request: pb.ForwardMessageToDeadLetterQueueRequest, call: Call
    ) -> pb.ForwardMessageToDeadLetterQueueResponse:
        """Stores a message in the group's dead letter topic, and then acknowledges it: an error between the
        two repeats the dead letter, and loses no message. Raises Refused."""
        group, topic = group_name(request.group, call.client), topic_name(request.topic, call.client)
        receipt = receipt_of(request.receipt_handle, group=group, topic=topic)
        header = receipt.send_back(request.message_id)
        outcome = await self._call(receipt, CONSUMER_SEND_MSG_BACK, header, call)
        if not isinstance(outcome, Ok):
            return pb.ForwardMessageToDeadLetterQueueResponse(status=status_of_dead_letter(outcome))
        status = await self._ack(request.receipt_handle, group, topic, call)
        return pb.ForwardMessageToDeadLetterQueueResponse(status=status)

    async def _change(
        self, receipt: Receipt, invisible_ms: int, call: Call, *, suspend: bool
    ) -> Outcome[Any]:
        header = receipt.change(invisible_ms, suspend=suspend)
        return await self._call(receipt, CHANGE_MESSAGE_INVISIBLETIME, header, call)

    async def _call(
        self, receipt: Receipt, operation: Operation[Any, Any], header: Wire, call: Call
    ) -> Outcome[Any]:
        """Sends a request about a popped message to its broker. Raises Refused: there is no route, or no such
        broker any more."""
        name = receipt.broker_name
        try:
            outcome = await self._cluster.call(receipt.topic, name, operation, header, call=call)
        except Refused:
            await self._check_broker(receipt)
            raise
        if isinstance(outcome, Ok):
            self._absences.answered(name)
        elif is_too_early(outcome):
            await self._check_broker(receipt)
        return outcome

    async def _check_broker(self, receipt: Receipt) -> None:
        """Raises Refused: see Absences."""
        name = receipt.broker_name
        if await self._cluster.lacks(receipt.topic, name) and self._absences.is_gone(
            receipt, now_ms=now_ms(), wall_ms=wall_ms()
        ):
            remark = f"name servers have not known broker {name} for {GONE_MS // 60_000} min: the message is"
            raise Refused(pb.INVALID_RECEIPT_HANDLE, f"{remark} visible again if the broker comes back")


def _changed(status: pb.Status, handle: str) -> pb.ChangeInvisibleDurationResponse:
    return pb.ChangeInvisibleDurationResponse(status=status, receipt_handle=handle)


def _popped(outcome: Ok[Any], pop: PopMessageRequest, broker_name: str) -> list[tuple[Receipt, int, Any]]:
    """Returns receipt, delivery attempt and message of each message. Raises Refused: they cannot be read."""
    try:
        messages = decode_messages(outcome.body, broker_name)
    except RemoteProtocolError as error:
        raise Refused(pb.INTERNAL_SERVER_ERROR, str(error)) from error
    receipts = receipts_of(
        messages, outcome.header, group=pop.consumer_group, topic=pop.topic, broker_name=broker_name
    )
    return [(*each, message) for each, message in zip(receipts, messages, strict=True)]


def subscription_of(request: pb.ReceiveMessageRequest | pb.PullMessageRequest, call: Call) -> Subscription:
    """Returns the topic and the filter. Raises Refused."""
    topic, wanted = topic_name(request.message_queue.topic, call.client), request.filter_expression
    kind = ExpressionType.SQL92 if wanted.type == pb.SQL else ExpressionType.TAG
    try:
        return Subscription(topic, wanted.expression.strip() or ALL, kind)
    except ValueError as error:
        raise Refused(pb.ILLEGAL_FILTER_EXPRESSION, str(error)) from None


def _invisible_ms(request: pb.ReceiveMessageRequest) -> int:
    asked_ms = ms_of(request.invisible_duration)
    if not INVISIBLE_MS_MIN <= asked_ms <= INVISIBLE_MS_MAX:
        remark = f"invisible_duration {asked_ms} ms is not in {INVISIBLE_MS_MIN}..{INVISIBLE_MS_MAX}"
        raise Refused(pb.ILLEGAL_INVISIBLE_TIME, remark)
    return asked_ms
