"""RecordDispatcher: gives confirmed records their ConsumeQueue units, and the index their keys.

A master dispatches by the units that put() has queued. A replica, a start, and a new master for the records
of its predecessor read the log, many records in one pass (broker/message/record_scan.py).

A replica also scans each record soon after it has received it, whether or not it is confirmed. So a promotion
reads at most the newest records: it knows where the last whole record ends (scanned_offset), and which queue
offset comes next in each queue.

Invariants: dispatch_offset <= confirm_offset; dispatch_offset and scanned_offset are record boundaries; at a
replica dispatch_offset <= scanned_offset <= max_offset, and no record in front of scanned_offset has a queue
offset at or behind its queue's next_offset (design S4). Source: RocketMQ 5.3.3 ReputMessageService,
CommitLogDispatcher.
"""

import logging
import sys
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.core.confirm_times import ConfirmTimes
from broker.message.delay_levels import SCHEDULED_TOPICS, DelayLevels
from broker.message.indexed_keys import Keyed
from broker.message.inner_batch import INNER_BATCH, message_count, sys_flag_at
from broker.message.prop_crc import RecordParser, parse_checked
from broker.message.record import Parsed, is_incomplete, parse
from broker.message.record_scan import (
    FIRST,
    LOG_BYTES,
    NEXT,
    QUEUE,
    UNITS,
    QueueScan,
    clear,
    scan_ends,
    scan_units,
)
from broker.store.damage import DamagedRanges
from broker.store.index.message_index import MessageIndex
from broker.store.indexing import catch_up_index, keyed
from broker.store.log.commit_log import CommitLog
from broker.store.log_check import past_damage, why_bad
from broker.store.number_check import NumberCheck, may_have
from broker.store.queue.batch_queue import BatchQueue
from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.queue.queue_table import QueueTable
from broker.store.recovery import damaged_at
from broker.store.store_flusher import StoreFlusher
from keelmq.runtime.clock import now_us

log = logging.getLogger(__name__)

NEVER: Final = sys.maxsize
QUEUED_UNITS_MAX: Final = 262_144
SLICE_BYTES: Final = 256 << 10
RECORD_BYTES: Final = 512
"""One pass copies this much of the log for each record that it may read, and SLICE_BYTES at most."""
Unit = tuple[int, ConsumeQueue, int, int, int, int, int, bytes, bytes]
"""end, queue, queue offset, offset, size, tags code, store timestamp, UNIQ_KEY, KEYS"""


class QueueUnits(NamedTuple):
    """Consecutive units of one queue. queue_offset: of the first message. messages: number of queue offsets
    that they take. units: packed as the queue stores them. log_bytes: total size of their records."""

    queue: ConsumeQueue
    queue_offset: int
    messages: int
    units: bytes
    log_bytes: int


class DispatchRequest(NamedTuple):
    """end: CommitLog offset where the last record ends; all units become visible when confirmOffset has
    reached it. timestamp: store timestamp of the records in ms. keys: of the records that have any; [] if
    the store has no index."""

    end: int
    queue_units: list[QueueUnits]
    timestamp: int
    keys: list[Keyed]


