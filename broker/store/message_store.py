"""The store: CommitLog, ConsumeQueues, confirmOffset and recovery, as one object of the event loop thread.

Consumers see a record only when confirmOffset has passed its end: only then it gets its ConsumeQueue unit
(dispatch). Invariants: dispatch_offset <= confirm_offset <= commit_log.max_offset, and dispatch_offset is a
record boundary; a queue offset that stands in the log is never given to another record (design S4).
flush() and flush_checkpoint() alone may run in another thread. Source: RocketMQ 5.3.3 DefaultMessageStore.
"""

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.delay.levels import LAID_BY
from broker.store.batch_queue import BatchQueue
from broker.store.batch_reading import read_batch_queue
from broker.store.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from broker.store.commit_log import CommitLog
from broker.store.consume_queue import ConsumeQueue
from broker.store.index import MessageIndex
from broker.store.indexed_keys import Keyed
from broker.store.inner_batch import message_count, put_single, sys_flag_at
from broker.store.mapped_file import lock_directory, write_mark
from broker.store.queues import QueueTable
from broker.store.reading import GetResult, read_queue
from broker.store.record import HOST_V6_BITS, HOSTS_V4_BYTES, Parsed, host_bits, index_keys, parse
from broker.store.record_crc import Look, append_of, look_of
from broker.store.recovery import boundary_at, queued_end, rebuild_next_offsets, scan_end, scan_start
from broker.store.run import Run
from broker.store.settings import StoreConfig as StoreConfig
from broker.store.settings import TopicLike
from remoting.clock import wall_ms

log = logging.getLogger(__name__)

ABORT_PREFIX: Final = "keelmq "  # our own process crashed: its checkpoint keeps flush_checkpoint()'s promise
_NEVER: Final = sys.maxsize
QUEUED_UNITS_MAX: Final = 262_144
DISPATCH_AT_START: Final = 4_096
CHECKPOINTS_PER_INDEX_FLUSH: Final = 10

Unit = tuple[int, ConsumeQueue, int, int, int, int, int, bytes, bytes]
"""end, queue, queue offset, offset, size, tags code, store timestamp, UNIQ_KEY, KEYS"""


