"""MessageWriter: puts messages into the log for every handler and service but the plain sends.

The plain sends (broker/handlers/send.py) have the same steps inline, and share the Tick. A message with a
delay level is stored in SCHEDULE_TOPIC_XXXX, a timer message in rmq_sys_wheel_timer, with the real topic and
queue among its properties; only these distinguish it.
"""

import logging
import struct
from collections.abc import Callable
from typing import Final

from broker.admission.fast_path import FastPathPeer
from broker.admission.pending_replies import PendingReplies
from broker.admission.send_gate import CUT_OFF, PutRefused, SendGate
from broker.message.delay_levels import OUT_MS, SCHEDULE_TOPIC, TIMER_TOPIC, DelayLevels, timer_code
from broker.message.prop_crc import CRC_NAME
from broker.message.properties import with_properties, without
from broker.message.record import property_value, tags_code
from broker.message.timer_properties import ROLL_TIMES, recall_key
from broker.put.message_to_store import MessageToStore, PutMessageResult
from broker.stats.rpc_latency import SUCCESS, Answers, RpcLatency
from broker.store.client_batch import StoredBatch, put_batch, put_inner_batch
from broker.store.message_store import MessageStore
from broker.store.queue.batch_queue import BatchQueue
from broker.store.settings import NamedTopic
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.turn_requests import FULL_TURN, TurnRequests
from keelmq.runtime.clock import now_ms, now_us, wall_ms
from keelmq.runtime.histogram import Histogram
from keelmq.runtime.rate_limited_log import RateLimitedLogger

logger = logging.getLogger(__name__)

ERROR_LOG_PERIOD_MS: Final = 5_000
SENDS: Final = Answers(RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS, False, SUCCESS)
SENDS_V1: Final = SENDS._replace(request_code=RequestCode.SEND_MESSAGE)
TIMER_BOUNDS_S: Final = (60, 600, 3_600, 43_200, 86_400, 259_200)
_SCHEDULE: Final = NamedTopic(SCHEDULE_TOPIC)
_TIMER: Final = NamedTopic(TIMER_TOPIC)


class Tick:
    """Shared by the messages of one event-loop iteration: a reading of the clocks, one check of the lease,
    and one call of end_of_tick. The fast path reads `is_due`, `ms` and `wall_ms` for every message.

    `answered`, `answered_v1`: sends of code 310 and 10 that are answered in this iteration, for the
    histogram of latencies. `code`: of the send that is served now. `alone`: sends that were stored one by
    one. `turns`: notified when these were many."""

    __slots__ = (
        "_answered",
        "_call_soon",
        "_end_of_tick",
        "_gate",
        "_latency",
        "_store",
        "alone",
        "answered",
        "answered_v1",
        "code",
        "is_due",
        "ms",
        "turns",
        "us",
        "wall_ms",
    )

    def __init__(
        self,
        store: MessageStore,
        gate: SendGate,
        call_soon: Callable[[Callable[[], None]], object],
        end_of_tick: Callable[[], None],
        answered: Callable[[int], None],
        latency: RpcLatency,
    ) -> None:
        """answered: gets the duration of a tick (ms) if its replies need not wait."""
        self._latency, self.code = latency, int(RequestCode.SEND_MESSAGE_V2)
        self.answered = self.answered_v1 = 0
        self._store, self._gate = store, gate
        self._call_soon, self._end_of_tick, self._answered = call_soon, end_of_tick, answered
        self.is_due = False
        self.turns: list[TurnRequests] = []
        self.alone = 0
        self.ms = self.us = self.wall_ms = 0

    def starts_cut_off(self) -> bool:
        """Reads the clocks for the first message of a tick, and checks the lease. True: there may be another
        master, so no message must be stored that it would not have."""
        self.wall_ms, self.us = wall_ms(), now_us()
        self.ms = self.us // 1_000
        lease = self._gate.lease
        return lease is not None and lease(self.ms)

    def schedule(self) -> None:
        """Schedules the end of the tick, after its first message was stored."""
        self.is_due = True
        self._call_soon(self._end)

    def _end(self) -> None:
        self.is_due = False
        elapsed_ms = now_ms() - self.ms
        if not self._gate.wait:
            self._answered(elapsed_ms)
        if self.answered:
            count, self.answered = self.answered, 0
            self._latency.of(SENDS).observe(elapsed_ms, count)
        if self.answered_v1:
            count, self.answered_v1 = self.answered_v1, 0
            self._latency.of(SENDS_V1).observe(elapsed_ms, count)
        store, us = self._store, self.us
        if self.alone >= FULL_TURN:
            for turn in self.turns:
                turn.is_on = True
        self.alone = 0
        times, end = store.dispatcher.confirm_times, store.commit_log.max_offset
        self._end_of_tick()
        if times.is_on:
            if end <= store.confirm_offset:  # by this call, or by an ack that came between the put and it
                times.confirmed_at_once(now_us() - us)
            else:
                times.appended(us, end)