class RecordDispatcher:
    """Of one store. `dispatch_fault`: why no ConsumeQueue unit can be written; empty while one can.
    `is_paused`: no record is dispatched or scanned, since the log is being cut. `changed`: the queues that
    got a unit or a next_offset since a plan of a cut began; None without a plan."""

    def __init__(
        self,
        commit_log: CommitLog,
        damage: DamagedRanges,
        queues: QueueTable,
        numbers: NumberCheck,
        index: MessageIndex | None,
        flusher: StoreFlusher,
        *,
        delay_levels: DelayLevels,
        on_queue: Callable[[str, int], None],
    ) -> None:
        """on_queue: called for each (topic, queueId) whose first record dispatch() finds in the log."""
        self.commit_log, self.damage, self.queues, self.index = commit_log, damage, queues, index
        self._numbers = numbers
        self._flusher, self._delay_levels, self.on_queue = flusher, delay_levels, on_queue
        self.is_master = self.is_paused = False
        self.confirm_offset = self.dispatch_offset = 0
        self.last_store_timestamp = 0  # ms, of the newest record put or dispatched
        self.dispatch_fault = ""
        self.confirm_times = ConfirmTimes()
        self.changed: set[ConsumeQueue] | None = None
        self.durable_end = NEVER  # the log was whole up to here: bad bytes in front of it are damage
        self.queued: deque[Unit | DispatchRequest] = deque()
        self._queued_in_requests = 0  # units
        self._queued_from = NEVER  # `queued` has a unit for every record from here on
        self._scanned_to = self._looked_at = 0
        self._scan_singly_to = 0  # a record in front of it has an impossible QUEUEOFFSET

    def become_master(self) -> None:
        """Dispatches by the units of put() from now on."""
        self.changed = None  # a plan of a cut that was given up
        self.is_master = True
        self.confirm_times.clear()
        self.forget_queued()

    def become_slave(self) -> None:
        """Dispatches and scans the records that a master sends from now on."""
        if self.is_master:
            self._scanned_to = self._looked_at = self.commit_log.max_offset
        self.is_master = False
        self.confirm_times.clear()
        self.forget_queued()

    def add_request(self, request: DispatchRequest) -> None:
        """Queues the units of records that were appended to the log at once; master only."""
        self.queued.append(request)
        self.last_store_timestamp = request.timestamp
        self._queued_in_requests += sum([part.messages for part in request.queue_units])
        if len(self.queued) + self._queued_in_requests > QUEUED_UNITS_MAX:
            self.forget_queued()

    def forget_queued(self) -> None:
        """Drops queued units: the records in the log will be dispatched by parsing, later ones by units
        again."""
        self.queued.clear()
        self._queued_in_requests = 0
        self._queued_from = self.commit_log.max_offset if self.is_master else NEVER

    def set_confirm_offset(self, offset: int) -> None:
        """Makes records that end at or before `offset` visible. Never moves confirmOffset back; only a cut
        of the log does."""
        offset = min(offset, self.commit_log.max_offset)
        if offset <= self.confirm_offset:
            return
        self.confirm_offset = offset
        if self.damage.lost_end:
            self.damage.confirmed(offset)
        if offset >= self.confirm_times.next_end:
            self.confirm_times.confirmed(now_us(), offset)
        self._dispatch_queued()

    def _dispatch_queued(self) -> None:
        """Dispatches confirmed records at a master, by the units that put() has queued, without parsing."""
        if self.dispatch_offset < self._queued_from:
            return  # dispatch() must parse older records first
        queued, confirm, index = self.queued, self.confirm_offset, self.index
        is_indexing = index is not None and index.offset == self.dispatch_offset
        keys_found: list[Keyed] = []
        try:
            while queued and queued[0][0] <= confirm:
                unit = queued[0]
                if isinstance(unit, DispatchRequest):
                    end = unit.end
                    for queue, queue_offset, _, units, log_bytes in unit.queue_units:
                        queue.append_units(queue_offset, units, log_bytes)
                        self._unit_added(queue)
                    keys_found += unit.keys
                    self._queued_in_requests -= sum([part.messages for part in unit.queue_units])
                else:
                    end, queue, queue_offset, log_offset, size, tags_code, timestamp, unique_key, keys = unit
                    queue.append(queue_offset, log_offset, size, tags_code)
                    self._flusher.dirty.add(queue)  # _unit_added(), without a call
                    if queue.waiters:
                        self.queues.woken.append(queue)
                    keys_found.append((queue.key_prefix_hash, log_offset, timestamp, unique_key, keys))
                queued.popleft()
                self.dispatch_offset = end
                self.dispatch_fault = ""
        except OSError as error:
            self._dispatch_failed(error)
        if index is not None and is_indexing:
            index.add(keys_found, self.dispatch_offset)
        self.queues.wake()

    def _unit_added(self, queue: ConsumeQueue) -> None:
        if self.changed is not None:
            self.changed.add(queue)
        self._flusher.dirty.add(queue)  # not a local set: a flush in its thread may have taken it meanwhile
        if queue.waiters:
            self.queues.woken.append(queue)

    def _dispatch_failed(self, error: OSError) -> None:
        """Keeps the record for the next call, which tries again. Logs one line until that succeeds."""
        if not self.dispatch_fault:
            log.error(
                "no disk space for a ConsumeQueue: %s; new messages cannot be consumed until there is some",
                error,
            )
        self.dispatch_fault = str(error)

    @property
    def dispatch_behind(self) -> bool:
        """Whether dispatch() has records to read: at a replica, or those of a new master's predecessor."""
        behind = self.dispatch_offset < min(self.confirm_offset, self._queued_from)
        return (behind or bool(self.dispatch_fault)) and not self.is_paused

    @property
    def dispatch_backlog(self) -> int:
        """Bytes of the log that are confirmed, and that consumers cannot read yet."""
        return max(self.confirm_offset - self.dispatch_offset, 0)

    def dispatch(self, records_max: int, *, parser: RecordParser = parse) -> bool:
        """Dispatches up to records_max confirmed records by reading the log. True: there are more. parser:
        checks the records."""
        if self.is_paused:
            return False
        begin = self.dispatch_offset = max(self.dispatch_offset, self.commit_log.min_offset)
        stop, left = min(self.confirm_offset, self._queued_from), records_max
        try:
            while left > 0 and self.dispatch_offset < stop:
                count = self._dispatch_many(stop, left, parser) or self._dispatch_one(stop, parser)
                if not count:
                    break
                left -= count
                self.dispatch_fault = ""
        except OSError as error:
            self._dispatch_failed(error)
        self._scanned_to = max(self._scanned_to, self.dispatch_offset)
        self.queues.wake()
        self._dispatch_queued()
        return self.dispatch_offset > begin and self.dispatch_behind

    def _dispatch_many(self, stop: int, records_max: int, parser: RecordParser) -> int:
        """Dispatches records that are alike, in one pass. Returns how many. OSError: no room for a unit;
        dispatch_offset is unchanged, and units that were appended are skipped at the next attempt."""
        if parser is not parse and parser is not parse_checked:
            return 0
        begin, index = self.dispatch_offset, self.index
        index_at = -1 if index is None else index.offset
        if begin < index_at < stop:
            stop = index_at  # the index already has the records in front of it
        raw = bytes(self.commit_log.view(begin, _slice_bytes(records_max), end=stop))
        keys: list[Keyed] | None = [] if begin == index_at else None
        queue_scans = self.queues.queue_scans
        end, count, timestamp, found = scan_units(
            raw, begin, records_max, queue_scans, keys, check_crc=parser is parse_checked
        )
        wrong = [
            queue_scan
            for queue_scan in found
            if not may_have(queue_scan[QUEUE], queue_scan[FIRST], _first_of(queue_scan))
        ]
        if wrong:  # records in front of the first such one are dispatched, then _dispatch_one() handles it
            end = min(map(_first_of, wrong))
            for queue_scan in found:
                clear(queue_scan)
            return self._dispatch_many(end, records_max, parser) if end > begin else 0
        try:
            for queue_scan in found:
                queue: ConsumeQueue = queue_scan[QUEUE]
                queue.append_units(queue_scan[FIRST], bytes(queue_scan[UNITS]), queue_scan[LOG_BYTES])
                self._unit_added(queue)
        finally:
            for queue_scan in found:
                clear(queue_scan)
        self.dispatch_offset = end
        self.last_store_timestamp = timestamp or self.last_store_timestamp
        if index is not None and keys is not None:
            index.add(keys, end)
        return count

    def _dispatch_one(self, stop: int, parser: RecordParser) -> int:
        """Dispatches a record that must be parsed. Returns 1; 0: it is not whole or not good."""
        offset, index = self.dispatch_offset, self.index
        view = self.commit_log.view(offset, self.commit_log.file_bytes, end=stop)
        parsed = parser(view, 0, len(view), offset=offset)
        if parsed is None:
            whole_end = min(len(view), self.durable_end - offset)
            may_be_cut = not self.is_master and self.durable_end > self.commit_log.max_offset
            parsed = self._past_damage(view, whole_end, offset, may_be_cut=may_be_cut)
        if parsed is None:
            return 0
        end, keys = offset + parsed[0], list[Keyed]()
        if parsed[1]:
            queue = self.queues.of_record(parsed, sys_flag_at(view, 0), self.on_queue)
            if queue is not None and self._is_damaged_number(queue, offset, parsed):
                queue = None
            elif queue is not None:
                self.append_unit(queue, offset, parsed)
            keys = keyed(queue, offset, parsed, view, 0)
        if index is not None and index.offset == offset:
            index.add(keys, end)
        self.dispatch_offset = end
        self.last_store_timestamp = parsed[5] or self.last_store_timestamp
        return 1

    def append_unit(self, queue: ConsumeQueue, offset: int, parsed: Parsed) -> None:
        """Gives the record at `offset` its unit behind those of the queue. OSError: no room; nothing has
        changed."""
        size, _, _, queue_offset, tags_code, stored, properties = parsed
        if queue.topic in SCHEDULED_TOPICS:
            tags_code = self._delay_levels.queue_code(queue.topic, properties, stored)
        if isinstance(queue, BatchQueue):
            queue.append(queue_offset, offset, size, tags_code, stored, message_count(properties))
        else:
            queue.append(queue_offset, offset, size, tags_code)
        self._unit_added(queue)

    # -- for a promotion ---------------------------------------------------------------------------------

    @property
    def scanned_offset(self) -> int:
        """End of the last known whole record: at a master that of the log, at a replica the end of the last
        scan()."""
        return self.commit_log.max_offset if self.is_master else self._scanned_to

    @property
    def scan_behind(self) -> bool:
        """Whether scan() has bytes that it has not read."""
        return not self.is_master and not self.is_paused and self._looked_at < self.commit_log.max_offset

    def scan(self, records_max: int) -> bool:
        """Reads up to records_max records that a replica has received, so that a promotion need not: moves
        scanned_offset to the end of the last whole record, and next_offset of the queues behind its records.
        True: there are more."""
        if not self.scan_behind:
            return False
        log, left = self.commit_log, records_max
        self._scanned_to = max(self._scanned_to, log.min_offset)
        while left > 0 and self._scanned_to < log.max_offset:
            begin = self._scanned_to
            count = 0
            if begin >= self._scan_singly_to:
                term_end = self._numbers.term_of(begin)[1]  # seen_to must tell the terms apart
                raw = bytes(log.view(begin, _slice_bytes(left), end=term_end))
                found = scan_ends(raw, begin, left, self.queues.queue_scans)
                if all(
                    may_have(queue_scan[QUEUE], queue_scan[NEXT] - 1, found.end)
                    for queue_scan in found.queue_scans
                ):
                    for queue_scan in found.queue_scans:
                        queue: ConsumeQueue = queue_scan[QUEUE]
                        queue.next_offset = max(queue.next_offset, queue_scan[NEXT])
                        if self.changed is not None:
                            self.changed.add(queue)
                        queue.seen_to = found.end
                    self._scanned_to, count = found.end, found.records
                else:
                    self._scan_singly_to = found.end
                for queue_scan in found.queue_scans:
                    clear(queue_scan)
            count = count or self._scan_one()
            if not count:
                self._looked_at = log.max_offset
                return False
            left -= count
        self._looked_at = self._scanned_to
        return self._looked_at < log.max_offset

    def _scan_one(self) -> int:
        """As _dispatch_one(), for scan()."""
        offset = self._scanned_to
        view = self.commit_log.view(offset, self.commit_log.file_bytes)
        parsed = parse(view, 0, len(view), offset=offset)
        if parsed is None:
            confirmed_end = min(len(view), self.confirm_offset - offset)
            parsed = self._past_damage(view, confirmed_end, offset, may_be_cut=True)
        if parsed is None:
            return 0
        if parsed[1]:
            self.reserve(parsed, sys_flag_at(view, 0), offset=offset)
        self._scanned_to = offset + parsed[0]
        return 1

    def _past_damage(self, view: memoryview, end: int, offset: int, *, may_be_cut: bool) -> Parsed | None:
        """Calls damaged_at() for the beginning of the view, and records ranges with unknown queue offsets."""
        log, damage = self.commit_log, self.damage
        parsed = damaged_at(view, 0, end, offset, log, damage, may_be_cut=may_be_cut)
        if parsed is not None and not parsed[1]:
            self.damage.passed_over(offset, offset + parsed[0])
        return parsed

    def _is_damaged_number(self, queue: ConsumeQueue, offset: int, parsed: Parsed) -> bool:
        """Whether the record at `offset` has an impossible QUEUEOFFSET; then it is a damaged range."""
        if self._numbers.has_its_number(queue, parsed, offset):
            return False
        text = f"its QUEUEOFFSET {parsed[3]} cannot be that of {queue.topic}/{queue.queue_id}"
        self.damage.add(offset, offset + parsed[0], f"{text}, which has {queue.max_offset} messages")
        self.damage.passed_over(offset, offset + parsed[0])
        return True

    def reserve(self, parsed: Parsed, sys_flag: int, *, offset: int) -> None:
        """Reserves the queue offsets of a record of the log that is not dispatched yet."""
        queue = self.queues.of_record(parsed, sys_flag)
        if queue is not None and not self._is_damaged_number(queue, offset, parsed):
            messages = message_count(parsed[6]) if sys_flag & INNER_BATCH else 1
            queue.next_offset = max(queue.next_offset, parsed[3] + messages)
            if self.changed is not None:
                self.changed.add(queue)
            queue.seen_to = max(queue.seen_to, offset + parsed[0])

    def tail_fault(self) -> str:
        """Returns why the log must not be cut at scanned_offset; "": there is at most a partially received
        record behind it, which was not acknowledged. Any other confirmed bytes were whole once."""
        if self.damage.lost_end:
            return self.damage.end_fault
        found = self._tail_damage()
        if found is None:
            return ""
        return (
            f"the log is damaged: there is no record at {found[0]}, and it was confirmed up to"
            f" {self.confirm_offset}; another replica may have it"
        )

    def _tail_damage(self) -> tuple[int, int] | None:
        """Returns the confirmed bytes behind scanned_offset that are damaged, as far as it is known."""
        log, offset = self.commit_log, self.scanned_offset
        if offset >= self.confirm_offset:
            return None
        view = log.view(offset, log.file_bytes)
        past = past_damage(log, view, 0, len(view), offset, may_be_cut=False)
        if past is None and is_incomplete(view, offset):
            return None
        return offset, self.confirm_offset if past is None else offset + past[0]

    def name_tail_damage(self) -> bool:
        """Adds the damage that tail_fault() reports to `damage`, so that it is healed. Returns whether there
        is any."""
        found = self._tail_damage()
        if found is not None:
            log = self.commit_log
            self.damage.add(*found, why_bad(log.view(found[0], log.file_bytes), found[0]))
        return found is not None

    def scan_again(self) -> None:
        """To be called when the next_offset of every queue is its max_offset: undispatched records will be
        read again."""
        self._scanned_to = self._looked_at = self.dispatch_offset
        self._scan_singly_to = 0

    def catch_up_index(self, records_max: int) -> bool:
        """Indexes up to records_max records that dispatch has passed already. True: there are more."""
        if self.index is None or self.is_paused:
            return False
        return catch_up_index(
            self.index, self.queues, self.commit_log, self.dispatch_offset, records_max, self.damage
        )


def _slice_bytes(records_max: int) -> int:
    return min(records_max * RECORD_BYTES, SLICE_BYTES)


def _first_of(queue_scan: QueueScan) -> int:
    """The CommitLog offset of the first record of a QueueScan."""
    return int.from_bytes(queue_scan[UNITS][:8], "big")