class MessageStore:
    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.root = config.root
        self.commit_log = CommitLog(
            config.commit_log_path or config.root / "commitlog",
            config.commit_log_file_bytes,
            zeros_ahead=config.zeros_ahead,
        )
        self.append = append_of(self.commit_log, sealed=config.append_prop_crc)
        self._look = look_of(check_crc=config.check_crc_on_recover, sealed=config.verify_prop_crc)
        self.store_host = config.store_host
        self.delay_levels = config.delay_levels
        self.confirm_offset = 0
        self.dispatch_offset = 0
        self.is_master = False
        self.last_store_timestamp = 0  # ms, of the newest record put or dispatched
        self.dispatch_fault = ""  # why no ConsumeQueue unit could be written, while that is so
        self.put_messages = self.put_bytes = self.got_messages = 0
        self.on_queue: Callable[[str, int], None] | None = None  # hears of each new (topic, queueId)
        self.queues = QueueTable(
            config.root / "consumequeue", config.consume_queue_file_bytes, config.batch_queue_file_bytes
        )
        self._queues = self.queues.table
        self.wait_for, self.stop_waiting = self.queues.wait_for, self.queues.stop_waiting
        self.find_queue, self.topic_counts = self.queues.find, self.queues.topic_counts
        self.max_queue_offset, self.min_queue_offset = self.queues.max_offset, self.queues.min_offset
        self.index = (
            MessageIndex(config.root / "index", config.index_slots, config.index_entries)
            if config.index_enable
            else None
        )
        self._queued: deque[Unit | Run] = deque()
        self._queued_in_runs = 0  # units
        self._queued_from = _NEVER  # _queued has a unit for every record from here on
        self._dirty: set[ConsumeQueue] = set()
        self._flush_lock = threading.Lock()
        self._lock_fd = -1
        self._checkpoint = Checkpoint()
        self._checkpoints = 0

    # -- start and recovery ------------------------------------------------------------------------------

    def load(self) -> None:
        """Open and recover. StoreError: another process has the directory, or the files do not fit."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock_fd = lock_directory(self.root)
        abort = self.root / "abort"
        abnormal = abort.exists()
        own_abort = abnormal and abort.read_text(errors="replace").startswith(ABORT_PREFIX)
        self.commit_log.load()
        self._checkpoint = read_checkpoint(self.root / "checkpoint")
        self.queues.load(self.commit_log.min_offset)
        queues = self.queues.each()
        start = scan_start(self.commit_log, self._checkpoint, queues, abnormal=abnormal, own_abort=own_abort)
        known_end = max(self._checkpoint.confirm_offset, queued_end(self.commit_log, queues))
        is_distrusted = abnormal and start < self._checkpoint.confirm_offset
        if is_distrusted:  # before the queues are cut, and before the mark says that it is our checkpoint
            self._checkpoint.physic_msg_timestamp = self._checkpoint.logics_msg_timestamp = 0
            self._write_checkpoint(start)
        write_mark(abort, f"{ABORT_PREFIX}{os.getpid()}")
        look = self._look  # after a clean exit, too: a replica may have stopped in the middle of a record
        if abnormal:  # what is not known to be durable is built again, and looked at while it is
            self.commit_log.sync_from(start)
            self.queues.truncate(start, crashed=True)
            self.confirm_offset = max(min(known_end, self.commit_log.max_offset), start)
            self.dispatch_offset = start
            while self.dispatch(DISPATCH_AT_START, look=look):
                pass
            end = scan_end(self.commit_log, self.dispatch_offset, look)
        else:
            end = scan_end(self.commit_log, start, look)
        if end < self.commit_log.max_offset:
            self.commit_log.truncate(end)
        self.queues.truncate(end)
        self.confirm_offset = max(min(known_end, end), self.commit_log.min_offset)
        self.dispatch_offset = min(self.dispatch_offset if abnormal else start, self.confirm_offset)
        if self.index is not None:
            trusted_ms = self._checkpoint.index_msg_timestamp if abnormal and not own_abort else None
            self.index.load(self.commit_log.min_offset, end, abnormal=abnormal, trusted_ms=trusted_ms)
        while self.dispatch(DISPATCH_AT_START):
            pass
        rebuild_next_offsets(self.commit_log, self.queues, self.dispatch_offset)
        if is_distrusted or self._checkpoint.confirm_offset > self.confirm_offset:
            self.flush_checkpoint()  # the latter is of before a cut: what comes here now was never confirmed
        log.info(
            "store loaded: %s exit, log %d..%d, confirmOffset %d, scanned from %d",
            "abnormal" if abnormal else "clean", self.commit_log.min_offset, end, self.confirm_offset, start,
        )  # fmt: skip

    # -- writing -----------------------------------------------------------------------------------------

    def put(
        self,
        topic: TopicLike,
        queue_id: int,
        body: bytes,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int,
        tags_code: int,
        store_timestamp: int = 0,
        unique_key: bytes = b"",
        keys: bytes | None = None,
        prepared_offset: int = 0,
    ) -> tuple[int, int, int]:
        """Append one message; master only: (physical offset, end offset, queue offset). See CommitLog.
        store_timestamp: wall clock in ms; 0: it is read here. unique_key, keys: the properties UNIQ_KEY and
        KEYS, for the index; keys None: they are looked for here."""
        assert self.is_master, "put() on a store that is not master"
        try:
            queue = self._queues[topic.name][queue_id]
        except KeyError:
            queue = self.queues.get(topic.name, queue_id)
            if isinstance(queue, BatchQueue):
                return put_single(
                    self, queue, topic, body, properties, flag, sys_flag, born_timestamp, born_host,
                    reconsume_times, tags_code, store_timestamp or wall_ms(), prepared_offset,
                )  # fmt: skip
        now = store_timestamp or wall_ms()
        store_host = self.store_host
        if sys_flag & HOST_V6_BITS or len(born_host) + len(store_host) != HOSTS_V4_BYTES:
            sys_flag = host_bits(sys_flag, born_host, store_host)
        queue_offset = queue.next_offset
        # fmt: off
        offset = self.append(topic.topic_raw, queue_id, queue_offset, flag, sys_flag, born_timestamp,
                             born_host, store_host, now, reconsume_times, body, properties, prepared_offset)
        # fmt: on
        queue.next_offset = queue_offset + 1  # only after success: a refused message leaves no gap
        end = self.commit_log.max_offset
        size = end - offset
        if keys is None:
            unique_key, keys = index_keys(properties)
        self._queued.append((end, queue, queue_offset, offset, size, tags_code, now, unique_key, keys))
        if len(self._queued) > QUEUED_UNITS_MAX:
            self._forget_queued()
        self.last_store_timestamp = now
        self.put_messages += 1
        self.put_bytes += size
        return offset, end, queue_offset

    def put_run(self, run: Run) -> None:
        """Records that were stored in the log in another way (batch.py): as put() has it."""
        self._queued.append(run)
        self.last_store_timestamp = run.timestamp
        for queue, queue_offset, messages, _, log_bytes in run.parts:
            queue.next_offset = queue_offset + messages
            self._queued_in_runs += messages
            self.put_messages += messages
            self.put_bytes += log_bytes
        if len(self._queued) + self._queued_in_runs > QUEUED_UNITS_MAX:
            self._forget_queued()

    def _forget_queued(self) -> None:
        """What is in the log now will be dispatched by parsing; units of later puts are queued again."""
        self._queued.clear()
        self._queued_in_runs = 0
        self._queued_from = self.commit_log.max_offset if self.is_master else _NEVER

    def become_master(self) -> None:
        """put() is legal from now on. The log ends at a record boundary (truncate_half_message first)."""
        self.truncate_half_message()
        rebuild_next_offsets(self.commit_log, self.queues, self.dispatch_offset)
        self.is_master = True
        self._forget_queued()

    def become_slave(self) -> None:
        """put() is illegal from now on; the log grows by commit_log.receive_view()."""
        self.is_master = False
        self._forget_queued()

    # -- confirm and dispatch ----------------------------------------------------------------------------

    def set_confirm_offset(self, offset: int) -> None:
        """Records that end at or before it are safe to read. Never moves back (truncate() does that)."""
        offset = min(offset, self.commit_log.max_offset)
        if offset <= self.confirm_offset:
            return
        self.confirm_offset = offset
        self._dispatch_queued()

    def _dispatch_queued(self) -> None:
        """The master's way: the units of confirmed records were kept by put(), nothing is parsed."""
        if self.dispatch_offset < self._queued_from:
            return  # older records first: dispatch()
        queued, confirm, index = self._queued, self.confirm_offset, self.index
        is_indexing = index is not None and index.offset == self.dispatch_offset
        keys_found: list[Keyed] = []
        try:
            while queued and queued[0][0] <= confirm:
                unit = queued[0]
                if isinstance(unit, Run):
                    end = unit.end
                    for queue, queue_offset, _, units, log_bytes in unit.parts:
                        queue.append_run(queue_offset, units, log_bytes)
                        self._changed(queue)
                    keys_found += unit.keys
                    self._queued_in_runs -= sum([part.messages for part in unit.parts])
                else:
                    end, queue, queue_offset, log_offset, size, tags_code, timestamp, unique_key, keys = unit
                    queue.append(queue_offset, log_offset, size, tags_code)
                    self._dirty.add(queue)  # _changed(), without a call
                    if queue.waiters:
                        self.queues.woken.append(queue)
                    keys_found.append((queue.key_prefix_hash, log_offset, timestamp, unique_key, keys))
                queued.popleft()
                self.dispatch_offset = end
                self.dispatch_fault = ""
        except OSError as error:
            self._stuck(error)
        if index is not None and is_indexing:
            index.add(keys_found, self.dispatch_offset)
        self.queues.wake()

    def _changed(self, queue: ConsumeQueue) -> None:
        self._dirty.add(queue)  # not a local set: a flush in its thread may have taken it meanwhile
        if queue.waiters:
            self.queues.woken.append(queue)

    def _stuck(self, error: OSError) -> None:
        """The record stays first in line; the next call tries it again. One line until it has gone on."""
        if not self.dispatch_fault:
            log.error("no room for a ConsumeQueue: %s; messages wait in the CommitLog, unreadable", error)
        self.dispatch_fault = str(error)

    @property
    def dispatch_behind(self) -> bool:
        """dispatch() has something to do: on a replica, and for the tail that a new master took over."""
        behind = self.dispatch_offset < min(self.confirm_offset, self._queued_from)
        return behind or bool(self.dispatch_fault)

    def dispatch(self, records_max: int, *, look: Look = parse) -> bool:
        """Give up to records_max confirmed records their queue units by parsing the log. True: more to do."""
        if self.dispatch_offset < self.commit_log.min_offset:
            self.dispatch_offset = self.commit_log.min_offset
        begin, stop = self.dispatch_offset, min(self.confirm_offset, self._queued_from)
        view = self.commit_log.view(begin, self.commit_log.file_bytes, end=stop)
        pos, end, count, index = 0, len(view), 0, self.index
        index_at, keys_found = -1 if index is None else index.offset, None
        queues: dict[tuple[bytes, int], ConsumeQueue | None] = {}  # of this slice
        while pos < end and count < records_max:
            offset = begin + pos
            parsed = look(view, pos, end, offset=offset)
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
                        self._give_unit(queue, offset, parsed)
                except OSError as error:
                    self._stuck(error)
                    break
                self.dispatch_fault = ""
                if keys_found is not None:
                    keys_found += self.queues.keyed(queue, offset, parsed, view, pos)
            pos += parsed[0]
            count += 1
            self.last_store_timestamp = parsed[5] or self.last_store_timestamp
        self.dispatch_offset = begin + pos
        if index is not None and keys_found is not None:
            index.add(keys_found, self.dispatch_offset)
        self.queues.wake()
        self._dispatch_queued()
        return pos > 0 and self.dispatch_behind

    def _give_unit(self, queue: ConsumeQueue, offset: int, parsed: Parsed) -> None:
        size, _, _, queue_offset, tags_code, stored, properties = parsed
        if queue.topic in LAID_BY:
            tags_code = self.delay_levels.queue_code(queue.topic, properties, stored)
        if isinstance(queue, BatchQueue):
            queue.append(queue_offset, offset, size, tags_code, stored, message_count(properties))
        else:
            queue.append(queue_offset, offset, size, tags_code)
        self._changed(queue)

    def catch_up_index(self, records_max: int) -> bool:
        """Index up to records_max records that dispatch has passed already. True: more to do."""
        if self.index is None:
            return False
        return self.queues.catch_up(self.index, self.commit_log, self.dispatch_offset, records_max)

    # -- reading -----------------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_nums: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None,
    ) -> GetResult:
        """Up to max_nums confirmed messages from `offset` on; see reading.GetStatus. Views stay valid."""
        queue, log = self.queues.find(topic, queue_id), self.commit_log
        if isinstance(queue, BatchQueue):
            result = read_batch_queue(log, queue, offset, max_nums, max_bytes, tag_codes)
        else:
            result = read_queue(log, queue, offset, max_nums, max_bytes, tag_codes)
        self.got_messages += result.message_count
        return result

    # -- cutting -----------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Log, queues, queue offsets and confirmOffset end at `offset` at most; durable when it returns."""
        with self._flush_lock:
            if offset < self.commit_log.max_offset:
                if offset < self._checkpoint.confirm_offset:  # first: a start must not trust what is gone
                    self._write_checkpoint(boundary_at(self.commit_log, offset))
                self.commit_log.truncate(offset)
            self._forget_queued()
            if self.index is not None:
                self.index.truncate(self.commit_log.max_offset)
                self.index.flush()
            self.confirm_offset = min(self.confirm_offset, self.commit_log.max_offset)
            self.queues.truncate(self.commit_log.max_offset)
            if self.dispatch_offset > self.commit_log.max_offset:
                self.dispatch_offset = queued_end(self.commit_log, self.queues.each())  # a record boundary
            self._flush()  # what the checkpoint says to be durable must be
            self._write_checkpoint(self.dispatch_offset)
        rebuild_next_offsets(self.commit_log, self.queues, self.dispatch_offset)

    def truncate_half_message(self) -> int:
        """Cut the tail to the last whole record; the log's max_offset then."""
        end = scan_end(self.commit_log, self.dispatch_offset, parse)
        if end < self.commit_log.max_offset:
            self.truncate(end)
        return self.commit_log.max_offset

    def reset_to(self, offset: int) -> None:
        """Forget all messages; the log begins at `offset`."""
        with self._flush_lock:
            self.commit_log.reset_to(offset)
            self._forget_queued()
            self.queues.destroy()
            if self.index is not None:
                self.index.reset_to(offset)
            self.confirm_offset = self.dispatch_offset = offset
            self._write_checkpoint(offset)

    # -- durability --------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Make log and queues durable; any thread. The log offset that is durable now."""
        with self._flush_lock:
            return self._flush()

    def _flush(self) -> int:
        dirty, self._dirty = self._dirty, set()
        try:
            durable = self.commit_log.sync()
            for queue in dirty:
                queue.sync()
        except OSError:
            self._dirty.update(dirty)
            raise
        return durable

    def flush_checkpoint(self, *, index_too: bool = False) -> None:
        """Flush, then persist how far log and queues are durable (confirmPhyOffset); any thread. The index,
        whose slots lie all over a file, comes with every tenth call only: it is made again from the log."""
        with self._flush_lock:
            dispatched, timestamp = self.dispatch_offset, self.last_store_timestamp  # before the flush
            self._flush()
            self._checkpoint.physic_msg_timestamp = max(timestamp, self._checkpoint.physic_msg_timestamp)
            self._checkpoint.logics_msg_timestamp = self._checkpoint.physic_msg_timestamp
            if self.index is not None and (index_too or not self._checkpoints % CHECKPOINTS_PER_INDEX_FLUSH):
                self._checkpoint.index_msg_timestamp = self.index.flush()
            self._checkpoints += 1
            self._write_checkpoint(dispatched)

    def _write_checkpoint(self, confirm_offset: int) -> None:
        self._checkpoint.confirm_offset = confirm_offset
        write_checkpoint(self.root / "checkpoint", self._checkpoint)

    def close(self, clean: bool = True) -> None:
        """clean: everything is made durable and the next start need not search. Else as after a crash."""
        self.is_master = False
        if clean:
            if self.index is not None:
                self.index.settle()
            self.flush_checkpoint(index_too=True)
        if self.index is not None:
            self.index.close()
        self.queues.close()
        self.commit_log.close()
        if clean:
            (self.root / "abort").unlink(missing_ok=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
