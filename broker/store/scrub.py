"""Scrub: reads the whole log in the background, checks each record, and reports damage.

One piece at a time is read in a thread, with pread, so a slow disk blocks no other thread; a thread holds the
interpreter lock for the check of log_check.PIECE_BYTES at most. Old synced bytes are dropped from the page
cache first: the cache may hide damage of the disk. The position is kept over restarts, in a file that is not
synced: after a power failure some records are checked again. The ConsumeQueue entries of sound records are
compared with them (entry_check.py).
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Final

from broker.message.prop_crc import parse_with_prop_crc
from broker.message.record_scan import QueueScan
from broker.store.entry_check import EntryCheck, ExpectedUnits, expected_units
from broker.store.log_check import RECORD_BYTES_MAX, Piece, check_file
from broker.store.message_store import MessageStore
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.durable_file import replace_file
from keelmq.runtime.rate_limited_log import RateLimitedLogger

logger = logging.getLogger(__name__)

FILE_NAME: Final = "scrubPosition"
SLICE_BYTES: Final = 1 << 20
ROUND_MS_MIN: Final = 3_600_000
"""Minimum time from the beginning of a round to that of the next one."""
SAVE_MS: Final = 10_000
IDLE_MS: Final = 1_000
"""Pause between two checks for work, of a log that is read to its end, or while the scrub is off."""


class Scrub:
    """The scrub of one store. Owned by the event loop's thread. checked_bytes: since the start; rounds: how
    often the whole log was read; round_ms: wall clock at the end of the last one, 0: there was none. fault:
    why the disk cannot be read."""

    def __init__(
        self, store: MessageStore, *, bytes_per_second: Callable[[], int], cached_bytes: int
    ) -> None:
        """bytes_per_second: scrubBytesPerSecond, 0: off. cached_bytes: the tail of the log that is assumed to
        be in memory, and is not dropped from it."""
        self.position = self.round_end = 0  # round_end: where the round ends; 0: none is under way
        self.checked_bytes = self.rounds = self.round_ms = 0
        self.fault = ""
        self._store, self._rate, self._cached_bytes = store, bytes_per_second, cached_bytes
        self._path = store.root / FILE_NAME
        self._began_ms: int | None = None
        self._boundary_of = -1  # the cut_count as of which the position is a record boundary
        self._saved_ms = now_ms()
        self._failures = RateLimitedLogger(logger, level=logging.ERROR)
        self.entries = EntryCheck(store)

    def runtime_info(self) -> Mapping[str, str]:
        """Returns the keys of the runtime information (28) with the progress."""
        return {
            "scrubPosition": str(self.position),
            "scrubEndOffset": str(self.round_end),
            "scrubRounds": str(self.rounds),
            "scrubRoundTimestamp": str(self.round_ms),
            "scrubFault": self.fault,
            "scrubEntriesRewritten": str(self.entries.rewritten),
        }

    async def run(self) -> None:
        """Runs until it is cancelled."""
        self.load()
        try:
            while True:
                rate, began_ms = self._rate(), now_ms()
                done = await self.step() if rate else 0
                if done and now_ms() - self._saved_ms >= SAVE_MS:
                    self._saved_ms = now_ms()
                    await asyncio.to_thread(self.save)
                pause_ms = 1_000 * done // rate - (now_ms() - began_ms) if done else IDLE_MS
                await asyncio.sleep(max(pause_ms, 0) / 1_000)
        finally:
            self.save()

    async def step(self) -> int:
        """Checks the next slice. Returns its bytes; 0: there is nothing to do now."""
        store, log = self._store, self._store.commit_log
        if store.cutter.is_cutting or not self._is_in_round():
            return 0
        start, cuts, file_bytes = self._boundary(), store.cutter.cut_count, log.file_bytes
        file_end = start - start % file_bytes + file_bytes
        end = min(self.round_end, self._readable_end(), file_end)
        is_old = file_end <= min(log.flushed_offset, log.max_offset - self._cached_bytes)
        forget = log.page_dropper(start, min(start + SLICE_BYTES, end)) if is_old else None
        descriptor = log.open_file(start)
        try:
            pieces, expected = await asyncio.to_thread(_check, descriptor, start, end, file_bytes, forget)
            self.fault = ""
        except OSError as error:
            self.fault = f"the log cannot be read at {start}: {error}"
            self._failures.tell(now_ms(), "%s; the rest of its file is not checked", self.fault)
            self.position = file_end
            return SLICE_BYTES
        finally:
            os.close(descriptor)
        if cuts != store.cutter.cut_count:
            return 0
        if pieces[-1].fault and pieces[-1].end == end < file_end:
            around = store.log_check.record_around(end - 1)
            if around is not None and around.end > end:  # not damaged: a replica has synced a part of it
                self.round_end = around.start
                pieces.pop()
        if not pieces:
            return await self.step()
        for piece in pieces:
            self._take(piece)
        self._boundary_of = cuts
        self.position = pieces[-1].end
        self.checked_bytes += self.position - start
        await self.entries.compare(expected, cuts)
        return pieces[-1].end - start

    def _is_in_round(self) -> bool:
        """Begins and ends rounds. A round ends where the dispatched and synced log ended when it began: a
        check of new bytes would slow down the producers, and find nothing."""
        log, end = self._store.commit_log, self._readable_end()
        if self.round_end and self.position >= min(self.round_end, end):
            self.rounds += 1
            self.position, self.round_end, self.round_ms = 0, 0, wall_ms()
            logger.info("the log was checked to its end; %d damaged ranges", len(self._store.damage.ranges))
        if not self.round_end:
            if self._began_ms is not None and now_ms() - self._began_ms < ROUND_MS_MIN:
                return False
            self._began_ms, self.round_end = now_ms(), end
        self.position = max(self.position, log.min_offset)
        return self.position < min(self.round_end, end)

    def _readable_end(self) -> int:
        """Returns the end of the bytes that are dispatched (so of whole records) and synced. A replica may
        sync a part of a record, and confirm it."""
        return min(self._store.dispatch_offset, self._store.commit_log.flushed_offset)

    def _boundary(self) -> int:
        """Returns the position; after a start or a cut the beginning of its file, if the position is no
        record boundary any more."""
        log, offset, cuts = self._store.commit_log, self.position, self._store.cutter.cut_count
        if self._boundary_of == cuts or log.is_record_start(offset):
            self._boundary_of = cuts
            return offset
        return max((start for start in log.file_starts() if start <= offset), default=log.min_offset)

    def _take(self, piece: Piece) -> None:
        damage = self._store.damage
        known = None if piece.fault else damage.overlaps(piece.start, piece.end)
        if known is not None and self._has_all_checksums(piece):
            logger.warning("the log is whole again at %d..%d", known.start, known.end)
            damage.healed(piece.start, piece.end)
        self._store.log_check.found(piece)

    def _has_all_checksums(self, piece: Piece) -> bool:
        """Whether its records also have correct checksums of topic and properties, if they have any, and
        possible numbers: the finder of the damage may have checked these (29047, verify, dispatch)."""
        view, pos = self._store.commit_log.view(piece.start, piece.end - piece.start), 0
        while pos < len(view):
            parsed = parse_with_prop_crc(view, pos, len(view), offset=piece.start + pos)
            if parsed is None:
                return False
            queue = self._store.queues.find(parsed[1].decode("utf-8", "replace"), parsed[2])
            if queue is not None and not self._store.numbers.has_its_number(queue, parsed, piece.start + pos):
                return False
            pos += parsed[0]
        return True

    def load(self) -> None:
        """Reads where an earlier process stopped; run() does it."""
        try:
            kept = json.loads(self._path.read_bytes())
            self.position, self.rounds = int(kept["position"]), int(kept["rounds"])
            self.round_ms = int(kept["roundMs"])
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s: %r; the log is checked from its beginning", self._path, error)
            kept = {}
        if kept.get("hasDamage") is True and not self._store.damage.is_there:
            logger.error("%s is lost; the log is checked from its beginning", self._store.damage.path)
            self.position = 0
        if self._store.queues.has_lost_entries:
            self.position = 0
        if self._store.damage.is_file_lost or not 0 <= self.position <= self._store.commit_log.max_offset:
            self.position = 0

    def save(self) -> None:
        """Writes the position, not durably; any thread."""
        kept = {
            "position": self.position,
            "rounds": self.rounds,
            "roundMs": self.round_ms,
            "hasDamage": self._store.damage.is_there,
        }
        try:
            replace_file(self._path, json.dumps(kept).encode() + b"\n", keep_backup=False, durable=False)
        except OSError as error:
            self._failures.tell(now_ms(), "%s cannot be written: %s", self._path, error)


def _check(
    descriptor: int, start: int, end: int, file_bytes: int, forget: Callable[[], None] | None
) -> tuple[list[Piece], list[ExpectedUnits]]:
    """Checks SLICE_BYTES of a file, or a few more, and finds the queue entries of its records; runs in a
    thread."""
    if forget is not None:
        forget()
    pieces, expected, queue_scans = list[Piece](), list[ExpectedUnits](), dict[bytes, dict[int, QueueScan]]()
    for piece in check_file(descriptor, start, end, file_bytes):
        pieces.append(piece)
        size = piece.end - piece.start
        if not piece.fault and size <= RECORD_BYTES_MAX:  # a larger one is the rest of a file
            data = os.pread(descriptor, size, piece.start % file_bytes)
            expected += expected_units(data, piece.start, queue_scans)
        if piece.end - start >= SLICE_BYTES:
            break
    return pieces, expected
