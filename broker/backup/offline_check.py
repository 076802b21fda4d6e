"""Checks the files of a stopped broker, and changes nothing: every record of the log with its checksum, the
epochs, and the entry of each record in its queue."""

import mmap
import resource
from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from broker.admin.repair import RepairError, StoreReport, inspect_store, log_files
from broker.backup.manifest import BackupError
from broker.message.inner_batch import INNER_BATCH, sys_flag_at
from broker.message.prop_crc import recovery_parser
from broker.store.log.checkpoint import read_checkpoint
from broker.store.log.mapped_file import is_file_name, listed_files
from broker.store.queue.consume_queue import FILLER_SIZE, UNIT, UNIT_BYTES

RECORDS_PER_STEP: Final = 20_000
FAULTS_MAX: Final = 20


class StoreCheck(msgspec.Struct):
    """What was read. faults: the first FAULTS_MAX. unqueued: records without an entry, which a start
    adds unless `faults` says otherwise."""

    root: Path
    min_offset: int = 0
    max_offset: int = 0
    is_running: bool = False
    epochs: tuple[tuple[int, int], ...] = ()
    records: int = 0
    unqueued: int = 0
    faults: list[str] = msgspec.field(default_factory=list)
    first_bad_offset: int | None = None
    is_queue_damaged: bool = False

    def fault(self, text: str) -> None:
        """Adds a fault, unless there are many."""
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(text)

    def bad_at(self, offset: int, text: str) -> None:
        """Adds a fault of the log at `offset`."""
        if self.first_bad_offset is None or offset < self.first_bad_offset:
            self.first_bad_offset = offset
        self.fault(text)


def check_stopped(root: Path, found: StoreCheck, epoch_path: Path | None = None) -> Iterator[tuple[int, int]]:
    """Fills `found`; yields (bytes of the log read, bytes of all) now and then. Raises BackupError: there is
    no store."""
    try:
        report = inspect_store(root, epoch_path)
    except RepairError as error:
        raise BackupError(str(error)) from None
    found.min_offset, found.max_offset, found.is_running = (
        report.min_offset,
        report.max_offset,
        report.is_running,
    )
    found.epochs = report.epochs.pairs
    if report.epoch_fault is not None:
        found.fault(report.epoch_fault)
    elif found.epochs and found.epochs[-1][1] > found.max_offset:
        found.fault(f"epoch {found.epochs[-1][0]} begins at {found.epochs[-1][1]}, behind the log's end")
    for offset, text in missing_parts(report, is_running=report.is_running):
        found.bad_at(offset, text)
    files, total, done = log_files(root), found.max_offset - found.min_offset, 0
    with closing(_Queues(root)) as queues:
        for path in files:
            yield from ((done + step, total) for step in _check_file(path, path is files[-1], found, queues))
            done = min(int(path.name) + report.file_bytes, found.max_offset) - found.min_offset
    for text in queues.holes():
        found.is_queue_damaged = True
        found.fault(text)
    found.unqueued = queues.unqueued
    yield total, total


def missing_parts(report: StoreReport, *, is_running: bool) -> Iterator[tuple[int, str]]:
    """Yields (offset, fault) where bytes of the log are missing: files that are missing or too short, and an
    end below the confirmed offset, since records behind a damaged one are not found. is_running: a broker
    writes to the log, so its end is not known."""
    files, size = log_files(report.root), report.file_bytes
    expected = int(files[0].name) if files else 0
    for path in files:
        start, has = int(path.name), path.stat().st_size
        if start != expected:
            yield min(start, expected), f"{path}: the file before it ends at {expected}"
        if has < size and path is not files[-1]:
            yield start + has, f"{path} has {has} bytes, and the others {size}"
        expected = start + size
    confirmed = read_checkpoint(report.root / "checkpoint").confirm_offset
    if report.max_offset < confirmed and not is_running:
        yield (
            report.max_offset,
            f"the log ends at {report.max_offset}, and was confirmed up to {confirmed}: its next record is "
            "damaged or missing",
        )


