"""MessageStore: CommitLog, ConsumeQueues, message index, confirmOffset and recovery of one broker.

Consumers see a record only when confirmOffset has passed its end: then `dispatcher` dispatches it, which
means that it gets its ConsumeQueue unit. `cutter` truncates the store. Invariants: dispatch_offset <=
confirm_offset <= commit_log.max_offset; dispatch_offset is a record boundary; a queue offset in the log is
never given to another record (design S4). Owned by the event loop thread; only flush(), flush_checkpoint()
and cutter.write_cut() may run in another. Source: RocketMQ 5.3.3 DefaultMessageStore.
"""

import logging
import os
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from broker.message.indexed_keys import Keyed
from broker.message.inner_batch import INNER_BATCH, NEED_UNWRAP, with_inner_batch
from broker.message.prop_crc import recovery_parser
from broker.message.record import HOST_V6_BITS, HOSTS_V4_BYTES, host_bits, index_keys
from broker.store.cut_store import StoreCutter
from broker.store.damage import DamagedRanges
from broker.store.dispatching import (
    NEVER,
    QUEUED_UNITS_MAX,
    DispatchRequest,
    QueueUnits,
    RecordDispatcher,
)
from broker.store.index.message_index import MessageIndex
from broker.store.last_exit import LastExit, mark_running, read_last_exit
from broker.store.log.checkpoint import StoreCheckpoint
from broker.store.log.commit_log import CommitLog
from broker.store.log.mapped_file import lock_directory
from broker.store.log.sync_fault import SyncFault
from broker.store.log_check import LogCheck
from broker.store.number_check import NumberCheck
from broker.store.queue.batch_check import correct_ends
from broker.store.queue.batch_queue import BatchQueue, BatchUnit
from broker.store.queue.batch_reading import read_batch_queue
from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.queue.queue_ends import FILE_NAME as ENDS_NAME
from broker.store.queue.queue_ends import QueueEnds, add_new, read_ends, rebuild_from, write_ends
from broker.store.queue.queue_table import BatchTopics, QueueTable
from broker.store.queue.reading import DamagedQueueError, GetResult, check_records, read_queue
from broker.store.queue.size_counts import SMALL_BYTES, count_large
from broker.store.recovery import (
    RECORDS_AT_ONCE,
    Between,
    nothing,
    queued_end,
    scan_end,
    scan_start,
    written_end,
)
from broker.store.rewriting import Rewrite
from broker.store.settings import StoreConfig as StoreConfig
from broker.store.settings import TopicLike
from broker.store.store_check import check_store
from broker.store.store_flusher import StoreFlusher
from broker.store.unread_numbers import UnreadNumbers
from broker.store.whole_reading import whole_part
from keelmq.runtime.clock import now_ms, wall_ms

log = logging.getLogger(__name__)

ENDS_MS: Final = 10_000
"""Interval of the writes of the ends of all queues; with more than 10,000 queues 1 ms for each."""


class InnerMessage(NamedTuple):
    """The fields of a record of a BatchQueue as the client sent them; timestamps in ms."""

    topic_raw: bytes
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int
    tags_code: int
    store_timestamp: int
    prepared_offset: int = 0


