"""Backups of this broker's store while it serves: one at a time, by a thread, in small steps.

Records that are confirmed at the start are copied. They never change, and the log only grows, so the copy is
consistent without stopping anything. The metadata's files are opened at the same moment: an open file keeps
its content when it is replaced later, and a journal is read up to its length at that moment. Retention keeps
the files that are still to be copied, but never longer than it does for a replica: if the disk is nearly
full, messages have priority, and the backup fails.
"""

import asyncio
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from broker.backup.manifest import CONFIG, IDENTITY, LOG, PARTIAL_SUFFIX, BackupError, Manifest
from broker.backup.writer import BackupWriter
from broker.config.broker_config import BrokerConfig
from broker.controller_mode.broker_meta_file import META_NAME, decode_meta
from broker.ha.core.epochs import Epochs
from broker.metadata.service import Metadata
from broker.store.log.mapped_file import file_name
from broker.store.message_store import MessageStore
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.disk_room import DiskRoom, disk_room
from keelmq.runtime.program import version_line
from keelmq.runtime.tasks import finished_in_thread

logger = logging.getLogger(__name__)

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Progress(msgspec.Struct, frozen=True):
    """state: none, copying, done, failed or cancelled. path: where the backup is, or will be."""

    state: str = "none"
    name: str = ""
    path: str = ""
    bytes_done: int = 0
    bytes_total: int = 0
    min_offset: int = 0
    end_offset: int = 0
    error: str = ""


class _Moment(msgspec.Struct):
    """The contents of the backup at one moment. small: name, open file, length."""

    min_offset: int
    end_offset: int
    cut_count: int
    epochs: Epochs
    small: list[tuple[str, int, int]]

    @property
    def byte_count(self) -> int:
        return sum(length for _, _, length in self.small)