class MessageWriter:
    """Owned by the event loop's thread."""

    def __init__(
        self,
        store: MessageStore,
        gate: SendGate,
        pending: PendingReplies,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        end_of_tick: Callable[[], None],
    ) -> None:
        """call_soon: the event loop's. end_of_tick: called once per loop iteration in which something was
        put; it pushes to the replicas or, without them, moves the confirmOffset."""
        self._store, self._gate, self._pending = store, gate, pending
        self._levels: DelayLevels = store.delay_levels
        self.tick = Tick(store, gate, call_soon, end_of_tick, self._answered, pending.latency)
        self._times, self._put_before = pending.times, store.put_messages
        self._limited_logger = RateLimitedLogger(logger, period_ms=ERROR_LOG_PERIOD_MS, level=logging.ERROR)
        self.timer_delays: dict[str, Histogram] = {}
        """From the birth of timer messages to their delivery time, in s, by topic."""

    def _refuse(self) -> PutRefused | None:
        """Refuses everything while the gate is closed or the lease is over."""
        if not self._gate.writable:
            return PutRefused(ResponseCode.SERVICE_NOT_AVAILABLE, self._gate.unavailable)
        if not self.tick.is_due and self.tick.starts_cut_off():
            return PutRefused(ResponseCode.SERVICE_NOT_AVAILABLE, CUT_OFF)
        return None

    def put(self, to_store: MessageToStore) -> PutMessageResult | PutRefused:
        """Stores one message: as a delayed one with delay_level, as a timer message with timer_out_ms."""
        tick = self.tick
        refused = self._refuse()
        if refused is not None:
            return refused
        topic, queue_id, properties = to_store.topic, to_store.queue_id, to_store.properties
        if CRC_NAME in properties:  # the checksum of the original record
            properties = without(properties, CRC_NAME)
        if to_store.delay_level:
            topic, queue_id = _SCHEDULE, to_store.delay_level - 1
            properties = with_properties(properties, _real(to_store))
            code = self._levels.due_at(properties, tick.wall_ms)
        elif to_store.timer_out_ms:
            topic, queue_id = _TIMER, 0
            properties = with_properties(
                properties, _real(to_store) | {OUT_MS: b"%d" % to_store.timer_out_ms}
            )
            code = timer_code(properties)
        else:
            code = tags_code(properties)
        properties = properties.removesuffix(b"\x02")  # RocketMQ's records end without a separator
        # fmt: off
        try:
            stored = self._store.put(
                topic, queue_id, to_store.body, properties, to_store.flag, to_store.sys_flag,
                to_store.born_timestamp, to_store.born_host, to_store.reconsume_times, code, tick.wall_ms,
                prepared_offset=to_store.prepared_offset)
        except (struct.error, ValueError, OSError) as error:
            return self.failed(error)
        # fmt: on
        if not tick.is_due:
            tick.schedule()
        if to_store.timer_out_ms and recall_key(to_store.properties) is None:
            self._count_delay(to_store)
        return PutMessageResult(*stored)

    def _count_delay(self, timer: MessageToStore) -> None:
        if property_value(timer.properties, ROLL_TIMES) is not None:
            return  # it was counted when it was sent
        histogram = self.timer_delays.get(timer.topic.name)
        if histogram is None:
            histogram = self.timer_delays[timer.topic.name] = Histogram(TIMER_BOUNDS_S)
        histogram.observe(max(timer.timer_out_ms - timer.born_timestamp, 0) // 1_000)

    def put_batch(self, to_store: MessageToStore, shared: bytes) -> StoredBatch | PutRefused:
        """Stores all messages of the body, a client's batch, each with the shared properties; or none."""
        tick = self.tick
        refused = self._refuse()
        if refused is not None:
            return refused
        # fmt: off
        try:
            stored = put_batch(
                self._store, to_store.topic, to_store.queue_id, to_store.body, shared, to_store.sys_flag,
                to_store.born_timestamp, to_store.born_host, to_store.reconsume_times, tick.wall_ms)
        except OSError as error:
            return self.failed(error)
        except (struct.error, ValueError) as error:
            return PutRefused(ResponseCode.MESSAGE_ILLEGAL, f"the batch is illegal: {error}")
        # fmt: on
        if not tick.is_due:
            tick.schedule()
        return stored

    def put_inner_batch(self, to_store: MessageToStore, queue: BatchQueue) -> PutMessageResult | PutRefused:
        """Stores the body, a client's batch, as one record of a queue with queue.type=BatchCQ."""
        tick = self.tick
        refused = self._refuse()
        if refused is not None:
            return refused
        # fmt: off
        try:
            stored = put_inner_batch(
                self._store, queue, to_store.topic, to_store.body, to_store.properties, to_store.flag,
                to_store.sys_flag, to_store.born_timestamp, to_store.born_host, to_store.reconsume_times,
                tick.wall_ms)
        except OSError as error:
            return self.failed(error)
        except (struct.error, ValueError) as error:
            return PutRefused(ResponseCode.MESSAGE_ILLEGAL, f"the batch is illegal: {error}")
        # fmt: on
        if not tick.is_due:
            tick.schedule()
        return PutMessageResult(*stored)

    def _answered(self, elapsed_ms: int) -> None:
        put = self._store.put_messages
        self._times.add(elapsed_ms, put - self._put_before)
        self._put_before = put

    def failed(self, error: Exception) -> PutRefused:
        """Returns the refusal for an error of the store. Logs a failing disk."""
        self._times.failed += 1
        if not isinstance(error, OSError):
            return PutRefused(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
        text = "cannot write to the CommitLog, sends are refused: %s"
        self._limited_logger.tell(self.tick.ms, text, error)  # not one line per message on a full disk
        return PutRefused(ResponseCode.SYSTEM_ERROR, f"create mapped file failed: {error.strerror or error}")

    def reply_when_safe(self, stored: PutMessageResult, peer: FastPathPeer, reply: bytes) -> bytes | None:
        """Returns the success reply if it can be sent now. None: it is sent when the message is safe."""
        if not self._gate.wait:
            return reply
        self._pending.add(stored.end, peer, reply, self.tick.ms, 1, self.tick.code)
        return None


def _real(to_store: MessageToStore) -> dict[bytes, bytes | None]:
    return {b"REAL_TOPIC": to_store.topic.name.encode(), b"REAL_QID": b"%d" % to_store.queue_id}
