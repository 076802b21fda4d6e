"""Retention: deletes old files of the store, closes the gate while the disk is full, and runs the index's
catch-up.

The event loop removes files from the log and the queues, which is quick; a thread deletes them. The rules are
in core/retention.py.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from broker.admin.disk_quota import DiskQuota, on_one_partition, partition_bytes
from broker.admission.send_gate import DISK_FULL, SendGate
from broker.config.store_settings import StoreSettings
from broker.core.retention import HELD_MS_MAX, OldFile, decide_retention, is_full
from broker.store.message_store import MessageStore
from keelmq.remoting.operations.health import NO_ROOM
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.disk_room import disk_ratio

logger = logging.getLogger(__name__)

PERIOD_MS: Final = 100
ROOM_MS: Final = 1_000
"""Pause between two checks of a full disk, and between two early rounds of deletion, which run when the log
cannot grow or is too long. Producers wait for room, and a check is cheap."""
INDEX_RECORDS: Final = 128
INDEX_PAUSE_MS: Final = 5
"""Pause between two slices of the index's catch-up, which takes at most a fifth of a core."""
INDEX_SLICES: Final = 20
"""Consecutive slices: the catch-up of a whole log takes over an hour, and retention must run meanwhile."""
QUEUES_AT_ONCE: Final = 200
DISPATCH_RECORDS: Final = 512
ROLL_AHEAD_MS: Final = 3_600_000
"""Time before a file expires at which its timers are written again; at most a quarter of fileReservedTime."""


class Deletable(Protocol):
    """A file of a queue or of the index, or several."""

    def delete(self) -> None:
        """Deletes the file or files. Raises OSError."""


