"""Telemetry files: records that any thread puts are written to hourly files, off the data path.

    <directory>/<record>/dt=YYYY-MM-DD/hour=HH/<node>-<ms of opening>.jsonl      (UTC hour of the record's ts)

A file that is still written ends with ".jsonl.open". It loses that suffix when its hour is over, at close(),
when it is full, or at the next start after a crash. Processes may share a directory (controllers on one host
do by default), so an open file is locked. Records are dropped and counted when the queue or the disk is full;
the caller of put() never waits. Nothing is fsynced. A batch is one appending write(), undone if it was
partial: only a crash can leave half a last line.
"""

import asyncio
import contextlib
import errno
import fcntl
import glob
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from pydantic import Field

from keelmq.remoting.records import Record, encode_record, encode_records, name_of
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.config import Config
from keelmq.runtime.tasks import wait_for_event

logger = logging.getLogger(__name__)

QUEUE_RECORDS_MAX = 10_000
BATCH_MS = 100
"""How long the first record of a batch waits for others."""
IDLE_MS = 1_000
TIDY_PERIOD_MS = 60_000
"""How often the whole directory is checked: leftovers, age, bytes."""
LATE_MS = 2_000
"""A file stays open this long after its hour, for late records."""
WARNING_PERIOD_MS = 30_000
FILES_PER_LIMIT = 8
"""A file is closed at this fraction of bytes_max, so that there is always an old file to delete."""
FILES_OPEN_MAX = 16
"""Two per kind of record around the full hour; only a clock jump opens more."""
HOUR_MS = 3_600_000
TS_MAX = 253_402_300_800_000  # year 10000, which does not fit a folder name
OPEN = ".open"

_OURS = re.compile(
    r"[a-z_]+/(?P<hour>dt=\d{4}-\d\d-\d\d/hour=\d\d)/[\w.-]+-(?P<ms>\d{1,15})\.jsonl(?:\.open)?",
    re.ASCII,
)
_NOT_ENCODED = (ValueError, TypeError, OverflowError, msgspec.MsgspecError)
_Key = tuple[str, int]
"""The record's name, and its hour since 1970: one open file."""


class TelemetryConfig(Config):
    """Settings of every program that writes telemetry."""

    telemetry_enable: bool = Field(True, description="write telemetry files for analytics")
    telemetry_reserved_time: int = Field(
        72, gt=0, description="hours after which a telemetry file is deleted"
    )
    telemetry_bytes_max: int = Field(
        268_435_456, ge=1_048_576, description="bytes of telemetry above which the oldest files are deleted"
    )


