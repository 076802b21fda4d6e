"""Dispatch of the MessageStore: gives confirmed records their ConsumeQueue units, and the index their keys.

A master dispatches by the units that put() has queued. A replica, a start, and a new master for the records
that it has taken over, parse the log. Invariant: dispatch_offset <= confirm_offset, and it is a record
boundary. Source: RocketMQ 5.3.3 ReputMessageService, CommitLogDispatcher.
"""

import logging
from collections import deque
from collections.abc import Callable

from broker.core.confirm_times import ConfirmTimes
from broker.message.delay_levels import SCHEDULED_TOPICS, DelayLevels
from broker.message.indexed_keys import Keyed
from broker.message.inner_batch import message_count, sys_flag_at
from broker.message.prop_crc import RecordParser
from broker.message.record import Parsed, parse
from broker.store.cut_store import CuttableStore
from broker.store.indexing import catch_up_index, keyed
from broker.store.queue.batch_queue import BatchQueue
from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.queue.dispatch_request import DispatchRequest
from broker.store.recovery import damaged_at
from keelmq.runtime.clock import now_us

log = logging.getLogger(__name__)

Unit = tuple[int, ConsumeQueue, int, int, int, int, int, bytes, bytes]
"""end, queue, queue offset, offset, size, tags code, store timestamp, UNIQ_KEY, KEYS"""


class DispatchingStore(CuttableStore):
    """The part of MessageStore that dispatches, and the attributes that this part uses. `dispatch_fault` says
    why no ConsumeQueue unit can be written; it is empty while one can."""

    confirm_times: ConfirmTimes
    on_queue: Callable[[str, int], None]
    delay_levels: DelayLevels
    dispatch_fault: str
    last_store_timestamp: int
    _queued: deque[Unit | DispatchRequest]
    _queued_in_requests: int
    _queued_from: int
    _durable_end: int  # the log was whole up to here: what is bad in front of it is damage

    def set_confirm_offset(self, offset: int) -> None:
        """Makes records that end at or before `offset` visible. Never moves confirmOffset back; only
        truncate() does."""
        offset = min(offset, self.commit_log.max_offset)
        if offset <= self.confirm_offset:
            return
        self.confirm_offset = offset
        if offset >= self.confirm_times.next_end:
            self.confirm_times.confirmed(now_us(), offset)
        self._dispatch_queued()

    def _dispatch_queued(self) -> None:
        """Dispatches confirmed records at a master, by the units that put() has queued, without parsing."""
        if self.dispatch_offset < self._queued_from:
            return  # dispatch() must parse older records first
        queued, confirm, index = self._queued, self.confirm_offset, self.index
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
        """Whether dispatch() has records to parse: at a replica, or those that a new master has taken
        over."""
        behind = self.dispatch_offset < min(self.confirm_offset, self._queued_from)
        return (behind or bool(self.dispatch_fault)) and not self.is_cutting

    def dispatch(self, records_max: int, *, parser: RecordParser = parse) -> bool:
        """Dispatches up to records_max confirmed records by parsing the log. True: there are more."""
        if self.is_cutting:
            return False
        if self.dispatch_offset < self.commit_log.min_offset:
            self.dispatch_offset = self.commit_log.min_offset
        begin, stop = self.dispatch_offset, min(self.confirm_offset, self._queued_from)
        view = self.commit_log.view(begin, self.commit_log.file_bytes, end=stop)
        pos, end, count, index = 0, len(view), 0, self.index
        index_at, keys_found = -1 if index is None else index.offset, None
        queues: dict[tuple[bytes, int], ConsumeQueue | None] = {}  # of this slice
        while pos < end and count < records_max:
            offset = begin + pos
            parsed = parser(view, pos, end, offset=offset)
            if parsed is None:
                whole_end = min(end, self._durable_end - begin)
                parsed = damaged_at(view, pos, whole_end, offset, self.commit_log, self.damage)
            if parsed is None:
                break
            if offset == index_at:
                keys_found = list[Keyed]()
            if parsed[1]:
                try:
                    queue = queues[parsed[1], parsed[2]]
                except KeyError:
                    queue = self.queues.of_record(parsed, sys_flag_at(view, pos), self.on_queue)
                    queues[parsed[1], parsed[2]] = queue
                try:
                    if queue is not None:
                        self._append_unit(queue, offset, parsed)
                except OSError as error:
                    self._dispatch_failed(error)
                    break
                self.dispatch_fault = ""
                if keys_found is not None:
                    keys_found += keyed(queue, offset, parsed, view, pos)
            pos += parsed[0]
            count += 1
            self.last_store_timestamp = parsed[5] or self.last_store_timestamp
        self.dispatch_offset = begin + pos
        if index is not None and keys_found is not None:
            index.add(keys_found, self.dispatch_offset)
        self.queues.wake()
        self._dispatch_queued()
        return pos > 0 and self.dispatch_behind

    def _append_unit(self, queue: ConsumeQueue, offset: int, parsed: Parsed) -> None:
        size, _, _, queue_offset, tags_code, stored, properties = parsed
        if queue.topic in SCHEDULED_TOPICS:
            tags_code = self.delay_levels.queue_code(queue.topic, properties, stored)
        if isinstance(queue, BatchQueue):
            queue.append(queue_offset, offset, size, tags_code, stored, message_count(properties))
        else:
            queue.append(queue_offset, offset, size, tags_code)
        self._unit_added(queue)

    def catch_up_index(self, records_max: int) -> bool:
        """Indexes up to records_max records that dispatch has passed already. True: there are more."""
        if self.index is None or self.is_cutting:
            return False
        return catch_up_index(
            self.index, self.queues, self.commit_log, self.dispatch_offset, records_max, self.damage
        )
