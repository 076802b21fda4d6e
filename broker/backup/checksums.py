"""Checksums of the log and of the queues, to compare replicas while they serve, and the check of single
records, which determines which of two differing replicas is damaged.

The log is read in a thread (store/log_checksums.py). Queues are small, and are read on the event loop in
short slices.
"""

import asyncio
import zlib
from bisect import bisect_right
from typing import Final

import msgspec

from broker.healing.evidence import records_of
from broker.message.record_check import last_good, next_good
from broker.store.log_check import Piece, why_bad
from broker.store.log_checksums import ChecksumError, log_crcs, pieces, read_log
from broker.store.message_store import MessageStore
from broker.store.queue.batch_queue import BatchQueue
from broker.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue
from keelmq.remoting.operations.store_copies import (
    CHECKED_BYTES_MAX,
    CHECKSUM_BYTES_MAX,
    DAMAGED_PARTS_MAX,
    PIECES_MAX,
    QUEUES_MAX,
    CheckLogRecordsRequest,
    DamagedLogPart,
    LogChecksums,
    LogChecksumsRequest,
    LogRecordCheck,
    QueueChecksum,
    QueueChecksums,
    QueueChecksumsRequest,
)

UNITS_AT_ONCE: Final = 16_384
"""About a third of a millisecond."""
UNITS_PER_ANSWER_MAX: Final = 4_000_000
QUEUES_AT_ONCE: Final = 64
REACHES: Final = (256 << 10, 17 << 20)
"""Bytes in front of a range and behind it in which its first and last record are looked for: first a few,
then as many as the longest record has."""


class Search(msgspec.Struct, frozen=True):
    """is_anchored: False if no record boundary was found in front of the range; then `damaged` is all of it.
    records: whole ones that overlap the range."""

    damaged: tuple[Piece, ...]
    records: int
    is_anchored: bool


