"""Handlers of pop consumption (200050..200055, 200151, 29061). Requests are checked in RocketMQ's order.

A pop or an acknowledgement is answered when its record is as safe as an acknowledged message. So every later
master knows the handles that clients have, and the acknowledgements. Source: RocketMQ 5.5
PopMessageProcessor, AckMessageProcessor, ChangeInvisibleTimeProcessor, NotificationProcessor.
"""

import re
from functools import partial
from typing import Final

from broker.admission.send_gate import PutRefused
from broker.filter.core.sql import BadSubscription
from broker.filter.core.subscription import MATCH_ALL, SQL92, TAG, MessageFilter, parse
from broker.message.record import tag_code
from broker.metadata.core.attributes import priority_factor
from broker.metadata.core.topic_names import RETRY_PREFIX, can_be_retried
from broker.metadata.groups import FORBIDDEN_READ, Group
from broker.metadata.service import Metadata
from broker.metadata.topics import PERM_READ, Topic
from broker.pop.core.handles import ORDER_REVIVE_QUEUE, BadHandle, Handle, bits_of, parse_handle, topic_of
from broker.pop.core.order import QueueOfGroup
from broker.pop.core.state import INVISIBLE_MS_MAX, Key
from broker.pop.long_polling import PollingKey, PopLongPolling, Waiter
from broker.pop.reading import (
    ATTEMPT_CHARACTERS_MAX,
    MESSAGES_MAX,
    OWNER_CHARACTERS_MAX,
    PopParameters,
    PopReader,
    PopResult,
)
from broker.pop.service import PopService
from broker.put.forward_to_master import ask_master
from broker.put.handler_context import HandlerContext
from broker.put.message_writer import MessageWriter
from broker.stats.rpc_latency import TIMED
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import response_frame
from keelmq.remoting.operation import Call, CommandError, Empty, OperationTable, Peer, Reply, Wire
from keelmq.remoting.operations.pop import (
    ACK_MESSAGE,
    BATCH_ACK_MESSAGE,
    CHANGE_MESSAGE_INVISIBLETIME,
    DELIVERED_MAX,
    NOTIFICATION,
    PEEK_MESSAGE,
    POLLING_INFO,
    POP_MESSAGE,
    RENEW_POPPED,
    AckMessageRequest,
    BatchAck,
    BatchAckBody,
    ChangeInvisibleTimeRequest,
    ChangeInvisibleTimeResponse,
    NotificationRequest,
    NotificationResponse,
    PeekMessageRequest,
    PollingInfoRequest,
    PollingInfoResponse,
    PopMessageRequest,
    PopMessageResponse,
    RenewPoppedRequest,
    RenewPoppedResponse,
)
from keelmq.runtime.clock import wall_ms

STALE_MS: Final = 500
"""A pop that is older than its pollTime by this much is refused: its client has given up."""
READY_MS: Final = 2_000
"""How long a request waits while a new master reads the revive queues."""
NO_TOPIC: Final = "topic[{}] not exist, apply first please!"
NO_SQL: Final = "the broker does not support consumer to filter message by SQL92: enablePropertyFilter"


_POP_TIME: Final = re.compile(r"[0-9]{1,18}")


