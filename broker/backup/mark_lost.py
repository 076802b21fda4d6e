"""Marks damaged ranges of a stopped broker's log as lost, so that consumers and replicas pass them.

The bytes are replaced by lost records (broker/message/lost_record.py), and the entries of ConsumeQueues that
point at them by fillers. The damaged bytes are kept in a directory beside the log. A mark is made through the
journal of a healing: one that was interrupted is finished by the broker's next start. The other replicas get
the mark by healing, like any record.

Only a range that fails its checksums can be marked, and only in front of what was confirmed: a damaged end of
the log is cut off by a start. Whether another replica has the messages is not checked here.
"""

import os
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from broker.admin.repair import RepairError, StoreReport
from broker.backup.queue_files import sync, write
from broker.controller_mode.broker_meta_file import META_NAME, BrokerMeta, decode_meta
from broker.healing.evidence import Piece, covering, encode_epochs, sound_end
from broker.healing.journal import HealJournal
from broker.message.lost_record import lost_records
from broker.message.record import HEADER_BYTES, MAGIC_V1, MAGIC_V2, store_timestamp
from broker.store.damage import DamagedRanges
from broker.store.log.checkpoint import read_checkpoint
from broker.store.log.mapped_file import StoreError, listed_files, lock_directory, sync_directory
from broker.store.log_check import check_file
from broker.store.queue.consume_queue import FILLER_SIZE, GAP_FILLER, UNIT, UNIT_BYTES
from keelmq.runtime.durable_file import replace_file

KEPT_PREFIX = "lost-"
UNITS_AT_ONCE = 16_384


class LostMessages(msgspec.Struct, frozen=True):
    """Entries of one queue that point into a lost range: queue offsets, ascending."""

    topic: str
    queue_id: int
    numbers: tuple[int, ...]


class LostRange(msgspec.Struct):
    """A damaged range of the log: CommitLog offsets, end exclusive, in one file. queues: the messages that
    consumers lose, according to the entries of ConsumeQueues."""

    start: int
    end: int
    reason: str
    queues: list[LostMessages] = msgspec.field(default_factory=list)

    @property
    def message_count(self) -> int:
        """How many entries point into the range."""
        return sum(len(each.numbers) for each in self.queues)


class _LogFile(msgspec.Struct, frozen=True):
    path: Path
    start: int
    size: int