class StoreChecksums:
    """Owned by the event loop's thread. One request is served at a time: the disk is for the messages."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.is_busy = False

    async def of_log(self, request: LogChecksumsRequest) -> LogChecksums:
        """Returns the checksums of a range of confirmed bytes. Raises ChecksumError."""
        start, end, size = request.start_offset, request.end_offset, request.piece_bytes
        count = end - start
        if count < 0 or count > CHECKSUM_BYTES_MAX or -(-count // size) > PIECES_MAX:
            raise ChecksumError(
                f"[{start}, {end}) in pieces of {size}: at most {CHECKSUM_BYTES_MAX} bytes and {PIECES_MAX} "
                "pieces"
            )
        self._check_confirmed(start, end)
        return LogChecksums(crcs=await log_crcs(self._store, start, end, size))

    async def of_records(self, request: CheckLogRecordsRequest) -> LogRecordCheck:
        """Returns which records of a range of confirmed bytes are damaged; the store remembers them. Raises
        ChecksumError."""
        start, end = request.start_offset, request.end_offset
        if not 0 < end - start <= CHECKED_BYTES_MAX:
            raise ChecksumError(f"[{start}, {end}): 1 to {CHECKED_BYTES_MAX} bytes are checked at a time")
        self._check_confirmed(start, end)
        damaged, records = list[DamagedLogPart](), 0
        file_bytes = self._store.commit_log.file_bytes
        while start < end:  # records do not cross files
            stop = min(end, start - start % file_bytes + file_bytes)
            found = await self._search(start, stop)
            if found.is_anchored:
                for piece in found.damaged:  # so that it is healed from another replica
                    self._store.log_check.found(piece)
            damaged += [
                DamagedLogPart(start_offset=each.start, end_offset=each.end, reason=each.fault)
                for each in found.damaged
            ]
            start, records = stop, records + found.records
        return LogRecordCheck(damaged=damaged[:DAMAGED_PARTS_MAX], records=records)

    async def _search(self, start: int, end: int) -> Search:
        """Checks the records of a range within one file."""
        log = self._store.commit_log
        first = max(start - start % log.file_bytes, log.min_offset)
        last = min(first - first % log.file_bytes + log.file_bytes, self._store.confirm_offset)
        for reach in REACHES:
            low, high = max(first, start - reach), min(last, end + reach)
            found = await read_log(
                self._store,
                low,
                high,
                lambda files, low=low: search_damage(  # type: ignore[misc]
                    b"".join(pieces(files)),
                    low,
                    start,
                    end,
                    file_bytes=log.file_bytes,
                    is_boundary=low == first,
                ),
            )
            if found.is_anchored and (high == last or all(each.end < high for each in found.damaged)):
                break
        return found

    def _check_confirmed(self, start: int, end: int) -> None:
        """Raises ChecksumError if a byte of the range is not in the confirmed log."""
        low, high = self._store.commit_log.min_offset, self._store.confirm_offset
        if start < end and (start < low or end > high):
            raise ChecksumError(f"[{start}, {end}) is not in the confirmed log, [{low}, {high})")

    async def of_queues(self, request: QueueChecksumsRequest) -> QueueChecksums:
        """Returns the checksums of some queues, and where the next request continues."""
        start, end = request.start_offset, min(request.end_offset, self._store.dispatch_offset)
        queues = sorted(
            (each for each in self._store.queues.each() if not isinstance(each, BatchQueue)), key=_key
        )
        first = bisect_right(queues, (request.after_topic, request.after_queue_id), key=_key)
        found, units, at = list[QueueChecksum](), 0, first
        for at in range(first, min(first + QUEUES_MAX, len(queues))):
            low, high = entries_between(queues[at], start, end)
            if low < high:
                if found and units + high - low > UNITS_PER_ANSWER_MAX:
                    at -= 1
                    break
                units += high - low
                crc = await self._crc_of(queues[at], low, high)
                found.append(
                    QueueChecksum(
                        topic=queues[at].topic,
                        queue_id=queues[at].queue_id,
                        first_offset=low,
                        entries=high - low,
                        crc=crc,
                    )
                )
            if not at % QUEUES_AT_ONCE:
                await asyncio.sleep(0)
        last = queues[at] if at < len(queues) else None
        return QueueChecksums(
            queues=found,
            last_topic="" if last is None else last.topic,
            last_queue_id=-1 if last is None else last.queue_id,
            is_last=at + 1 >= len(queues),
        )

    async def _crc_of(self, queue: ConsumeQueue, low: int, high: int) -> int:
        crc, cut_count = 0, self._store.cutter.cut_count
        while low < high:
            if self._store.cutter.cut_count != cut_count or low < queue.min_offset:
                return 0  # cut, or deleted by retention: the log has changed, and verify checks again
            view = queue.raw(low, min(high - low, UNITS_AT_ONCE))
            crc = zlib.crc32(view, crc)
            low += len(view) // queue.unit_bytes
            view.release()
            await asyncio.sleep(0)
        return crc


def _key(queue: ConsumeQueue) -> tuple[str, int]:
    return queue.topic, queue.queue_id


def entries_between(queue: ConsumeQueue, start: int, end: int) -> tuple[int, int]:
    """Returns the queue offsets [first, last) of the entries whose records are in the log's [start, end)."""
    return _first_at(queue, start), _first_at(queue, end)


def _first_at(queue: ConsumeQueue, log_offset: int) -> int:
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        offset, size, _ = queue.unit(middle)
        low, high = (middle + 1, high) if size == FILLER_SIZE or offset < log_offset else (low, middle)
    return low


def search_damage(
    data: bytes, base: int, start: int, end: int, *, file_bytes: int, is_boundary: bool
) -> Search:
    """Returns the damaged parts that overlap the log's [start, end), whose record boundaries are not known.

    data: the log from offset `base` on, within one file; it should extend behind `end` by the longest record.
    is_boundary: a record begins at `base`."""
    # BODYCRC is enough to find boundaries; records_of() decides which records are sound.
    assert base <= start < end <= base + len(data)
    view = memoryview(data)
    at = last_good(view, start - base, base)
    if at < 0 and not is_boundary:
        return Search((Piece(start, end, "no whole record is in front of it"),), 0, is_anchored=False)
    at, damaged, records = max(at, 0), list[Piece](), 0
    while base + at < end:
        for record in records_of(view[at:], base + at, file_bytes=file_bytes):
            if record.offset >= end:
                break
            at = record.offset + record.parsed[0] - base
            records += base + at > start
        if base + at < end:
            bad, file_left = base + at, file_bytes - (base + at) % file_bytes
            found = next_good(view, at, len(view), bad, file_left)
            at = len(view) if found < 0 else found
            damaged.append(Piece(bad, base + at, why_bad(view[bad - base :], bad)))
    return Search(tuple(damaged), records, is_anchored=True)