class PopHandlers:
    def __init__(
        self,
        context: HandlerContext,
        metadata: Metadata,
        writer: MessageWriter,
        pop: PopService,
        polling: PopLongPolling,
    ) -> None:
        self._context, self._metadata, self._writer, self._pop = context, metadata, writer, pop
        self._reader = PopReader(context, pop)
        self.polling = polling
        self._unfinished: dict[PollingKey, None] = {}  # their filters have more to read, in this order
        self._is_continue_scheduled = False

    def bind(self, table: OperationTable) -> None:
        """Binds 200050 to 200055, 200151 and 29061."""
        table.bind(POP_MESSAGE, self.pop)
        table.bind(ACK_MESSAGE, self.ack)
        table.bind(BATCH_ACK_MESSAGE, self.batch_ack)
        table.bind(CHANGE_MESSAGE_INVISIBLETIME, self.change_invisible_time)
        table.bind(RENEW_POPPED, self.renew)
        table.bind(NOTIFICATION, self.notification)
        table.bind(PEEK_MESSAGE, self.peek)
        table.bind(POLLING_INFO, self.polling_info)

    def expire(self, now: int) -> None:
        """Answers the requests whose timeout has passed. Called several times a second."""
        if len(self.polling):
            self.polling.expire(now)

    # -- popping -----------------------------------------------------------------------------------------

    async def pop(self, header: PopMessageRequest, call: Call) -> Reply | None:
        """Pops messages, or waits up to pollTime for some (200050). Raises CommandError if refused."""
        now = wall_ms()
        if now - (header.born_time or now) - header.poll_time > STALE_MS:
            remark = "the pop is older than its pollTime"
            raise CommandError(ResponseCode.POLLING_TIMEOUT, remark, PopMessageResponse())
        if not 0 < header.max_msg_nums <= MESSAGES_MAX:
            remark = f"maxMsgNums {header.max_msg_nums} is not in 1..{MESSAGES_MAX}"
            raise CommandError(ResponseCode.INVALID_PARAMETER, remark)
        if call.is_oneway:  # no client would get its messages
            raise CommandError(ResponseCode.INVALID_PARAMETER, "a pop must not be oneway")
        topic, group = self._readable(header.consumer_group, header.topic, header.queue_id, call.peer)
        params = PopParameters(
            header.consumer_group, header.topic, header.queue_id, topic.read_queue_nums, header.max_msg_nums,
            min(header.invisible_time, INVISIBLE_MS_MAX), self._wanted(header), header.init_mode,
            header.order, (header.attempt_id or "")[:ATTEMPT_CHARACTERS_MAX],
            0 if header.order else priority_factor(topic.config.attributes, group.config.attributes),
            _owner(header.owner or ""),
        )  # fmt: skip
        await self._must_serve()
        if self._is_full(params):
            raise CommandError(ResponseCode.SYSTEM_BUSY, "too many popped messages are not acknowledged yet")
        return None if self._pop_now(params, call) else self._wait(params, header.poll_time, call.for_later())

    def _readable(self, group_name: str, topic_name: str, queue_id: int, peer: Peer) -> tuple[Topic, Group]:
        if not self._context.readable:
            raise CommandError(ResponseCode.NO_PERMISSION, "the broker pop message is forbidden")
        topic = self._context.topics.get(topic_name)
        if topic is None:
            raise CommandError(ResponseCode.TOPIC_NOT_EXIST, NO_TOPIC.format(topic_name))
        if not topic.perm & PERM_READ:
            raise CommandError(
                ResponseCode.NO_PERMISSION, f"the topic[{topic_name}] peeking message is forbidden"
            )
        if self._context.store.queues.is_batch(topic_name):
            remark = f"the topic[{topic_name}] has queue.type=BatchCQ: its batches are pulled, not popped"
            raise CommandError(ResponseCode.NO_PERMISSION, remark)
        if queue_id >= topic.read_queue_nums:
            limit = f"topicConfig.readQueueNums:[{topic.read_queue_nums}]"
            remark = f"queueId[{queue_id}] is illegal, topic:[{topic_name}] {limit}"
            raise CommandError(ResponseCode.INVALID_PARAMETER, remark)
        if not can_be_retried(group_name, topic_name):
            raise CommandError(
                ResponseCode.INVALID_PARAMETER, "group and topic are too long for a retry topic"
            )
        group = self._context.find_group(group_name, peer)
        if group is None:
            remark = f"subscription group [{group_name}] does not exist"
            raise CommandError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group.config.consume_enable or group.forbidden.get(topic_name, 0) & FORBIDDEN_READ:
            raise CommandError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group_name}")
        return topic, group

    def _wanted(self, header: PopMessageRequest | NotificationRequest) -> MessageFilter:
        if not header.exp:
            return MATCH_ALL
        kind = header.exp_type or TAG
        if kind == SQL92 and not self._context.settings.enable_property_filter:
            raise CommandError(ResponseCode.SYSTEM_ERROR, NO_SQL)
        try:
            return parse(header.exp, kind, tag_code)
        except BadSubscription as error:
            remark = f"parse the consumer's subscription failed: {error}"
            raise CommandError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from error

    async def _must_serve(self) -> None:
        """Raises CommandError unless this master accepts sends, by minInSyncReplicas too, and is ready."""
        gate, context = self._context.gate, self._context
        context.gate.require_durability()
        if not gate.writable or not (self._pop.is_ready or await self._pop.ready(READY_MS)):
            raise CommandError(ResponseCode.SERVICE_NOT_AVAILABLE, gate.unavailable)

    def _pop_now(self, params: PopParameters, call: Call) -> bool:
        """Answers the pop with messages or a refusal. False: there are no messages."""
        if not self._pop.is_ready or self._is_full(params):
            return False
        popped = self._reader.pop(params, wall_ms())
        if not popped.messages:
            if popped.refused is None:
                if popped.is_unfinished:
                    self._continue_later(_polling_key(params))
                return False
            call.peer.send(response_frame(call.opaque, *popped.refused))
            return True
        reply = self._found(params, popped, call)
        if popped.end and self._context.gate.wait:
            self._context.pending.add(popped.end, call.peer, reply, self._writer.tick.ms, 1, TIMED)
        else:
            call.peer.send(reply)
        return True

    def _continue_later(self, key: PollingKey) -> None:
        """Continues reading for waiting pops without a match so far, one key per turn of the loop."""
        self._unfinished[key] = None
        self._schedule_continue()

    def _schedule_continue(self) -> None:
        if self._unfinished and not self._is_continue_scheduled:
            self._is_continue_scheduled = True
            self._context.call_soon(self._continue)

    def _continue(self) -> None:
        self._is_continue_scheduled = False
        key = next(iter(self._unfinished))
        del self._unfinished[key]  # it is queued behind the others if there is still more
        self.polling.serve(key)
        self._schedule_continue()

    def _is_full(self, params: PopParameters) -> bool:
        return self._pop.order.is_full if params.is_ordered else self._pop.state.is_full

    def _found(self, params: PopParameters, popped: PopResult, call: Call) -> bytes:
        body = b"".join(popped.bodies)
        return response_frame(call.opaque, ResponseCode.SUCCESS, "FOUND", popped.header(params), body)

    def _wait(self, params: PopParameters, poll_ms: int, call: Call) -> Reply | None:
        nothing = PopMessageResponse(invisible_time=params.invisible_ms)

        def give_up() -> None:
            code = ResponseCode.POLLING_TIMEOUT
            call.peer.send(response_frame(call.opaque, code, "NO_MESSAGE_IN_QUEUE", nothing))

        if poll_ms <= 0:
            return Reply(nothing, code=ResponseCode.POLLING_TIMEOUT, remark="NO_MESSAGE_IN_QUEUE")
        deadline_ms = self._context.now_ms() + min(poll_ms, self._context.settings.suspend_ms_max)
        again = partial(self._pop_now, params, call)
        if self.polling.add(Waiter(_polling_key(params), call.peer, deadline_ms, again, give_up)):
            return None
        return Reply(nothing, code=ResponseCode.POLLING_FULL, remark="too many pops are waiting")

    # -- acknowledging -----------------------------------------------------------------------------------

    async def ack(self, header: AckMessageRequest, call: Call) -> Reply | None:
        """Acknowledges one message (200051). Raises CommandError if handle, queue or offset are wrong."""
        if not self._context.gate.writable and await ask_master(self._context, ACK_MESSAGE, header):
            return Reply()
        handle, key = self._named(header)
        await self._must_serve()
        if handle.is_ordered:
            return await self._ack_ordered(key, [header.offset], call)
        end = self._pop.ack(key, handle.revive_queue, [header.offset])
        return self._acked(end, call, RequestCode.ACK_MESSAGE)

    def _named(self, header: AckMessageRequest | ChangeInvisibleTimeRequest) -> tuple[Handle, Key]:
        """Returns the handle and the key of its checkpoint. Raises CommandError."""
        try:
            handle = parse_handle(header.extra_info)
        except BadHandle as error:
            raise CommandError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        group, topic = header.consumer_group, header.topic
        if not topic.startswith(RETRY_PREFIX):
            topic = topic_of(handle.retry, group, topic)
        self._must_exist(topic, header.queue_id)
        store = self._context.store
        low = store.min_queue_offset(topic, header.queue_id)
        high = store.max_queue_offset(topic, header.queue_id)
        if not low <= header.offset <= high:
            remark = f"offset {header.offset} is outside of {topic}/{header.queue_id}: {low}..{high}"
            raise CommandError(ResponseCode.NO_MESSAGE, remark)
        return handle, Key(group, topic, header.queue_id, handle.start_offset, handle.pop_ms)

    def _must_exist(self, name: str, queue_id: int) -> None:
        topic = self._context.topics.get(name)
        if topic is None:
            raise CommandError(ResponseCode.TOPIC_NOT_EXIST, NO_TOPIC.format(name))
        if not 0 <= queue_id < topic.read_queue_nums:
            raise CommandError(
                ResponseCode.MESSAGE_ILLEGAL, f"queueId[{queue_id}] is illegal, topic:[{name}]"
            )

    def _acked(
        self, end: int | PutRefused, call: Call, code: RequestCode, header: Wire | None = None
    ) -> Reply | None:
        """Answers when the log is as safe up to `end` as sync flush and replicas require for a message."""
        if isinstance(end, PutRefused):
            raise CommandError(*end)
        if not end or not self._context.gate.wait or call.is_oneway:
            return Reply(header)
        reply = response_frame(call.opaque, ResponseCode.SUCCESS, None, header)
        self._context.pending.add(end, call.peer, reply, self._writer.tick.ms, 1, code)
        return None

    async def _ack_ordered(self, key: Key, offsets: list[int], call: Call) -> Reply:
        """Advances the group's offset. Answered when the replicas have it."""
        place = QueueOfGroup(key.group, key.topic, key.queue_id)
        block = None
        for offset in offsets:
            block = self._pop.order.ack(place, offset, key.pop_ms) or block
        if block is None:
            return Reply()  # of an earlier pop: the messages were popped again
        self._pop.offsets.commit(place, block.progress)
        if not self._pop.order.is_blocked(place, "", now_ms=wall_ms()):
            self.polling.free(key.group, key.topic)
        if not call.is_oneway:
            offsets_table = self._metadata.offsets
            await self._metadata.replicated(offsets_table, offsets_table.commit_staged())
        return Reply()

    async def batch_ack(self, header: Empty, call: Call) -> Reply | None:
        """Acknowledges messages of several checkpoints (200151). Raises CommandError. Those of a topic or
        queue that does not exist (any more) are skipped, as in RocketMQ, to acknowledge the others."""
        body = call.body if isinstance(call.body, BatchAckBody) else BatchAckBody()
        if not body.acks:
            return Reply(code=ResponseCode.NO_MESSAGE, remark="the request names no message")
        await self._must_serve()
        end = 0
        for ack in body.acks:
            end = max(end, await self._ack_batch(ack, call))
        return self._acked(end, call, RequestCode.BATCH_ACK_MESSAGE)

    async def _ack_batch(self, ack: BatchAck, call: Call) -> int:
        try:
            offsets = [ack.start_offset + bit for bit in bits_of(ack.bits)]
        except BadHandle as error:
            raise CommandError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        topic = ack.topic if ack.topic.startswith(RETRY_PREFIX) else topic_of(ack.retry, ack.group, ack.topic)
        known = self._context.topics.get(topic)
        if known is None or not 0 <= ack.queue_id < known.read_queue_nums:
            return 0
        key = Key(ack.group, topic, ack.queue_id, ack.start_offset, ack.pop_ms)
        if ack.revive_queue == ORDER_REVIVE_QUEUE:
            await self._ack_ordered(key, offsets, call)
            return 0
        end = self._pop.ack(key, ack.revive_queue, offsets)
        if isinstance(end, PutRefused):
            raise CommandError(*end)
        return end

    async def change_invisible_time(self, header: ChangeInvisibleTimeRequest, call: Call) -> Reply | None:
        """Sets when a popped message is visible again (200053). Raises CommandError as ack()."""
        handle, key = self._named(header)
        await self._must_serve()
        invisible_ms, is_suspended = min(header.invisible_time, INVISIBLE_MS_MAX), bool(header.suspend)
        if handle.is_ordered:
            return self._change_ordered(handle, key, header.offset, invisible_ms, is_suspended=is_suspended)
        changed = self._pop.change(
            key, handle.revive_queue, header.offset, invisible_ms, is_suspended=is_suspended
        )
        if isinstance(changed, PutRefused):
            raise CommandError(*changed)
        pop_ms, end = changed
        answer = ChangeInvisibleTimeResponse(
            pop_time=pop_ms, invisible_time=invisible_ms, revive_qid=handle.revive_queue
        )
        return self._acked(end, call, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, answer)

    def _change_ordered(
        self, handle: Handle, key: Key, offset: int, invisible_ms: int, *, is_suspended: bool
    ) -> Reply:
        """Keeps the pop time; the invisible time in the answer is counted from it."""
        place = QueueOfGroup(key.group, key.topic, key.queue_id)
        visible_ms = wall_ms() + invisible_ms
        changed = self._pop.order.change(place, offset, handle.pop_ms, visible_ms, is_suspended=is_suspended)
        if changed is None:
            remark = "the receipt handle has expired: the message was acknowledged or popped again"
            raise CommandError(ResponseCode.NO_MESSAGE, remark)
        answer = ChangeInvisibleTimeResponse(
            pop_time=handle.pop_ms,
            invisible_time=visible_ms - handle.pop_ms,
            revive_qid=ORDER_REVIVE_QUEUE,
        )
        return Reply(answer)

    async def renew(self, header: RenewPoppedRequest, call: Call) -> Reply | None:
        """Keeps what a client of gRPC has received invisible, or gives it back (29061). Raises
        CommandError."""
        await self._must_serve()
        group, topic, owner = header.consumer_group, header.topic, _owner(header.owner)
        if header.ended:
            renewed = self._pop.give_back(group, topic, owner, header.invisible_time)
        else:
            delivered = _pop_times(header.delivered or "")
            renewed = self._pop.renew(group, topic, owner, header.invisible_time, delivered)
        if isinstance(renewed, PutRefused):
            raise CommandError(*renewed)
        answer = RenewPoppedResponse(visible_in=renewed.visible_in)
        return self._acked(renewed.end, call, RequestCode.KEELMQ_RENEW_POPPED, answer)

    # -- peek and notification ---------------------------------------------------------------------------

    async def peek(self, header: PeekMessageRequest, call: Call) -> Reply:
        """Returns the next messages without popping them (200052)."""
        topic, _ = self._readable(header.consumer_group, header.topic, header.queue_id, call.peer)
        messages = min(max(header.max_msg_nums, 1), MESSAGES_MAX)
        params = PopParameters(
            header.consumer_group, header.topic, header.queue_id, topic.read_queue_nums, messages, 0
        )
        popped = self._reader.peek(params, wall_ms())
        if not popped.messages and popped.refused is not None:
            raise CommandError(*popped.refused)
        answer = PopMessageResponse(pop_time=popped.pop_ms, rest_num=popped.rest)
        if not popped.messages:
            return Reply(answer, code=ResponseCode.PULL_NOT_FOUND, remark="NO_MESSAGE_IN_QUEUE")
        return Reply(answer, b"".join(popped.bodies), remark="FOUND")

    async def notification(self, header: NotificationRequest, call: Call) -> Reply | None:
        """Tells whether a pop would find messages; waits up to pollTime for some (200054)."""
        topic, _ = self._readable(header.consumer_group, header.topic, header.queue_id, call.peer)
        await self._must_serve()
        params = PopParameters(
            header.consumer_group, header.topic, header.queue_id, topic.read_queue_nums, 1, 0,
            self._wanted(header), is_ordered=header.order,
            attempt_id=(header.attempt_id or "")[:ATTEMPT_CHARACTERS_MAX],
        )  # fmt: skip
        if self._reader.has_any(params, wall_ms()):
            return Reply(NotificationResponse(has_msg=True))
        if header.poll_time <= 0 or call.is_oneway:
            return Reply(NotificationResponse(has_msg=False))

        later = call.for_later()

        def tell(has_message: bool) -> None:
            answer = NotificationResponse(has_msg=has_message)
            later.peer.send(response_frame(later.opaque, ResponseCode.SUCCESS, None, answer))

        def look() -> bool:
            if found := self._reader.has_any(params, wall_ms()):
                tell(True)
            return found

        deadline_ms = self._context.now_ms() + min(header.poll_time, self._context.settings.suspend_ms_max)
        if self.polling.add(Waiter(_polling_key(params), call.peer, deadline_ms, look, lambda: tell(False))):
            return None
        return Reply(NotificationResponse(has_msg=False, polling_full=True))

    async def polling_info(self, header: PollingInfoRequest, call: Call) -> PollingInfoResponse:
        """Returns how many requests of the group wait (200055)."""
        key = PollingKey(header.consumer_group, header.topic, max(header.queue_id, -1))
        return PollingInfoResponse(polling_num=self.polling.count_at(key))


def _owner(text: str) -> str:
    if len(text) > OWNER_CHARACTERS_MAX:
        remark = f"the owner has {len(text)} characters; {OWNER_CHARACTERS_MAX} is the limit"
        raise CommandError(ResponseCode.INVALID_PARAMETER, remark)
    return text


def _pop_times(text: str) -> frozenset[int]:
    """Raises CommandError."""
    parts = text.split(",") if text else []
    if len(parts) > DELIVERED_MAX or not all(_POP_TIME.fullmatch(part) for part in parts):
        remark = f"delivered is not up to {DELIVERED_MAX} times of pops with commas"
        raise CommandError(ResponseCode.INVALID_PARAMETER, remark)
    return frozenset(map(int, parts))


def _polling_key(params: PopParameters) -> PollingKey:
    return PollingKey(params.group, params.topic, max(params.queue_id, -1))