class RetentionService:
    """Owned by the event loop's thread.

    held_offset: returns the offset below which no connected replica needs the log. on_emptied: gets {(topic,
    queueId): next offset} of the queues whose last message is about to be deleted; the deletion waits for it.
    roll_timers: gets a log offset; undelivered timers in front of it are written again, asynchronously.
    usage: disk_ratio. size: partition_bytes.
    """

    def __init__(
        self,
        store: MessageStore,
        gate: SendGate,
        settings: StoreSettings,
        *,
        held_offset: Callable[[], int],
        on_emptied: Callable[[Mapping[tuple[str, int], int]], Awaitable[None]],
        roll_timers: Callable[[int], None],
        usage: Callable[[Path], float] = disk_ratio,
        size: Callable[[Path], int] = partition_bytes,
    ) -> None:
        self._store, self._gate, self._settings = store, gate, settings
        self.quota = DiskQuota(store, settings, size=size)
        self._held_offset, self._on_emptied, self._usage = held_offset, on_emptied, usage
        self._roll_timers = roll_timers
        self._is_full = False
        self._next_look_ms = 0
        self._held_since_ms: int | None = None
        self.requested = False
        """Set by an operator's request to delete expired files now."""

    async def run(self) -> None:
        """Deletes files and watches the disk until it is cancelled."""
        next_clean_ms, next_early_ms = now_ms() + self._settings.clean_resource_interval, now_ms()
        while True:
            self.quota.tell()
            is_behind = await self.catch_up()
            self._look_for_room()
            self.watch_room()
            is_early = now_ms() >= next_early_ms and self._is_pressing()
            if now_ms() >= next_clean_ms or self.requested or is_early:
                await self.clean()
                next_clean_ms = now_ms() + self._settings.clean_resource_interval
                next_early_ms = now_ms() + ROOM_MS
            await asyncio.sleep(0 if is_behind else PERIOD_MS / 1000)

    async def catch_up(self) -> bool:
        """Runs the index's catch-up, and the dispatch if it waits for room. True: there is more to do."""
        if self._store.dispatcher.dispatch_fault:
            self._store.dispatcher.dispatch(DISPATCH_RECORDS)
        for _ in range(INDEX_SLICES):
            if not self._store.dispatcher.catch_up_index(INDEX_RECORDS):
                return False
            await asyncio.sleep(INDEX_PAUSE_MS / 1000)
        return True

    # -- a full disk -------------------------------------------------------------------------------------

    def _look_for_room(self) -> None:
        """Checks a full disk between the rounds of clean()."""
        if self._is_full and now_ms() >= self._next_look_ms:
            self._is_full = is_full(self._settings.retention, self._used_ratio(), was_full=True)

    def _used_ratio(self) -> float:
        """Returns the used ratio of the disk, or of the fuller one if the log is on a separate disk."""
        self._next_look_ms = now_ms() + ROOM_MS
        log, root = self._store.commit_log.directory, self._store.root
        used = self._usage(log)
        return used if on_one_partition(self._store) else max(used, self._usage(root))

    def watch_room(self) -> None:
        """Closes the gate while the log has no room to grow, and opens it as soon as it has."""
        log = self._store.commit_log
        full, cannot_grow = NO_ROOM
        if self._is_full:
            self._gate.close(DISK_FULL, f"{full}: above diskSpaceWarningLevelRatio")
        elif not log.has_room():
            self._gate.close(DISK_FULL, f"{cannot_grow}: {log.write_fault}")
        elif self._gate.is_closed_by(DISK_FULL):
            logger.info("disk space is available again: messages are accepted")
            self._gate.open(DISK_FULL)

    # -- retention ---------------------------------------------------------------------------------------

    def _is_pressing(self) -> bool:
        log, bytes_max = self._store.commit_log, self._settings.max_commit_log_bytes
        return bool(log.write_fault) or 0 < bytes_max < log.max_offset - log.min_offset

    async def clean(self) -> None:
        """Runs one round: deletes at most deleteFileBatchMax files, and checks the disk after each."""
        requested, self.requested = self.requested, False
        log = self._store.commit_log
        if (soon := self._soon_old()) is not None:
            self._roll_timers(soon)
        for number in range(self._settings.delete_file_batch_max):
            next_one = self._next_to_go(requested=requested, recount=number == 0)
            self.watch_room()
            if next_one is None:
                break
            end_offset, must_go = next_one
            self._roll_timers(end_offset)
            await self._tell_emptied(end_offset)
            if not self._may_go(end_offset, must_go=must_go):
                break
            gone = log.take_oldest()
            self._store.damage.remove_below(log.min_offset)
            logger.info("log file %s was deleted; the log now begins at offset %d", gone.path, log.min_offset)
            await asyncio.to_thread(gone.delete)
        await self._clean_derived()

    def _soon_old(self) -> int | None:
        """Returns the end of the newest file that expires soon; None: there is none. Timers in it are rolled
        before any replica deletes it."""
        limit, reserved_ms = self._store.confirm_offset, self._settings.retention.reserved_ms
        soon_ms, soon = wall_ms() + min(ROLL_AHEAD_MS, reserved_ms // 4) - reserved_ms, None
        for end, written_ms in self._store.commit_log.oldest_files(limit):
            if written_ms > soon_ms:
                break
            soon = end
        return soon

    def _next_to_go(self, *, requested: bool, recount: bool) -> tuple[int, bool] | None:
        """Returns the end of the log's oldest file, and whether it is deleted even if a replica copies it.
        None: it stays. recount: queues and index may have other files than at the last call."""
        store = self._store
        limit = min(store.dispatch_offset, store.confirm_offset, store.commit_log.flushed_offset)
        files = [OldFile(end, written) for end, written in store.commit_log.oldest_files(limit)]
        was_full = self._is_full
        verdict = decide_retention(
            self._settings.retention,
            files,
            used_ratio=self._used_ratio(),
            hour=time.localtime().tm_hour,
            now_ms=wall_ms(),
            was_full=was_full,
            requested=requested,
            log=(store.commit_log.min_offset, store.commit_log.max_offset),
            quotas=self.quota.uses(recount=recount),
        )
        self._is_full = verdict.is_full
        if verdict.is_full and not was_full:
            logger.error("the disk is nearly full: messages are refused until disk space is available again")
        return (files[0].end_offset, verdict.must_go) if verdict.files else None

    async def _tell_emptied(self, log_offset: int) -> None:
        """Reports queues that lose their last message, before the deletion: a replica that begins to copy
        behind it must know the next offsets of these queues."""
        ends: dict[tuple[str, int], int] = {}
        for number, queue in enumerate(self._store.queues.each()):
            if queue.ended_before(log_offset):
                ends[queue.topic, queue.queue_id] = queue.next_offset
            if number % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                await asyncio.sleep(0)
        if ends:
            await self._on_emptied(ends)

    def _may_go(self, end_offset: int, *, must_go: bool) -> bool:
        """Returns False while a replica copies the file; with must_go for HELD_MS_MAX at most."""
        if end_offset <= self._held_offset():
            self._held_since_ms = None
            return True
        if self._held_since_ms is None:
            self._held_since_ms = now_ms()
        return must_go and now_ms() - self._held_since_ms >= HELD_MS_MAX

    async def _clean_derived(self) -> None:
        """Deletes the files of queues and index that only point below the beginning of the log."""
        store, begin = self._store, self._store.commit_log.min_offset
        gone: list[Deletable] = []
        for number, queue in enumerate(store.queues.each()):
            gone += queue.expire(begin)
            if number % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                await asyncio.sleep(0)
        if store.index is not None:
            gone += store.index.expired(begin)
        if gone:
            await asyncio.to_thread(_delete, gone)


def _delete(files: Iterable[Deletable]) -> None:
    for file in files:
        file.delete()
