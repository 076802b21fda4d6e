"""Handlers of recalls of timer messages (370), and of their progress for RocketMQ's replicas (60, 61).

A recall is a record of the timer queue, like its message and with the same delivery time. A message can be
recalled until it is due. Source: RocketMQ 5.3.3 RecallMessageProcessor.
"""

from broker.admission.send_gate import PutRefused
from broker.message.timer_properties import Handle, key_of, out_ms, parse_handle
from broker.metadata.store import data_version
from broker.metadata.timers import TimerProgressTable
from broker.metadata.topics import Topic, is_for_broker
from broker.put.forward_to_master import ask_master
from broker.put.handler_context import HandlerContext
from broker.put.message_to_store import MessageToStore
from broker.put.message_writer import MessageWriter
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import response_frame
from keelmq.remoting.operation import Call, CommandError, Empty, OperationTable, Reply
from keelmq.remoting.operations.timers import (
    GET_TIMER_CHECK_POINT,
    GET_TIMER_METRICS,
    RECALL_MESSAGE,
    RecallMessageRequest,
    RecallMessageResponse,
)
from keelmq.runtime.clock import wall_ms


class TimerHandlers:
    def __init__(self, context: HandlerContext, writer: MessageWriter, progress: TimerProgressTable) -> None:
        self._context, self._writer, self._progress = context, writer, progress

    def bind(self, table: OperationTable) -> None:
        """Binds 370 (RECALL_MESSAGE), 60 and 61 (GET_TIMER_CHECK_POINT, GET_TIMER_METRICS)."""
        table.bind(RECALL_MESSAGE, self.recall)
        table.bind(GET_TIMER_CHECK_POINT, self.get_checkpoint)
        table.bind(GET_TIMER_METRICS, self.get_metrics)

    async def recall(self, header: RecallMessageRequest, call: Call) -> Reply | None:
        """Recalls a timer message that is not due yet, and returns its message id (370). Raises CommandError
        if the handle is illegal, or the timer is due."""
        context, gate = self._context, self._context.gate
        if not context.settings.recall_message_enable:
            raise CommandError(ResponseCode.NO_PERMISSION, "recallMessageEnable is false on this broker")
        topic, handle = self._check(header)
        answer = RecallMessageResponse(msg_id=handle.unique_key)
        if not gate.writable and await ask_master(
            context, RECALL_MESSAGE, header, otherwise=ResponseCode.SLAVE_NOT_AVAILABLE
        ):
            return Reply(answer)
        context.gate.require_durability()
        stored = self._writer.put(self._message(topic, handle))
        if isinstance(stored, PutRefused):
            raise CommandError(*stored)
        if not gate.wait or call.is_oneway:
            return Reply(answer)
        reply = response_frame(call.opaque, ResponseCode.SUCCESS, None, answer)
        code = RequestCode.RECALL_MESSAGE
        context.pending.add(stored.end, call.peer, reply, self._writer.tick.ms, 1, code)
        return None

    def _check(self, header: RecallMessageRequest) -> tuple[Topic, Handle]:
        context = self._context
        topic = context.topics.get(header.topic)
        if topic is None or is_for_broker(header.topic):
            raise CommandError(ResponseCode.TOPIC_NOT_EXIST, f"the topic[{header.topic}] not exist")
        try:
            handle = parse_handle(header.recall_handle)
        except ValueError as error:
            raise CommandError(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        left_ms = handle.deliver_ms - wall_ms()
        for fits, remark in (
            (handle.topic == header.topic, f"the recall handle is for topic {handle.topic}"),
            (handle.broker_name == context.broker_name, f"the recall handle is for {handle.broker_name}"),
            (left_ms > 0, "too late: the message is already due"),
            (left_ms <= context.settings.timer_max_delay_sec * 1_000, "the delay is above timerMaxDelaySec"),
        ):
            if not fits:
                raise CommandError(ResponseCode.ILLEGAL_OPERATION, remark)
        return topic, handle

    def _message(self, topic: Topic, handle: Handle) -> MessageToStore:
        key = handle.unique_key.encode()
        properties = b"".join(
            b"%b\x01%b\x02" % pair
            for pair in (
                (b"UNIQ_KEY", key),
                (b"TIMER_DEL_UNIQKEY", key_of(topic.name, key)),
                (b"TIMER_DELIVER_MS", b"%d" % handle.deliver_ms),
            )
        )
        slot_ms = out_ms(handle.deliver_ms, self._context.settings.timer_precision_ms)
        host = self._context.store.store_host
        return MessageToStore(topic, 0, b"0", properties, 0, 0, wall_ms(), host, 0, timer_out_ms=slot_ms)

    async def get_checkpoint(self, header: Empty, call: Call) -> Reply:
        """Returns the progress as a TimerCheckpoint of 56 bytes (60)."""
        return Reply(body=self._progress.checkpoint(self._context.settings.timer_precision_ms))

    async def get_metrics(self, header: Empty, call: Call) -> Reply:
        """Returns no counters (61): RocketMQ's replicas copy them per topic, and KeelMQ's are in /metrics."""
        version = data_version(self._progress.table.version)
        return Reply(body={"dataVersion": version.model_dump(by_alias=True), "timingCount": {}})
