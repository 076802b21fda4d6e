"""Repair of a replica that stopped copying: inspects its store, truncates it, or moves it aside.

Works on the files of a stopped broker. inspect_store() and loss_of() only read. wipe_after() and resync()
change files, in an order that allows a crash and a second call, and both keep a copy of the epoch file.
resync() moves the log aside and deletes nothing.
"""

import mmap
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile, EpochFileError
from broker.ha.epoch_wal import EpochWal, wal_of
from broker.message.record import BLANK, BLANK_BYTES, MAGIC_BLANK, parse
from broker.store.log.file_allocator import PREPARED_NAME
from broker.store.log.mapped_file import StoreError, is_locked, listed_files, sync_directory
from broker.store.message_store import MessageStore, StoreConfig
from broker.store.offline import offline_store
from broker.store.queue.batch_queue import BATCH_FILE_BYTES
from keelmq.runtime.durable_file import backup_of

QUEUE_FILE_BYTES_DEFAULT = 6_000_000
STORE_TIMESTAMP_AT = 56  # in a record
MOVED = ("queueEnds", "index", "batchconsumequeue", "consumequeue", "commitlog", "checkpoint", "abort")
"""Moved by resync() in this order, then the epoch file: any start recovers a log without its queues."""


class RepairError(Exception):
    """The repair is not possible. The text gives the reason and the alternative."""


class StoreReport(msgspec.Struct, frozen=True):
    """The state of a store. epoch_fault: why `epochs` were read from the write-ahead file or the .bak, which
    may lack the last epoch; None: they are from the epoch file."""

    root: Path
    epoch_path: Path
    is_running: bool
    epochs: Epochs
    epoch_fault: str | None
    min_offset: int
    max_offset: int
    file_bytes: int

    @property
    def cuts(self) -> dict[int, int]:
        """epoch -> the log's end if the bytes of later epochs are removed. Only ends inside the log."""
        ends = {entry.epoch: entry.end_offset for entry in self.epochs.entries[:-1]}
        return {epoch: end for epoch, end in ends.items() if self.min_offset <= end <= self.max_offset}

    def cut_after(self, epoch: int) -> int:
        """Returns the log's end after wipe_after(epoch). Raises RepairError if that is not possible."""
        if epoch in self.cuts:
            return self.cuts[epoch]
        known = ", ".join(str(each) for each in self.cuts) or "no epoch"
        raise RepairError(
            f"the log cannot be cut after epoch {epoch}: {known} can be chosen; or use --resync"
        )


class Loss(msgspec.Struct, frozen=True):
    """The messages behind a cut. Times are ms of the wall clock; None: there are no messages."""

    cut: int
    byte_count: int
    messages: int
    first_stored_ms: int | None
    last_stored_ms: int | None


def inspect_store(root: Path, epoch_path: Path | None = None) -> StoreReport:
    """Reads the state of a store. Raises RepairError if there is none."""
    epoch_path = epoch_path or root / "epochFileCheckpoint"
    files = log_files(root)
    if not files and not epoch_path.exists():
        raise RepairError(f"{root} has no commitlog and no {epoch_path.name}: it is not a broker's store")
    epochs, fault = _epochs(epoch_path)
    file_bytes = max((path.stat().st_size for path in files), default=0)
    return StoreReport(
        root=root,
        epoch_path=epoch_path,
        is_running=is_locked(root),
        epochs=epochs,
        epoch_fault=fault,
        min_offset=_begin_of(files[0]) if files else 0,
        max_offset=_end_of(files[-1]) if files else 0,
        file_bytes=file_bytes,
    )


def log_files(root: Path) -> list[Path]:
    """Returns the files of the log up to the last one with a record: RocketMQ's broker creates one or two
    ahead."""
    files = listed_files(root / "commitlog")
    while len(files) > 1 and not _has_record(files[-1]):
        files.pop()
    return files


def _has_record(path: Path) -> bool:
    with path.open("rb") as file:
        return any(file.read(8))


def _epochs(path: Path) -> tuple[Epochs, str | None]:
    file = EpochFile(path)
    try:
        return file.load(), None
    except EpochFileError as error:
        with suppress(OSError, ValueError):
            return file.load_older(), str(error)
        return Epochs(), str(error)


# -- reading -----------------------------------------------------------------------------------------------


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    with open(path, "rb") as file:
        if not path.stat().st_size:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            view = memoryview(content)
            try:
                yield view
            finally:
                view.release()