def identity_of(root: Path) -> BrokerMeta | None:
    """Returns the broker to which the store belongs; None: it has no id of the controllers. RepairError: the
    file is damaged."""
    path = root / META_NAME
    try:
        return decode_meta(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RepairError(f"{path}: {error}") from None


def confirmed_offset(root: Path) -> int:
    """Returns the offset up to which the log was confirmed, from the checkpoint."""
    return read_checkpoint(root / "checkpoint").confirm_offset


def epochs_of(store: StoreReport, lost: LostRange) -> str:
    """Returns the epochs that cover the range, as 29047 has them."""
    return encode_epochs(covering(store.epochs, lost.start, lost.end))


def find_damage(store: StoreReport, found: list[LostRange]) -> Iterator[tuple[int, int]]:
    """Reads the confirmed log with its checksums, and fills `found` with the damaged ranges and their
    messages. Yields (bytes read, bytes to read) now and then. RepairError: there is no log."""
    files = [_LogFile(path, int(path.name), path.stat().st_size) for path in _files(store)]
    if not files:
        raise RepairError(f"{store.root / 'commitlog'} has no file")
    confirmed = confirmed_offset(store.root)
    begin = store.min_offset
    end = min(confirmed, files[-1].start + files[-1].size)
    for file in files:
        start, stop = max(file.start, begin), min(file.start + file.size, end)
        if start >= stop:
            continue
        with file.path.open("rb") as opened:
            for piece in check_file(opened.fileno(), start, stop, store.file_bytes):
                if piece.fault and found and found[-1].end == piece.start > file.start:
                    found[-1].end = piece.end
                elif piece.fault:
                    found.append(LostRange(piece.start, piece.end, piece.fault))
                yield piece.end - begin, end - begin
    _add_named(store, found, begin, end)
    for queue in sorted((store.root / "consumequeue").glob("*/*")):
        if queue.is_dir() and found:
            _add_entries(queue, found)
        yield end - begin, end - begin


def _add_named(store: StoreReport, found: list[LostRange], begin: int, end: int) -> None:
    """Adds ranges that the broker has reported, and that fail a checksum which find_damage() does not check:
    that of a whole record."""
    known = DamagedRanges(store.root)
    known.load()
    for each in known.ranges:
        path = next((path for path in reversed(_files(store)) if int(path.name) <= each.start), None)
        is_found = any(lost.start < each.end and each.start < lost.end for lost in found)
        if path is None or is_found or not begin <= each.start < each.end <= end:
            continue
        with path.open("rb") as file:
            data = os.pread(file.fileno(), each.end - each.start, each.start - int(path.name))
        if sound_end(data, each.start, file_bytes=store.file_bytes) < each.start + len(data):
            found.append(LostRange(each.start, each.end, each.reason))
    found.sort(key=lambda lost: lost.start)


def _files(store: StoreReport) -> list[Path]:
    return [path for path in listed_files(store.root / "commitlog") if path.stat().st_size]


def _add_entries(queue: Path, found: list[LostRange]) -> None:
    numbers: list[list[int]] = [[] for _ in found]
    for _, number, offset in _entries(queue, found[0].start):
        if offset >= found[-1].end:
            break
        for index, lost in enumerate(found):
            if lost.start <= offset < lost.end:
                numbers[index].append(number)
    for lost, own in zip(found, numbers, strict=True):
        if own:
            lost.queues.append(LostMessages(queue.parent.name, int(queue.name), tuple(own)))


def _entries(queue: Path, from_offset: int) -> Iterator[tuple[Path, int, int]]:
    """Yields (file, number, log offset) of each entry of a queue. Files that end in front of from_offset are
    skipped."""
    for path in listed_files(queue):
        first = int(path.name) // UNIT_BYTES
        with path.open("rb") as file:
            size = path.stat().st_size // UNIT_BYTES * UNIT_BYTES
            last = UNIT.unpack(os.pread(file.fileno(), UNIT_BYTES, size - UNIT_BYTES)) if size else (0, 0, 0)
            if 0 < last[1] != FILLER_SIZE and last[0] < from_offset:
                continue
            number = first
            while raw := file.read(UNITS_AT_ONCE * UNIT_BYTES):
                for offset, unit_size, _ in UNIT.iter_unpack(raw[: len(raw) // UNIT_BYTES * UNIT_BYTES]):
                    if unit_size > 0 and unit_size != FILLER_SIZE:
                        yield path, number, offset
                    number += 1


def mark_lost(store: StoreReport, ranges: list[LostRange]) -> Path:
    """Marks the ranges, which find_damage() has found. Returns the directory that contains the damaged bytes.
    Raises RepairError: a broker uses the store, or a range is not one of whole records; OSError: not all of
    them are marked, and it may be repeated."""
    try:
        descriptor = lock_directory(store.root)
    except StoreError as error:
        raise RepairError(f"{error}: stop it first") from None
    try:
        kept = store.root / f"{KEPT_PREFIX}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        kept.mkdir(exist_ok=True)
        for lost in ranges:
            _mark(store, lost, kept)
        sync_directory(store.root)
        return kept
    finally:
        os.close(descriptor)


def _mark(store: StoreReport, lost: LostRange, kept: Path) -> None:
    file = next(each for each in reversed(_files(store)) if int(each.name) <= lost.start)
    base, size = int(file.name), lost.end - lost.start
    with file.open("r+b") as opened, closing(_Damage(store.root)) as damage:
        old = os.pread(opened.fileno(), size, lost.start - base)
        replace_file(kept / f"{lost.start}-{lost.end}", old, keep_backup=False)
        try:
            data = lost_records(
                lost.start,
                lost.end,
                file_bytes=store.file_bytes,
                stored_ms=_time_beside(opened.fileno(), base, lost),
            )
        except ValueError as error:
            raise RepairError(f"{error}: it does not begin and end where records do") from None
        assert len(data) == size
        assert sound_end(data, lost.start, file_bytes=store.file_bytes) == lost.end
        journal = HealJournal(store.root)
        journal.write(Piece(lost.start, data, covering(store.epochs, lost.start, lost.end)))
        write(file, lost.start - base, data)
        sync(file)
        _give_up_entries(store.root, lost)
        damage.ranges.healed(lost.start, lost.end)
    journal.clear()


class _Damage:
    """The ranges that the broker has reported. close() saves them."""

    def __init__(self, root: Path) -> None:
        self.ranges = DamagedRanges(root)
        self.ranges.load()

    def close(self) -> None:
        self.ranges.save()


def _time_beside(file: int, base: int, lost: LostRange) -> int:
    """Returns STORETIMESTAMP of the record behind the range, which all replicas have; of the first record of
    the file if there is none, or 1. A start of RocketMQ reads the first record of each file."""
    for position in (lost.end - base, 0):
        raw = os.pread(file, HEADER_BYTES, position)
        if len(raw) == HEADER_BYTES and int.from_bytes(raw[4:8], "big") in (MAGIC_V1, MAGIC_V2):
            return max(store_timestamp(raw), 1)
    return 1


def _give_up_entries(root: Path, lost: LostRange) -> None:
    for messages in lost.queues:
        queue, numbers = (
            root / "consumequeue" / messages.topic / str(messages.queue_id),
            set(messages.numbers),
        )
        touched = set[Path]()
        for path, number, _ in _entries(queue, lost.start):
            if number in numbers:
                write(path, number * UNIT_BYTES - int(path.name), GAP_FILLER)
                touched.add(path)
        for path in touched:
            with suppress(FileNotFoundError):
                sync(path)