def _check_file(path: Path, is_last: bool, found: StoreCheck, queues: "_Queues") -> Iterator[int]:
    start, parse = int(path.name), recovery_parser(check_crc=True, check_prop_crc=True)
    with path.open("rb") as file:
        if not path.stat().st_size:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
            position = max(found.min_offset - start, 0)
            while position < len(view) and not (is_last and start + position >= found.max_offset):
                parsed = parse(view, position, len(view), offset=start + position)
                if parsed is None:
                    text = f"{path}: the record at offset {start + position} is damaged"
                    found.bad_at(start + position, f"{text} (its form or its checksum)")
                    return
                size, topic, queue_id, queue_offset = parsed[:4]
                if topic:
                    found.records += 1
                    if not sys_flag_at(view, position) & INNER_BATCH:
                        fault = queues.check(topic, queue_id, queue_offset, start + position, size)
                        if fault:
                            found.is_queue_damaged = True
                            found.fault(fault)
                    if not found.records % RECORDS_PER_STEP:
                        yield position
                position += size


class _Queues:
    """The ConsumeQueues' files. Opened when they are needed, and at most half as many as the process may open
    at a time."""

    def __init__(self, root: Path) -> None:
        self._base = root / "consumequeue"
        self._was_stopped = not (root / "abort").exists()
        self._files: dict[tuple[bytes, int], list[tuple[int, int, Path]]] = {}
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._mapped = lru_cache(files_max // 2 if files_max != resource.RLIM_INFINITY else None)(_mapped)
        self.unqueued = 0
        self._missing: dict[tuple[bytes, int], tuple[int, int]] = {}
        self._queued_offset = 0  # of the newest record with an entry

    def holes(self) -> Iterator[str]:
        """Yields the queues that lack entries that no start adds. After an orderly stop, a start adds only
        entries behind the newest entry of all queues. A queue without a file may be one that was deleted."""
        for (topic, queue_id), (queue_offset, offset) in self._missing.items():
            if self._was_stopped and offset < self._queued_offset and self._files[topic, queue_id]:
                name = topic.decode("utf-8", "replace")
                yield f"queue {name} {queue_id}: entry {queue_offset} is missing, its record is at {offset}"

    def close(self) -> None:
        """Closes all files."""
        self._mapped.cache_clear()

    def check(self, topic: bytes, queue_id: int, queue_offset: int, offset: int, size: int) -> str | None:
        """Returns the fault of this record's entry; None: there is none, or the entry is not written yet."""
        name = topic.decode("utf-8", "replace")
        if not is_file_name(name):
            return None
        unit = self._unit(topic, name, queue_id, queue_offset)
        if unit is None or unit[1] in (0, FILLER_SIZE):
            self.unqueued += 1
            self._missing.setdefault((topic, queue_id), (queue_offset, offset))
            return None
        self._queued_offset = offset
        if unit[:2] != (offset, size):
            return (
                f"queue {name} {queue_id}: entry {queue_offset} points to {unit[0]} ({unit[1]} bytes), "
                f"its record is at {offset} ({size} bytes)"
            )
        return None

    def _unit(self, topic: bytes, name: str, queue_id: int, index: int) -> tuple[int, int, int] | None:
        key = topic, queue_id
        if key not in self._files:
            self._files[key] = [
                (int(path.name), path.stat().st_size, path)
                for path in listed_files(self._base / name / str(queue_id))
            ]
        position = index * UNIT_BYTES
        for start, size, path in self._files[key]:
            if start <= position and position + UNIT_BYTES <= start + size:
                offset, record_size, code = UNIT.unpack_from(self._mapped(path), position - start)
                return offset, record_size, code
        return None


def _mapped(path: Path) -> mmap.mmap:
    """The file, until no reference to the map is left."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