class MessageStore:
    """Call load() first; then become_master() for put(), or commit_log.receive_view() at a replica."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        topics: BatchTopics,
        on_queue: Callable[[str, int], None],
        on_sync_fault: Callable[[str], None],
    ) -> None:
        """topics: which of them have queue.type=BatchCQ. on_queue: called for each (topic, queueId) whose
        first record a replica, or a start, finds in the log. on_sync_fault: of the store's SyncFault."""
        self.config = config
        self.root = config.root
        self.sync_fault = SyncFault(on_sync_fault)
        self.damage = DamagedRanges(config.root)
        self.commit_log = commit_log = CommitLog(
            config.commit_log_path or config.root / "commitlog",
            config.commit_log_file_bytes,
            zeros_ahead=config.zeros_ahead,
            append_prop_crc=config.append_prop_crc,
            sync_fault=self.sync_fault,
        )
        self.log_check = LogCheck(commit_log, self.damage)
        self._recovery_parser = recovery_parser(
            check_crc=config.check_crc_on_recover, check_prop_crc=config.verify_prop_crc
        )
        self.store_host = config.store_host
        self.delay_levels = config.delay_levels
        self.put_messages = self.put_bytes = self.got_messages = 0
        self.queues = QueueTable(
            config.root / "consumequeue",
            config.consume_queue_file_bytes,
            config.batch_queue_file_bytes,
            topics,
        )
        self._queues = self.queues.table
        self.numbers = NumberCheck()
        self.unread = UnreadNumbers(commit_log, self.damage, self.queues, self.numbers)
        self.wait_for, self.stop_waiting = self.queues.wait_for, self.queues.stop_waiting
        self.find_queue = self.queues.find
        self.max_queue_offset, self.min_queue_offset = self.queues.max_offset, self.queues.min_offset
        self.index: MessageIndex | None = None
        if config.index_enable:
            self.index = MessageIndex(config.root / "index", config.index_slots, config.index_entries)
        self._lock_fd = -1
        self._flusher = StoreFlusher(self.root, commit_log, self.index, dispatched=self._dispatched)
        self.dispatcher = RecordDispatcher(
            commit_log, self.damage, self.queues, self.numbers, self.index, self._flusher,
            delay_levels=config.delay_levels, on_queue=on_queue,
        )  # fmt: skip
        self.set_confirm_offset = self.dispatcher.set_confirm_offset
        self.cutter = StoreCutter(self.root, self.log_check, self.dispatcher, self._flusher)

    @property
    def confirm_offset(self) -> int:
        """Consumers see the records that end at or before it."""
        return self.dispatcher.confirm_offset

    @property
    def dispatch_offset(self) -> int:
        """Records in front of it have their ConsumeQueue units."""
        return self.dispatcher.dispatch_offset

    @property
    def is_master(self) -> bool:
        """Whether put() is allowed."""
        return self.dispatcher.is_master

    # -- start and recovery ------------------------------------------------------------------------------

    def load(self, between: Between = nothing) -> None:
        """Opens and recovers the files. StoreError: another process has the directory, or the files do not
        fit; nothing was changed then."""
        check_store(self.config)
        dispatcher = self.dispatcher
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock_fd = lock_directory(self.root)
        last_exit = read_last_exit(self.root)
        abnormal, own_abort = last_exit.abnormal, last_exit.is_own
        checkpoint = self._load_marks(last_exit)
        self.commit_log.load()
        self.queues.load(self.commit_log.min_offset)
        queues = self.queues.each()
        confirmed = written_end(self.commit_log, checkpoint.confirm_offset, queues, last_exit)
        dispatcher.durable_end = max(checkpoint.confirm_offset, confirmed)
        self.damage.end_must_be_at(confirmed if confirmed > self.commit_log.max_offset else 0)
        ends = read_ends(self.root) if own_abort or not abnormal else None
        lost_from = rebuild_from(self.commit_log, queues, ends, crashed=abnormal)
        start = scan_start(
            self.commit_log, checkpoint, queues, abnormal=abnormal, own_abort=own_abort,
            is_end_lost=self.damage.lost_end > 0,
        )  # fmt: skip
        start = min(start, lost_from)
        known_end = max(checkpoint.confirm_offset, queued_end(self.commit_log, queues))
        is_distrusted = abnormal and start < checkpoint.confirm_offset
        if is_distrusted:  # before the queues are cut, and before the mark declares the checkpoint ours
            checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = 0
            self.damage.end_must_be_at(checkpoint.confirm_offset if own_abort else 0)
            self._flusher.write_checkpoint(start)
        mark_running(self.root)
        parser = self._recovery_parser  # after a clean exit, too: a replica may stop within a record
        if abnormal:  # rebuild and check everything that is not known to be durable
            self.commit_log.sync_from(start)
            self.commit_log.drop_cached(start)
            self.damage.end_must_be_at(confirmed)  # before the entries that prove it are cut
            self.queues.truncate(start, crashed=True)
            correct_ends(self.commit_log, queues)
            dispatcher.confirm_offset = max(min(known_end, self.commit_log.max_offset), start)
            dispatcher.dispatch_offset = start
            while dispatcher.dispatch(RECORDS_AT_ONCE, parser=parser):
                between()
        end = scan_end(
            self.commit_log, dispatcher.dispatch_offset if abnormal else start, parser, between,
            damage=self.damage, durable_end=dispatcher.durable_end,
        )  # fmt: skip
        self._end_at(end, confirmed)
        dispatcher.confirm_offset = max(min(known_end, end), self.commit_log.min_offset)
        dispatcher.dispatch_offset = min(
            dispatcher.dispatch_offset if abnormal else start, dispatcher.confirm_offset
        )
        if self.index is not None:
            trusted_ms = checkpoint.index_msg_timestamp if abnormal and not own_abort else None
            self.index.load(self.commit_log.min_offset, end, abnormal=abnormal, trusted_ms=trusted_ms)
        while dispatcher.dispatch(RECORDS_AT_ONCE):
            between()
        dispatcher.scan_again()
        while dispatcher.scan(RECORDS_AT_ONCE):
            between()
        (self.root / ENDS_NAME).unlink(missing_ok=True)
        dispatcher.durable_end = NEVER
        self.log_check.loaded(start if self.config.check_crc_on_recover else end)
        if is_distrusted or checkpoint.confirm_offset > dispatcher.confirm_offset:
            self.flush_checkpoint()  # the latter: it is older than a cut, and later records are unconfirmed
        log.info(
            "store loaded: %s exit, log %d..%d, confirmOffset %d, scanned from %d",
            "abnormal" if abnormal else "clean", self.commit_log.min_offset, end, dispatcher.confirm_offset,
            start,
        )  # fmt: skip

    def _load_marks(self, last_exit: LastExit) -> StoreCheckpoint:
        """Loads the checkpoint and the damage, and notes whether files of the log end in front of the
        checkpoint; then their sizes may change."""
        self._flusher.load()
        self._flusher.checkpoint.file_sizes = self.config.file_sizes
        self.damage.load()
        if last_exit.is_checkpoint_durable:
            confirmed = self._flusher.checkpoint.confirm_offset
            self.damage.end_must_be_at(confirmed if confirmed > self.commit_log.bytes_end() else 0)
        return self._flusher.checkpoint

    def _end_at(self, end: int, confirmed: int) -> None:
        """Removes the bytes behind the last whole record of the log, at a start. confirmed: see
        written_end()."""
        if end < confirmed:
            text = "the log ends at %d, and was confirmed up to %d: %s"
            log.error(text, end, confirmed, self.commit_log.why_shorter(end, confirmed))
            self.damage.end_must_be_at(confirmed)
        elif self.damage.confirmed(end):
            self.damage.save()
        if end < self.commit_log.max_offset:
            self.commit_log.truncate(end)
        self.queues.truncate(end)
        correct_ends(self.commit_log, self.queues.each())
        self.damage.remove_above(end)
        self.damage.remove_below(self.commit_log.min_offset)
        self.queues.log_lost_files()

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
        """Appends one message; master only. Returns (physical offset, end offset, queue offset).

        store_timestamp: wall clock in ms, 0 to read the clock here. unique_key, keys: the properties UNIQ_KEY
        and KEYS, for the index; keys None: find them here. For the other arguments, and errors, see
        CommitLog.append().
        """
        dispatcher = self.dispatcher
        assert dispatcher.is_master, "put() on a store that is not master"
        try:
            queue = self._queues[topic.name][queue_id]
        except KeyError:
            queue = self.queues.get(topic.name, queue_id)
            if isinstance(queue, BatchQueue):
                return self.put_inner(queue, InnerMessage(
                    topic.topic_raw, body, properties, flag, sys_flag & ~NEED_UNWRAP | INNER_BATCH,
                    born_timestamp, born_host, reconsume_times, tags_code, store_timestamp or wall_ms(),
                    prepared_offset,
                ))  # fmt: skip
        now = store_timestamp or wall_ms()
        store_host = self.store_host
        if sys_flag & HOST_V6_BITS or len(born_host) + len(store_host) != HOSTS_V4_BYTES:
            sys_flag = host_bits(sys_flag, born_host, store_host)
        queue_offset = queue.next_offset
        offset = self.commit_log.append(
            topic.topic_raw, queue_id, queue_offset, flag, sys_flag, born_timestamp, born_host, store_host,
            now, reconsume_times, body, properties, prepared_offset,
        )  # fmt: skip
        queue.next_offset = queue_offset + 1  # only after success: a refused message leaves no gap
        end = self.commit_log.max_offset
        size = end - offset
        if size > SMALL_BYTES:
            queue.size_counts[(size - 1).bit_length()] += 1
        if keys is None:
            unique_key, keys = index_keys(properties)
        queued = dispatcher.queued
        queued.append((end, queue, queue_offset, offset, size, tags_code, now, unique_key, keys))
        if len(queued) > QUEUED_UNITS_MAX:
            dispatcher.forget_queued()
        dispatcher.last_store_timestamp = now
        self.put_messages += 1
        self.put_bytes += size
        return offset, end, queue_offset

    def put_inner(
        self,
        queue: BatchQueue,
        message: InnerMessage,
        messages: int = 1,
        keys: Sequence[tuple[bytes, bytes]] = (),
    ) -> tuple[int, int, int]:
        """Appends one record of a BatchQueue; as put(). messages: how many it has. keys: UNIQ_KEY and KEYS of
        each message of a batch."""
        assert self.is_master, "put on a store that is not master"
        topic_raw, body, properties, flag, sys_flag, born, born_host, times, tag, now, prepared = message
        base, store_host = queue.next_offset, self.store_host
        properties = with_inner_batch(properties, messages, base)
        sys_flag = host_bits(sys_flag & ~HOST_V6_BITS, born_host, store_host)
        offset = self.commit_log.append(
            topic_raw, queue.queue_id, base, flag, sys_flag, born, born_host, store_host, now, times, body,
            properties, prepared,
        )  # fmt: skip
        end = self.commit_log.max_offset
        unit = BatchUnit(offset, end - offset, tag, now, base, messages)
        found: list[Keyed] = []
        if self.index is not None:
            prefix = queue.key_prefix_hash
            found = [(prefix, offset, now, *each) for each in (index_keys(properties), *keys)]
        part = QueueUnits(queue, base, messages, unit.packed(), end - offset)
        self.add_dispatch_request(DispatchRequest(end, [part], now, found))
        return offset, end, base

    def add_dispatch_request(self, request: DispatchRequest) -> None:
        """Does the steps of put() after its append, for records that were appended to the log directly."""
        for queue, queue_offset, messages, units, log_bytes in request.queue_units:
            queue.next_offset = queue_offset + messages
            if log_bytes > SMALL_BYTES:
                count_large(queue.size_counts, units, messages, log_bytes)
            self.put_messages += messages
            self.put_bytes += log_bytes
        self.dispatcher.add_request(request)

    def become_master(self) -> None:
        """Allows put() from now on. Truncates an incomplete record at the log's end first, and reads records
        that scan() has not read; the event loop has both done before. Queues leave out the queue offsets that
        damaged records may have had."""
        self.cutter.truncate_half_message()
        self.unread.skip()
        self.dispatcher.become_master()

    def become_slave(self) -> None:
        """Forbids put() from now on; the log grows by commit_log.receive_view()."""
        self.queues.first_offset = 0
        self.dispatcher.become_slave()

    # -- reading -----------------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_nums: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None,
        *,
        decodes: bool = False,
    ) -> GetResult:
        """Returns up to max_nums confirmed messages from the queue offset on; see reading.read_queue(). Their
        records are whole. Its views stay valid after the store has deleted a file. decodes: the caller reads
        the records itself, so it is checked that they are of this queue. Raises DamagedQueueError, and
        DamagedRecordError if the first message is damaged."""
        queue, log = self.queues.find(topic, queue_id), self.commit_log
        try:
            if isinstance(queue, BatchQueue):
                result = read_batch_queue(log, queue, offset, max_nums, max_bytes, tag_codes)
            else:
                result = read_queue(log, queue, offset, max_nums, max_bytes, tag_codes)
            if result.views and not self.log_check.is_all_whole:
                result = self._whole_part(queue, result, offset, max_bytes, tag_codes)
            if decodes and not isinstance(queue, BatchQueue):
                try:
                    check_records(result, queue_id, offset)
                except ValueError:  # the first one may be good
                    result = read_queue(log, queue, offset, 1, max_bytes, tag_codes)
                    check_records(result, queue_id, offset)
        except ValueError as error:
            where = f"topic {topic}, queue {queue_id}, is damaged near offset {offset}"
            hint = "" if isinstance(queue, BatchQueue) else "; keelmq repair --queues writes it anew"
            raise DamagedQueueError(f"the ConsumeQueue of {where}: {error}{hint}") from error
        self.got_messages += result.message_count
        return result

    def _whole_part(
        self,
        queue: ConsumeQueue | None,
        result: GetResult,
        offset: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None,
    ) -> GetResult:
        assert queue is not None
        log = self.commit_log

        def read(nums: int) -> GetResult:
            if isinstance(queue, BatchQueue):
                return read_batch_queue(log, queue, offset, nums, max_bytes, tag_codes)
            return read_queue(log, queue, offset, nums, max_bytes, tag_codes)

        return whole_part(self.log_check, log, queue, result, offset=offset, tag_codes=tag_codes, read=read)

    # -- durability --------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Makes log and queues durable; any thread. Returns the log offset that is durable now."""
        return self._flusher.flush()

    def flush_checkpoint(self, *, index_too: bool = False) -> None:
        """Flushes, then writes the checkpoint and the damaged ranges; any thread. See
        StoreFlusher.flush_checkpoint()."""
        cutter = self.cutter
        cuts, offset = cutter.cut_count, self.dispatch_offset  # before the ends, and those before the flush
        ends = QueueEnds(offset, self.queues.ends()) if now_ms() >= self._flusher.next_ends_ms else None

        def flushed(
            unlisted: Collection[ConsumeQueue],
        ) -> None:  # under the lock; a cut deletes the file under it
            if cutter.is_cutting or cuts != cutter.cut_count:
                return
            if ends is not None:
                write_ends(self.root, ends)
                self._flusher.next_ends_ms = now_ms() + max(ENDS_MS, len(ends.ends))
            elif unlisted:
                for queue in unlisted:
                    queue.is_listed = True
                add_new(self.root, [(queue.topic, queue.queue_id) for queue in unlisted])

        self._flusher.flush_checkpoint(index_too=index_too, flushed=flushed)
        self.damage.save()

    def rewrite(self, offset: int, data: bytes) -> Rewrite:
        """Prepares the write of sound records over a damaged range. See Rewrite."""
        return Rewrite(self.commit_log, self._flusher.lock, lambda: self.cutter.cut_count, offset, data)

    def rewrite_unit(
        self, queue: ConsumeQueue, number: int, log_offset: int, size: int, tags_code: int
    ) -> None:
        """Replaces a unit that the queue has; the next flush makes it durable. OSError: no room."""
        queue.rewrite(number, log_offset, size, tags_code)
        self.unit_rewritten(queue)

    def unit_rewritten(self, queue: ConsumeQueue) -> None:
        """A unit of the queue was rewritten: the next flush makes it durable."""
        self._flusher.dirty.add(queue)

    def _dispatched(self) -> tuple[int, int]:
        return self.dispatcher.dispatch_offset, self.dispatcher.last_store_timestamp

    def close(self, clean: bool = True) -> None:
        """Closes the files. clean: make everything durable, so that the next start need not scan the log;
        otherwise, and while messages cannot be dispatched, the next start is one after a crash."""
        self.dispatcher.is_master = False
        if clean:
            if self.cutter.is_cutting:
                self.cutter.write_cut()
            if self.index is not None:
                self.index.write_pending()
            self.flush_checkpoint(index_too=True)
            write_ends(self.root, QueueEnds(self.dispatch_offset, self.queues.ends()))
        with self._flusher.lock:  # a thread may still be writing a cut
            if self.index is not None:
                self.index.close()
            self.queues.close()
            self.commit_log.close(sync=clean)
        if (
            clean and not self.dispatcher.dispatch_fault
        ):  # of a batch for several queues, some may lack their units
            (self.root / "abort").unlink(missing_ok=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