class TelemetryWriter:
    """Start `run` in a TaskSet, and call close() at the end; put() may be called from any thread, at any
    time."""

    def __init__(
        self,
        directory: Path,
        *,
        node: str,
        reserved_hours: int,
        bytes_max: int,
        on_open: Callable[[str], Sequence[Record]] | None = None,
        wall_clock: Callable[[], int] = wall_ms,
    ) -> None:
        """`on_open(record name)`: returns the first records of a new file; called in the event loop."""
        self.directory = directory
        self.written_records = self.written_bytes = self.dropped_records = 0
        self.fault: str | None = None
        """Why the last attempt to write failed; None after one succeeded."""
        self._node = re.sub(r"[^\w.-]", "_", node, flags=re.ASCII) or "node"
        self._reserved_ms, self._bytes_max = reserved_hours * HOUR_MS, bytes_max
        self._on_open, self._wall_clock = on_open, wall_clock
        self._lock = threading.Lock()  # protects the queue and dropped_records
        self._queue: dict[_Key, list[Record]] = {}
        self._queued = 0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._job: asyncio.Task[None] | None = None  # only its thread may use the members below
        self._files: dict[_Key, tuple[Path, int]] = {}
        self._begun: dict[str, int | None] = {}  # the hour whose file has its first records, by their name
        self._tidy_at_ms = self._warn_at_ms = self._opened_ms = 0
        self._warned = False

    def put(self, record: Record) -> None:
        """Queues a record, which is written soon, or dropped and counted. Never blocks, never raises."""
        with self._lock:
            if self._closed or self._queued >= QUEUE_RECORDS_MAX or not 0 <= record.ts < TS_MAX:
                self.dropped_records += 1
                return
            key = name_of(type(record)), record.ts // HOUR_MS
            queue = self._queue.get(key)
            if queue is None:
                queue = self._queue[key] = []
            queue.append(record)
            self._queued += 1
            first = self._queued == 1
        if first and (loop := self._loop) is not None:
            with contextlib.suppress(RuntimeError):  # that loop was closed: close() will find the record
                loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """Writes until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                await self._flush()
                if await wait_for_event(self._wake, IDLE_MS):
                    await asyncio.sleep(BATCH_MS / 1000)
        finally:
            self._loop = None

    async def close(self) -> None:
        """Writes the queued records and renames the open files; later records are dropped. Safe to repeat."""
        with self._lock:
            self._closed = True
        await self._flush(last=True)

    async def _flush(self, *, last: bool = False) -> None:
        while self._job is not None and not self._job.done():
            await asyncio.wait([self._job])  # left by a cancelled run()
        headers = self._headers(last)
        with self._lock:
            batch, self._queue, self._queued = self._queue, {}, 0
        if batch or headers or last or now_ms() >= self._tidy_at_ms:
            self._job = asyncio.create_task(asyncio.to_thread(self._write, batch, headers, last))
            await asyncio.shield(self._job)

    def _headers(self, last: bool) -> dict[_Key, Sequence[Record]]:
        """Returns the first records of files that may be opened now: for queued records, and for the hour
        that began, again and again until the disk takes them."""
        if self._on_open is None:
            return {}
        hour = self._wall_clock() // HOUR_MS
        with self._lock:
            wanted = set(self._queue)
        if not last:
            wanted |= {(name, hour) for name, begun in self._begun.items() if begun != hour}
        found = {key: self._on_open(key[0]) for key in sorted(wanted) if key not in self._files}
        for (name, _), records in found.items():
            if records:
                self._begun.setdefault(name, None)
        return found

    # -- in the thread -----------------------------------------------------------------------------------

    def _write(
        self, batch: Mapping[_Key, Sequence[Record]], headers: Mapping[_Key, Sequence[Record]], last: bool
    ) -> None:
        for key in {**headers, **batch}:
            self._write_group(key, batch.get(key, ()), headers.get(key, ()))
        over = (self._wall_clock() - LATE_MS) // HOUR_MS
        for key in [key for key in self._files if last or key[1] < over]:
            self._finish(key)
        if now_ms() >= self._tidy_at_ms:
            self._tidy_at_ms = now_ms() + TIDY_PERIOD_MS
            self._tidy()

    def _write_group(self, key: _Key, records: Sequence[Record], header: Sequence[Record]) -> None:
        try:
            file = self._files.get(key)
            if file is not None and os.fstat(file[1]).st_nlink == 0:
                self._forget(key)  # the file was deleted: its lines would be lost
                file = None
            data, count = self._encoded(records if file is not None else [*header, *records])
            if not data:
                return
            path, descriptor = file or self._create(key)
            size = self._append(key, path, descriptor, data)
            if header:
                self._begun[key[0]] = key[1]
        except OSError as error:
            self._failed(error, self.directory, dropped=len(records))
            return
        self.written_records += count
        self.fault = None
        if self._warned:  # no more often than warnings
            self._warned = False
            logger.warning("telemetry is written again; %d records were lost so far", self.dropped_records)
        if size >= self._bytes_max // FILES_PER_LIMIT:
            self._finish(key)

    def _encoded(self, records: Sequence[Record]) -> tuple[bytes, int]:
        """Returns the lines, and their number."""
        with contextlib.suppress(*_NOT_ENCODED):
            return encode_records(records), len(records)
        lines = []
        for record in records:
            try:
                lines.append(encode_record(record))
            except _NOT_ENCODED as error:
                self._drop(1)
                self._warn(f"a record cannot be written ({error}): {record!r:.200}")
        return b"".join(lines), len(lines)

    def _append(self, key: _Key, path: Path, descriptor: int, data: bytes) -> int:
        """Appends all of `data` or nothing. Returns the size of the file. OSError: nothing was written."""
        before = os.fstat(descriptor).st_size
        try:
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            if before == 0:  # the next attempt begins with its header again
                self._forget(key)
                path.unlink(missing_ok=True)
            elif not _cut(descriptor, before):
                self._forget(key)  # never write after half a line
            raise
        self.written_bytes += len(data)
        return before + len(data)

    def _create(self, key: _Key) -> tuple[Path, int]:
        if len(self._files) >= FILES_OPEN_MAX:
            self._finish(min(self._files, key=lambda opened: opened[1]))
        folder = self.directory / key[0] / _folder(key[1])
        folder.mkdir(parents=True, exist_ok=True)
        self._opened_ms = max(self._wall_clock(), self._opened_ms + 1)  # later files sort later
        while True:
            path = folder / f"{self._node}-{self._opened_ms}.jsonl{OPEN}"
            if not _closed_path(path).exists():
                with contextlib.suppress(FileExistsError):
                    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                    self._files[key] = path, os.open(path, flags, 0o644)
                    with contextlib.suppress(OSError):  # a file system without locks
                        fcntl.flock(self._files[key][1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return self._files[key]
            self._opened_ms += 1

    def _finish(self, key: _Key) -> None:
        path, _ = self._files[key]
        self._forget(key)
        self._rename(path)

    def _forget(self, key: _Key) -> None:
        os.close(self._files.pop(key)[1])

    def _rename(self, path: Path) -> None:
        try:
            path.rename(_closed_path(path))
        except OSError as error:
            self._failed(error, path)

    def _tidy(self) -> None:
        """Renames the open files of a crash, and deletes files that are too old or exceed the size limit."""
        mine = {path for path, _ in self._files.values()}
        oldest = _folder(max(0, self._wall_clock() - self._reserved_ms) // HOUR_MS)
        total, closed = 0, []
        for path, hour, _ in sorted(self._found(), key=lambda found: found[1:]):
            if path not in mine and path.suffix == OPEN:
                if _is_locked(path):
                    mine.add(path)  # another process writes it
                else:
                    self._rename(path)
                    path = _closed_path(path)
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                continue
            total += size
            if path not in mine:
                closed.append((path, hour, size))
        for path, hour, size in closed:
            if hour < oldest or total > self._bytes_max:
                total -= size
                self._delete(path)

    def _found(self) -> Iterator[tuple[Path, str, int]]:
        """Yields (path, folder of its hour, ms of opening) of every telemetry file; no other file is
        touched."""
        for name in glob.iglob(
            "*/dt=*/hour=*/*", root_dir=self.directory
        ):  # Path.glob raises if one disappears
            path, match = self.directory / name, _OURS.fullmatch(name)
            if match is not None and path.is_file():
                yield path, match["hour"], int(match["ms"])

    def _delete(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._failed(error, path)
        for folder in (path.parent, path.parent.parent):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()

    # -- warnings ----------------------------------------------------------------------------------------

    def _failed(self, error: OSError, path: Path, *, dropped: int = 0) -> None:
        self._drop(dropped)
        self._warned = self._warned or now_ms() >= self._warn_at_ms
        self.fault = f"{error.filename or path}: {error.strerror or error}"
        self._warn(
            f"cannot write telemetry: {self.fault}; {self.dropped_records} records lost so far; "
            "nothing else is affected. Free disk space, repair the directory, or set telemetryEnable=false"
        )

    def _drop(self, count: int) -> None:
        with self._lock:
            self.dropped_records += count

    def _warn(self, text: str) -> None:
        if now_ms() >= self._warn_at_ms:
            self._warn_at_ms = now_ms() + WARNING_PERIOD_MS
            logger.warning("%s", text)


def _closed_path(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(OPEN))


def _folder(hour: int) -> str:
    """Returns the folder of an hour; names sort as the hours do."""
    return time.strftime("dt=%Y-%m-%d/hour=%H", time.gmtime(hour * 3_600))


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _cut(descriptor: int, size: int) -> bool:
    try:
        os.ftruncate(descriptor, size)
    except OSError:
        return False
    return True
