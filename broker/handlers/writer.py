"""Putting a message into the log, for everybody but the plain send, which has the same steps in line.

Tick: messages of one loop iteration share a clock reading, a look at the lease and one end_of_tick. Letter: a
message ready to be stored. A delayed one is laid by in SCHEDULE_TOPIC_XXXX, and told apart by nothing else.
"""

import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.delay.levels import OUT_MS, SCHEDULE_TOPIC, TIMER_TOPIC, DelayLevels, timer_code
from broker.handlers.parts import BrokerParts
from broker.handlers.property_text import with_properties
from broker.pending import HotPeer, SendGate
from broker.store.batch import StoredBatch, put_batch
from broker.store.batch_queue import BatchQueue
from broker.store.inner_batch import put_inner_batch
from broker.store.property_bytes import without
from broker.store.record import tags_code
from broker.store.record_crc import CRC_NAME
from broker.store.settings import NamedTopic, TopicLike
from remoting.clock import now_ms, wall_ms
from remoting.codes import ResponseCode
from remoting.complaints import Complaints

logger = logging.getLogger(__name__)

NOT_AVAILABLE: Final = "service not available now"
CUT_OFF: Final = f"{NOT_AVAILABLE}: this master hears neither the controllers nor its in-sync replicas"
COMPLAINT_PERIOD_MS: Final = 5_000


class Refused(NamedTuple):
    code: int
    remark: str


class Stored(NamedTuple):
    """Where it is in the log, where it ends there, and its number in its queue."""

    offset: int
    end: int
    queue_offset: int


class Tick:
    """Read by the data path for every message."""

    __slots__ = ("_call_soon", "_end_of_tick", "_gate", "is_due", "ms", "wall_ms")

    def __init__(
        self,
        gate: SendGate,
        call_soon: Callable[[Callable[[], None]], object],
        end_of_tick: Callable[[], None],
    ) -> None:
        self._gate, self._call_soon, self._end_of_tick = gate, call_soon, end_of_tick
        self.is_due = False
        self.ms = self.wall_ms = 0

    def starts_cut_off(self) -> bool:
        """The first message of a tick: reads the clocks. True: perhaps there is another master already, and
        nothing must be stored that it would not have."""
        self.wall_ms, self.ms = wall_ms(), now_ms()
        lease = self._gate.lease
        return lease is not None and lease(self.ms)

    def schedule(self) -> None:
        self.is_due = True
        self._call_soon(self._end)

    def _end(self) -> None:
        self.is_due = False
        self._end_of_tick()


@dataclass(slots=True)
class Letter:
    """properties: as they are to be stored. delay_level and timer_out_ms 0: at once. prepared_offset: where
    in the log the half message is that this one commits."""

    topic: TopicLike
    queue_id: int
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int
    delay_level: int = 0
    prepared_offset: int = 0
    timer_out_ms: int = 0


_SCHEDULE: Final = NamedTopic(SCHEDULE_TOPIC)
_TIMER: Final = NamedTopic(TIMER_TOPIC)


class Writer:
    """Owned by the event loop's thread."""

    def __init__(self, parts: BrokerParts) -> None:
        self._store, self._gate, self._pending = parts.store, parts.gate, parts.pending
        self._levels: DelayLevels = parts.store.delay_levels
        self.tick = Tick(parts.gate, parts.call_soon, parts.end_of_tick)
        self._complaints = Complaints(logger, period_ms=COMPLAINT_PERIOD_MS, level=logging.ERROR)

    def put(self, letter: Letter) -> Stored | Refused:
        tick = self.tick
        if not self._gate.writable:
            return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, not_available(self._gate))
        if not tick.is_due and tick.starts_cut_off():
            return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, CUT_OFF)
        topic, queue_id, properties = letter.topic, letter.queue_id, letter.properties
        if CRC_NAME in properties:  # a copy has its original's
            properties = without(properties, CRC_NAME)
        if letter.delay_level:
            topic, queue_id = _SCHEDULE, letter.delay_level - 1
            properties = with_properties(properties, _real(letter))
            code = self._levels.due_at(properties, tick.wall_ms)
        elif letter.timer_out_ms:
            topic, queue_id = _TIMER, 0
            properties = with_properties(properties, _real(letter) | {OUT_MS: b"%d" % letter.timer_out_ms})
            code = timer_code(properties)
        else:
            code = tags_code(properties)
        # fmt: off
        try:
            stored = self._store.put(
                topic, queue_id, letter.body, properties, letter.flag, letter.sys_flag, letter.born_timestamp,
                letter.born_host, letter.reconsume_times, code, tick.wall_ms,
                prepared_offset=letter.prepared_offset)
        except (struct.error, ValueError, OSError) as error:
            return self.failed(error)
        # fmt: on
        if not tick.is_due:
            tick.schedule()
        return Stored(*stored)

    def put_batch(self, letter: Letter, shared: bytes) -> StoredBatch | Refused:
        """All items of the body, each with the shared properties, or none."""
        tick = self.tick
        if not self._gate.writable:
            return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, not_available(self._gate))
        if not tick.is_due and tick.starts_cut_off():
            return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, CUT_OFF)
        # fmt: off
        try:
            stored = put_batch(
                self._store, letter.topic, letter.queue_id, letter.body, shared, letter.sys_flag,
                letter.born_timestamp, letter.born_host, letter.reconsume_times, tick.wall_ms)
        except OSError as error:
            return self.failed(error)
        except (struct.error, ValueError) as error:
            return Refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch is illegal: {error}")
        # fmt: on
        if not tick.is_due:
            tick.schedule()
        return stored

    def put_inner_batch(self, letter: Letter, queue: BatchQueue) -> Stored | Refused:
        """The body, a client's batch, as one record of a queue that takes them so."""
        tick = self.tick
        if not self._gate.writable:
            return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, not_available(self._gate))
        if not tick.is_due and tick.starts_cut_off():
            return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, CUT_OFF)
        # fmt: off
        try:
            stored = put_inner_batch(
                self._store, queue, letter.topic, letter.body, letter.properties, letter.flag,
                letter.sys_flag, letter.born_timestamp, letter.born_host, letter.reconsume_times,
                tick.wall_ms)
        except OSError as error:
            return self.failed(error)
        except (struct.error, ValueError) as error:
            return Refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch is illegal: {error}")
        # fmt: on
        if not tick.is_due:
            tick.schedule()
        return Stored(*stored)

    def failed(self, error: Exception) -> Refused:
        """What the store's refusal means to a client."""
        if not isinstance(error, OSError):
            return Refused(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
        text = "cannot write to the CommitLog, sends are refused: %s"
        self._complaints.tell(self.tick.ms, text, error)  # not one line per message on a full disk
        return Refused(ResponseCode.SYSTEM_ERROR, f"create mapped file failed: {error.strerror or error}")

    def reply_when_safe(self, stored: Stored, peer: HotPeer, reply: bytes, opaque: int) -> bytes | None:
        """The success reply, now; None: it leaves when the log is safe up to there."""
        if not self._gate.wait:
            return reply
        self._pending.add(stored.end, peer, reply, self.tick.ms)
        return None


def _real(letter: Letter) -> dict[bytes, bytes | None]:
    return {b"REAL_TOPIC": letter.topic.name.encode(), b"REAL_QID": b"%d" % letter.queue_id}


def not_available(gate: SendGate) -> str:
    remark = gate.remark or "this broker is not master"
    return remark if remark.startswith(NOT_AVAILABLE) else f"{NOT_AVAILABLE}: {remark}"
