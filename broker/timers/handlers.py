"""Taking a timer message back (370), and the progress of timers for RocketMQ's replicas (60, 61).

A recall is a record of the timer queue, too, for the same time as its message. It comes too late when the
message is out. Source: RocketMQ 5.3.3 RecallMessageProcessor.
"""

from broker.handlers.elsewhere import ask_master
from broker.handlers.parts import BrokerParts
from broker.handlers.writer import Letter, Refused, Writer
from broker.metadata.store import data_version
from broker.metadata.timers import TimerProgressTable
from broker.timers.times import Handle, key_of, out_ms, parse_handle
from broker.topics import Topic, is_for_broker
from remoting.clock import wall_ms
from remoting.codes import ResponseCode
from remoting.command import response_frame
from remoting.operation import Call, CommandError, Empty, OperationTable, Reply
from remoting.operations.timers import (
    GET_TIMER_CHECK_POINT,
    GET_TIMER_METRICS,
    RECALL_MESSAGE,
    RecallMessageRequest,
    RecallMessageResponse,
)


class TimerHandlers:
    def __init__(self, parts: BrokerParts, writer: Writer, progress: TimerProgressTable) -> None:
        self._parts, self._writer, self._progress = parts, writer, progress

    def bind(self, table: OperationTable) -> None:
        table.bind(RECALL_MESSAGE, self.recall)
        table.bind(GET_TIMER_CHECK_POINT, self.get_checkpoint)
        table.bind(GET_TIMER_METRICS, self.get_metrics)

    async def recall(self, header: RecallMessageRequest, call: Call) -> Reply | None:
        parts, gate = self._parts, self._parts.gate
        if not parts.settings.recall_message_enable:
            raise CommandError(ResponseCode.NO_PERMISSION, "recallMessageEnable is false on this broker")
        topic, handle = self._check(header)
        answer = RecallMessageResponse(msg_id=handle.unique_key)
        if not gate.writable and await ask_master(
            parts, RECALL_MESSAGE, header, otherwise=ResponseCode.SLAVE_NOT_AVAILABLE
        ):
            return Reply(answer)
        if gate.in_sync < gate.min_in_sync or (gate.wait and parts.pending.is_full):
            raise CommandError(ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough, or too many wait")
        stored = self._writer.put(self._letter(topic, handle))
        if isinstance(stored, Refused):
            raise CommandError(*stored)
        if not gate.wait or call.is_oneway:
            return Reply(answer)
        reply = response_frame(call.opaque, ResponseCode.SUCCESS, None, answer)
        parts.pending.add(stored.end, call.peer, reply, self._writer.tick.ms)
        return None

    def _check(self, header: RecallMessageRequest) -> tuple[Topic, Handle]:
        parts = self._parts
        topic = parts.topics.get(header.topic)
        if topic is None or is_for_broker(header.topic):
            raise CommandError(ResponseCode.TOPIC_NOT_EXIST, f"the topic[{header.topic}] not exist")
        try:
            handle = parse_handle(header.recall_handle)
        except ValueError as error:
            raise CommandError(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        left_ms = handle.deliver_ms - wall_ms()
        for fits, remark in (
            (handle.topic == header.topic, f"the recall handle is of topic {handle.topic}"),
            (handle.broker_name == parts.broker_name, f"the recall handle is of {handle.broker_name}"),
            (left_ms > 0, "it is too late: the message is due already"),
            (left_ms <= parts.settings.timer_max_delay_sec * 1_000, "the time is above timerMaxDelaySec"),
        ):
            if not fits:
                raise CommandError(ResponseCode.ILLEGAL_OPERATION, remark)
        return topic, handle

    def _letter(self, topic: Topic, handle: Handle) -> Letter:
        key = handle.unique_key.encode()
        properties = b"".join(
            b"%b\x01%b\x02" % pair
            for pair in (
                (b"UNIQ_KEY", key),
                (b"TIMER_DEL_UNIQKEY", key_of(topic.name, key)),
                (b"TIMER_DELIVER_MS", b"%d" % handle.deliver_ms),
            )
        )
        slot_ms = out_ms(handle.deliver_ms, self._parts.settings.timer_precision_ms)
        host = self._parts.store.store_host
        return Letter(topic, 0, b"0", properties, 0, 0, wall_ms(), host, 0, timer_out_ms=slot_ms)

    async def get_checkpoint(self, header: Empty, call: Call) -> Reply:
        return Reply(body=self._progress.checkpoint(self._parts.settings.timer_precision_ms))

    async def get_metrics(self, header: Empty, call: Call) -> Reply:
        """Its replicas keep counters per topic; ours are in /metrics, and nobody needs them twice."""
        version = data_version(self._progress.table.version)
        return Reply(body={"dataVersion": version.model_dump(by_alias=True), "timingCount": {}})
