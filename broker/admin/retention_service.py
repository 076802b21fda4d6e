"""The store's housekeeping: old files go, a full disk closes the gate, the index catches up.

Everything here is small or in a thread: the event loop takes files out of the log and its queues, a helper
thread deletes them. Numbers and levels: core/retention.py.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from broker.core.retention import HELD_MS_MAX, OldFile, is_full, judge
from broker.pending import DISK_FULL, SendGate
from broker.store.message_store import MessageStore
from broker.store_settings import StoreSettings
from remoting.clock import now_ms, wall_ms

logger = logging.getLogger(__name__)

PERIOD_MS: Final = 100
ROOM_MS: Final = 1_000
"""A full disk is looked at so often: producers wait for room, whoever makes it, and asking is cheap. So soon
files are deleted when the log cannot grow, or is longer than it may be."""
INDEX_RECORDS: Final = 128
INDEX_PAUSE_MS: Final = 5
"""Between two slices of the index's catching up: it takes a fifth of the processor at most."""
INDEX_SLICES: Final = 20
"""Then the rest has its turn: a whole log takes more than an hour, and the disk would be full by then."""
QUEUES_AT_ONCE: Final = 200
DISPATCH_RECORDS: Final = 512


class Deletable(Protocol):
    def delete(self) -> None: ...


def disk_ratio(path: Path) -> float:
    """The used part of what this process may use of the disk, as df shows it: 0 to 1."""
    found = os.statvfs(path)
    used = found.f_blocks - found.f_bfree
    return used / max(used + found.f_bavail, 1)


def disk_room(path: Path) -> tuple[int, int]:
    """Bytes of the disk, and those of them that this process may still use."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


class StoreUpkeep:
    """held_offset: no connected replica needs the log below it. on_emptied: told of (topic, queueId) -> next
    offset of the queues whose last message is deleted next. usage: disk_ratio."""

    def __init__(
        self,
        store: MessageStore,
        gate: SendGate,
        settings: StoreSettings,
        *,
        held_offset: Callable[[], int],
        on_emptied: Callable[[Mapping[tuple[str, int], int]], None] = lambda ends: None,
        usage: Callable[[Path], float] = disk_ratio,
    ) -> None:
        self._store, self._gate, self._settings = store, gate, settings
        self._held_offset, self._on_emptied, self._usage = held_offset, on_emptied, usage
        self._is_full = False
        self._next_look_ms = 0
        self._held_since_ms: int | None = None
        self.asked = False
        """An operator wants expired files deleted now."""

    async def run(self) -> None:
        """Until it is cancelled."""
        next_clean_ms, next_early_ms = now_ms() + self._settings.clean_resource_interval, now_ms()
        while True:
            is_behind = await self.catch_up()
            self._look_for_room()
            self.watch_room()
            is_early = now_ms() >= next_early_ms and self._is_pressing()
            if now_ms() >= next_clean_ms or self.asked or is_early:
                await self.clean()
                next_clean_ms = now_ms() + self._settings.clean_resource_interval
                next_early_ms = now_ms() + ROOM_MS
            await asyncio.sleep(0 if is_behind else PERIOD_MS / 1000)

    async def catch_up(self) -> bool:
        """The index, towards where dispatch is; and dispatch, if it waits for room. True: more to do."""
        if self._store.dispatch_fault:
            self._store.dispatch(DISPATCH_RECORDS)
        for _ in range(INDEX_SLICES):
            if not self._store.catch_up_index(INDEX_RECORDS):
                return False
            await asyncio.sleep(INDEX_PAUSE_MS / 1000)
        return True

    # -- a full disk -------------------------------------------------------------------------------------

    def _look_for_room(self) -> None:
        """Between the rounds of clean(), while the disk is full."""
        if self._is_full and now_ms() >= self._next_look_ms:
            self._is_full = is_full(self._settings.retention, self._used_ratio(), was_full=True)

    def _used_ratio(self) -> float:
        """Of the fuller disk, where the log has one of its own."""
        self._next_look_ms = now_ms() + ROOM_MS
        log, root = self._store.commit_log.directory, self._store.root
        used = self._usage(log)
        return used if log.stat().st_dev == root.stat().st_dev else max(used, self._usage(root))

    def watch_room(self) -> None:
        """Messages are refused while the log has no room to grow, and taken again as soon as it has."""
        log = self._store.commit_log
        if self._is_full:
            self._gate.close(DISK_FULL, "the disk is full: above diskSpaceWarningLevelRatio")
        elif not log.has_room():
            self._gate.close(DISK_FULL, f"the disk is full: {log.write_fault}")
        elif self._gate.is_closed_by(DISK_FULL):
            logger.info("there is room on the disk again: messages are taken")
            self._gate.open(DISK_FULL)

    # -- retention ---------------------------------------------------------------------------------------

    def _is_pressing(self) -> bool:
        log, bytes_max = self._store.commit_log, self._settings.max_commit_log_bytes
        return bool(log.write_fault) or 0 < bytes_max < log.max_offset - log.min_offset

    async def clean(self) -> None:
        """One round: at most deleteFileBatchMax files, one by one; the disk is looked at after each."""
        asked, self.asked = self.asked, False
        log = self._store.commit_log
        for _ in range(self._settings.delete_file_batch_max):
            next_one = self._next_to_go(asked=asked)
            self.watch_room()
            if next_one is None:
                break
            end_offset, must_go = next_one
            await self._tell_emptied(end_offset)
            if not self._may_go(end_offset, must_go=must_go):
                break
            gone = log.take_oldest()
            logger.info("log file %s is deleted; the log begins at %d", gone.path, log.min_offset)
            await asyncio.to_thread(gone.delete)
        await self._clean_derived()

    def _next_to_go(self, *, asked: bool) -> tuple[int, bool] | None:
        """Where the oldest file of the log ends, if it has to go; and whether it is kept for nobody."""
        store = self._store
        limit = min(store.dispatch_offset, store.confirm_offset, store.commit_log.flushed_offset)
        files = [OldFile(end, written) for end, written in store.commit_log.oldest_files(limit)]
        was_full = self._is_full
        verdict = judge(
            self._settings.retention,
            files,
            used_ratio=self._used_ratio(),
            hour=time.localtime().tm_hour,
            now_ms=wall_ms(),
            was_full=was_full,
            asked=asked,
            log=(store.commit_log.min_offset, store.commit_log.max_offset),
        )
        self._is_full = verdict.is_full
        if verdict.is_full and not was_full:
            logger.error("the disk is nearly full: messages are refused until there is room again")
        return (files[0].end_offset, verdict.must_go) if verdict.files else None

    async def _tell_emptied(self, log_offset: int) -> None:
        """Before the log begins there: who begins to copy there must know how far these queues count."""
        ends: dict[tuple[str, int], int] = {}
        for number, queue in enumerate(self._store.queues.each()):
            if queue.ended_before(log_offset):
                ends[queue.topic, queue.queue_id] = queue.next_offset
            if number % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                await asyncio.sleep(0)
        if ends:
            self._on_emptied(ends)

    def _may_go(self, end_offset: int, *, must_go: bool) -> bool:
        """Not while a replica copies it; for HELD_MS_MAX only, when the disk is nearly full."""
        if end_offset <= self._held_offset():
            self._held_since_ms = None
            return True
        if self._held_since_ms is None:
            self._held_since_ms = now_ms()
        return must_go and now_ms() - self._held_since_ms >= HELD_MS_MAX

    async def _clean_derived(self) -> None:
        """Queues and index follow the log's beginning."""
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