def _records(path: Path, position: int) -> Iterator[tuple[int, int, int]]:
    """Yields (position, size, store timestamp) of each valid record from `position` on; timestamp 0: the
    blank at the end."""
    start = int(path.name)
    with _mapped(path) as view:
        while (parsed := parse(view, position, len(view), offset=start + position)) is not None:
            stored = bytes(view[position + STORE_TIMESTAMP_AT :][:8])  # no view may outlive the map
            yield position, parsed[0], int.from_bytes(stored, "big") if parsed[1] else 0
            position += parsed[0]


def _gap(path: Path) -> int:
    """Returns the length of the blank record with which a log begins that starts in mid-file; else 0."""
    with _mapped(path) as view:
        if len(view) < BLANK_BYTES:
            return 0
        size, magic = BLANK.unpack_from(view)
        return int(size) if magic == MAGIC_BLANK and BLANK_BYTES <= size < len(view) else 0


def _begin_of(path: Path) -> int:
    return int(path.name) + _gap(path)


def _end_of(path: Path) -> int:
    end = _gap(path)
    for position, size, _ in _records(path, end):
        end = position + size
    return int(path.name) + end


def loss_of(found: StoreReport, cut: int) -> Loss:
    """Returns the messages that a cut removes."""
    count, first, last = 0, None, None
    for path in listed_files(found.root / "commitlog"):
        start = int(path.name)
        if start + found.file_bytes <= cut:
            continue
        for _, _, stored_ms in _records(path, max(cut - start, _gap(path))):
            if stored_ms:
                count += 1
                first = stored_ms if first is None else first
                last = stored_ms
    return Loss(cut, found.max_offset - cut, count, first, last)


# -- changing ----------------------------------------------------------------------------------------------


def wipe_after(found: StoreReport, epoch: int) -> Path:
    """Removes everything that was written after `epoch`. Returns the path of the old epoch file's copy.
    Raises RepairError."""
    refuse_running(found)
    cut = found.cut_after(epoch)
    backup = _keep_epoch_file(found)
    try:
        store = _opened(found)
    except StoreError as error:
        raise RepairError(str(error)) from error
    try:
        if not store.commit_log.is_record_start(cut):
            raise RepairError(f"{cut} is inside a record: the epochs do not belong to this log; use --resync")
        store.cutter.truncate(cut)
    finally:
        store.close()
    EpochFile(found.epoch_path).save(found.epochs.drop_from_epoch(epoch + 1))
    return backup


def _opened(found: StoreReport) -> MessageStore:
    """Returns the recovered store, opened with the file sizes with which it was written."""
    store = offline_store(
        StoreConfig(
            root=found.root,
            commit_log_file_bytes=found.file_bytes,
            consume_queue_file_bytes=_file_bytes(found.root / "consumequeue", QUEUE_FILE_BYTES_DEFAULT),
            batch_queue_file_bytes=_file_bytes(found.root / "batchconsumequeue", BATCH_FILE_BYTES),
            index_enable=False,  # the next start truncates it
        )
    )
    store.numbers.term_of = found.epochs.term_of
    store.load()
    return store


def _file_bytes(queues: Path, default: int) -> int:
    return max((path.stat().st_size for path in queues.glob("*/*/*") if path.is_file()), default=default)


def resync(found: StoreReport) -> Path:
    """Moves the log, its queues and its epochs aside, so that the replica starts empty. Returns the directory
    that contains them. Raises RepairError."""
    refuse_running(found)
    aside = _unused(found.root / f"before-resync-{_stamp()}")
    aside.mkdir()
    for name in MOVED:
        with suppress(FileNotFoundError):
            os.rename(found.root / name, aside / name)
    wal = EpochWal(wal_of(found.epoch_path))
    for path in (wal.mark, wal.path, backup_of(found.epoch_path), found.epoch_path):
        with suppress(FileNotFoundError):
            shutil.move(path, aside / path.name)  # storePathEpochFile may be on another disk
    (aside / "commitlog" / PREPARED_NAME).unlink(missing_ok=True)
    sync_directory(aside)
    sync_directory(found.root)
    return aside


def refuse_running(found: StoreReport) -> None:
    """Raises RepairError if a broker uses the store."""
    if is_locked(found.root):
        raise RepairError(f"a broker uses {found.root}: stop it first")


def _keep_epoch_file(found: StoreReport) -> Path:
    path = found.epoch_path
    if found.epoch_fault is None:
        EpochFile(path).finish()  # the copy is of the newest version
    kept = _unused(path.with_name(f"{path.name}.before-repair-{_stamp()}"))
    with suppress(FileNotFoundError):
        shutil.copy2(path, kept)
    sync_directory(path.parent)
    return kept


def _stamp() -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def _unused(path: Path) -> Path:
    """Returns a path that does not exist, even for two repairs in one second."""
    return path if not path.exists() else _unused(path.with_name(path.name + "-2"))