class StoreBackups:
    """Owned by the event loop's thread. epochs: of the log, now. start_task: runs a coroutine function until
    the broker stops."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        metadata: Metadata,
        *,
        epochs: Callable[[], Epochs],
        start_task: Callable[[str, Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._config, self._store, self._metadata = config, store, metadata
        self._epochs, self._start_task = epochs, start_task
        self.room: Callable[[Path], DiskRoom] = disk_room
        self.progress = Progress()
        self.held_offset = sys.maxsize
        """Retention keeps the log from here on."""
        self._is_cancelled = False
        self._ending, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()

    async def start(self, name: str, bytes_per_second: int) -> Progress:
        """Begins a backup at backupPath/name. bytes_per_second: 0: no limit. Raises BackupError: it cannot be
        begun."""
        directory = self._config.backup_path
        if directory is None:
            raise BackupError(
                "backupPath is not set: set it to a directory on another disk, and restart the broker"
            )
        if NAME.fullmatch(name) is None or name.endswith(PARTIAL_SUFFIX):
            raise BackupError(
                "a backup name has letters, digits, '.', '_' and '-', and begins with a letter or digit"
            )
        if not self._idle.is_set():
            name = self.progress.name if self.progress.state == "copying" else "that begins"
            raise BackupError(f"backup {name} is in progress: wait for it, or cancel it")
        if self._store.cutter.is_cutting:
            raise BackupError("the log is being truncated: repeat it in a moment")
        target, moment = directory / name, self._moment()
        total = moment.end_offset - self._first_file(moment) + moment.byte_count
        self._is_cancelled = False
        self._ending.clear()
        self._idle.clear()
        self.held_offset = moment.min_offset
        try:  # in a thread: backupPath may be on a disk, or a server's, that does not answer
            await asyncio.to_thread(self._check_target, target, total)
        except BaseException:
            self._release(moment)
            raise
        self.progress = begun = Progress(
            "copying", name, str(target), 0, total, moment.min_offset, moment.end_offset
        )
        self._start_task("store backup", lambda: self._run(BackupWriter(target), moment, bytes_per_second))
        return begun

    def _release(self, moment: _Moment) -> None:
        _close(moment)
        self.held_offset = sys.maxsize
        self._idle.set()

    def cancel(self) -> Progress:
        """Requests the end of the backup in progress, if any."""
        self._is_cancelled = True
        self._ending.set()
        return self.progress

    async def stopped(self) -> None:
        """Waits until no backup is in progress, and the files of an aborted one are deleted."""
        await self._idle.wait()

    # -- the moment --------------------------------------------------------------------------------------

    def _moment(self) -> _Moment:
        store, small = self._store, list[tuple[str, int, int]]()
        try:
            for table in self._metadata.stores.values():
                self._open(small, f"{CONFIG}/{table.path.name}", table.path)
            for journaled in self._metadata.journaled:
                journal = journaled.journal
                self._open(small, f"{CONFIG}/{journal.path.name}", journal.path, journal.size)
            self._open(small, f"{IDENTITY}/{META_NAME}", self._config.store_path_root_dir / META_NAME)
        except OSError as error:
            for _, file, _ in small:
                os.close(file)
            raise BackupError(f"cannot read {error.filename}: {error.strerror}") from None
        end = max(store.confirm_offset, store.commit_log.min_offset)
        return _Moment(
            store.commit_log.min_offset, end, store.cutter.cut_count, self._epochs().drop_above(end), small
        )

    @staticmethod
    def _open(small: list[tuple[str, int, int]], name: str, path: Path, length: int | None = None) -> None:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        small.append((name, file, os.fstat(file).st_size if length is None else length))

    def _first_file(self, moment: _Moment) -> int:
        return moment.min_offset - moment.min_offset % self._store.commit_log.file_bytes

    def _check_target(self, target: Path, total: int) -> None:
        """Called in a thread. Raises BackupError: the target exists, or the backup would fill the disk that
        the broker writes to."""
        directory = target.parent
        try:
            if target.exists():
                raise BackupError(
                    f"{target} exists: choose another name; a backup never replaces another one"
                )
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            room = self.room(directory)
            shares_disk = directory.stat().st_dev == self._store.commit_log.directory.stat().st_dev
        except OSError as error:
            raise BackupError(f"backupPath {directory}: {error.strerror}") from None
        ratio = self._config.retention.forcibly_ratio
        usable = room.available_up_to(ratio) if shares_disk else room.available
        if total > usable:
            why = f", which keeps {100 - round(ratio * 100)} % free for the broker" if shares_disk else ""
            raise BackupError(
                f"{total} bytes do not fit on the disk of backupPath {directory}{why}: {max(usable, 0)} "
                "are left"
            )

    # -- the copy ----------------------------------------------------------------------------------------

    async def _run(self, writer: BackupWriter, moment: _Moment, bytes_per_second: int) -> None:
        began_ms = now_ms()
        try:
            await self._copy(writer, moment, bytes_per_second)
        except BackupError as error:
            self._ended("cancelled" if self._is_cancelled else "failed", str(error))
        except OSError as error:
            self._ended("failed", f"{error.filename or writer.partial}: {error.strerror or error}")
        except asyncio.CancelledError:
            self._ended("failed", "the broker has stopped")
            raise
        except Exception as error:  # a second run would lack the metadata, whose files are closed here
            logger.exception("backup %s", writer.target)
            self._ended("failed", f"internal error: {type(error).__name__}: {error}")
        else:
            self._ended("done", "")
            logger.info(
                "backup %s: %d bytes in %d ms", writer.target, self.progress.bytes_done, now_ms() - began_ms
            )
        finally:
            self.held_offset = sys.maxsize
            _close(moment)
            if self.progress.state != "done":
                await finished_in_thread(writer.discard)
            self._idle.set()

    def _ended(self, state: str, error: str) -> None:
        self.progress = replace(self.progress, state=state, error=error)
        if error:
            logger.error("backup %s: %s: %s", self.progress.name, state, error)

    async def _copy(self, writer: BackupWriter, moment: _Moment, bytes_per_second: int) -> None:
        pace = _Pace(bytes_per_second)
        await finished_in_thread(writer.begin)
        for name, file, length in moment.small:
            await self._steps(writer.copy(name, file, length), moment, pace)
        log, offset = self._store.commit_log, moment.min_offset
        while offset < moment.end_offset:
            self._check(moment)
            if offset < log.min_offset:
                raise BackupError(
                    "retention has deleted a file before it was copied: the disk is nearly full"
                )
            start = offset - offset % log.file_bytes
            end = min(start + log.file_bytes, moment.end_offset)
            with ExitStack() as stack:
                file = log.open_file(offset)
                stack.callback(os.close, file)
                await self._steps(writer.copy(f"{LOG}/{file_name(start)}", file, end - start), moment, pace)
            offset = end
            self.held_offset = offset
        meta = await finished_in_thread(lambda: self._broker_id(writer))
        self._check(moment)
        config = self._config
        manifest = Manifest(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=meta,
            program=version_line("mqbroker"),
            taken_ms=wall_ms(),
            min_offset=moment.min_offset,
            end_offset=moment.end_offset,
            confirm_offset=moment.end_offset,
            log_file_bytes=log.file_bytes,
            epochs=moment.epochs.pairs,
            files=tuple(writer.entries),
        )
        await finished_in_thread(lambda: writer.finish(manifest))

    @staticmethod
    def _broker_id(writer: BackupWriter) -> int | None:
        """Returns the id in the copied identity; None: there is none."""
        path = writer.partial / IDENTITY / META_NAME
        try:
            return decode_meta(path.read_bytes()).broker_id
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise BackupError(f"the broker's identity is damaged: {error}") from None

    async def _steps(self, steps: Iterator[int], moment: _Moment, pace: "_Pace") -> None:
        """Runs the steps in threads; the event loop only counts them."""
        while (count := await finished_in_thread(lambda: next(steps, None))) is not None:
            self.progress = replace(self.progress, bytes_done=self.progress.bytes_done + count)
            self._check(moment)
            if (pause_s := pace.pause_s(count)) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._ending.wait()
                self._check(moment)

    def _check(self, moment: _Moment) -> None:
        """Raises BackupError if the backup must not go on."""
        if self._is_cancelled:
            raise BackupError("it was cancelled")
        if self._store.cutter.cut_count != moment.cut_count:
            raise BackupError(
                "the log was truncated meanwhile (this replica has another master now): repeat it"
            )


class _Pace:
    """Keeps a rate: bytes per second; 0: no limit."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate, self._due_ms = bytes_per_second, float(now_ms())

    def pause_s(self, count: int) -> float:
        """Returns how long to wait after a step of `count` bytes. Lost time is not caught up."""
        if not self._rate:
            return 0.0
        now = now_ms()
        self._due_ms = max(self._due_ms, now - 1_000) + count * 1_000 / self._rate
        return max(self._due_ms - now, 0) / 1_000


def _close(moment: _Moment) -> None:
    while moment.small:
        _, file, _ = moment.small.pop()
        os.close(file)
