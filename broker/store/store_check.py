"""Whether a store can be opened with these settings, checked before any file of it is opened for writing.

check_store() only reads: a start that it refuses has changed no byte, no size, no name and no time. It is
called before a store is opened: by MessageStore.load(), and earlier by code that writes beside the store.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.store.log.checkpoint import read_file_sizes
from broker.store.log.commit_log import HOW_TO_MEND_LOG, log_file_kind
from broker.store.log.file_sizes import FileKind, SizedFile, sized_files
from broker.store.log.mapped_file import StoreError, is_locked
from broker.store.queue.batch_queue import BatchQueue
from broker.store.queue.consume_queue import ConsumeQueue
from broker.store.queue.queue_table import queue_directories
from broker.store.settings import StoreConfig

START_BYTES_MIN: Final = 64 << 10
"""Free bytes that a start needs besides the files of the log: marks, the checkpoint, metadata."""
_IN_ROCKSDB: Final = "are in RocksDB: write them into a file with RocketMQ's mqadmin rocksDBConfigToJson"
UNREAD: Final = {
    "dledger-*/data": "has the messages of a DLedger CommitLog: let consumers read them from RocketMQ",
    "config/topics/CURRENT": f"shows that the topics {_IN_ROCKSDB}",
    "config/subscriptionGroups/CURRENT": f"shows that the groups {_IN_ROCKSDB}",
    "config/consumerOffsets/CURRENT": f"shows that the consumer offsets {_IN_ROCKSDB}",
    "config/metadata/CURRENT": f"shows that topics, groups and offsets {_IN_ROCKSDB}",
    "kvStore/CURRENT": "may have popped messages in RocksDB: write them into the log with RocketMQ's mqadmin "
    "exportPopRecord",
}
"""What RocketMQ stores in formats that are not read here. A start without it would set consumer offsets back,
or forget messages."""


def check_store(config: StoreConfig) -> None:
    """Raises StoreError with the remedy if a broker cannot start with these files and settings; OSError: they
    cannot be read."""
    root = config.root
    log_path = config.commit_log_path or root / "commitlog"
    for directory in (root, log_path):
        check_directory(directory)
    if is_locked(root):
        raise StoreError(f"{root} is in use by another broker process (lock file held)")
    for pattern, why in UNREAD.items():
        for path in sorted(root.glob(pattern)):
            raise StoreError(f"{path} {why}, then move {path.parent} away")
    log_files = sized_files(log_path)
    kind = log_file_kind(config.commit_log_file_bytes)
    known = read_file_sizes(root / "checkpoint")
    kind.check([log_files], HOW_TO_MEND_LOG, is_size_sure=known.log == kind.file_bytes)
    queue_kind = ConsumeQueue.file_kind(config.consume_queue_file_bytes)
    batch_kind = BatchQueue.file_kind(config.batch_queue_file_bytes)
    _check_queues(root / "consumequeue", queue_kind, known.queue)
    _check_queues(root / "batchconsumequeue", batch_kind, known.batch_queue)
    for path in (*_small_files(root), *(file.path for file in log_files)):
        _check_access(path)
    used = kind.used(log_files)
    check_room(root, sum(kind.file_bytes - file.size for file in used[-1:]) + START_BYTES_MIN)


def check_room(directory: Path, needed: int) -> None:
    """Raises StoreError if the disk of a directory, which may not exist yet, has less than `needed` bytes
    free."""
    free = shutil.disk_usage(_existing(directory)).free
    if free < needed:
        raise StoreError(
            f"storePathRootDir: cannot use {directory}: its disk has {free} bytes free, {needed} are needed"
        )


def _check_queues(base: Path, kind: FileKind, known_bytes: int) -> None:
    files = list[list[SizedFile]]()
    for queue in queue_directories(base):
        if not _is_ours(queue.status, 0o300):
            _check_access(Path(queue.path))
        files.append(sized_files(queue.path))
        for file in files[-1]:
            if not _is_ours(file.status, 0o600):
                _check_access(file.path)
    option = "--queue-file-bytes" if kind.setting == ConsumeQueue.size_setting else "--batch-queue-file-bytes"
    kind.check(
        files,
        f"stop the broker and run keelmq repair --store {base.parent} --queues {option} {kind.file_bytes}",
        is_size_sure=known_bytes == kind.file_bytes,
    )


def _is_ours(status: os.stat_result, mode: int) -> bool:
    """Whether the owner's bits give this process the access; False: os.access() must decide."""
    return status.st_uid == os.geteuid() and status.st_mode & mode == mode


def _small_files(root: Path) -> Iterator[Path]:
    yield from (path for name in ("lock", "abort", "checkpoint") if (path := root / name).exists())
    for name in ("config", "consumequeue", "batchconsumequeue", "index"):
        if (root / name).exists():
            check_directory(root / name)
            yield from (path for path in (root / name).iterdir() if name == "index")


def check_directory(directory: Path) -> None:
    """Raises StoreError unless this process may use the directory, or make it."""
    there = _existing(directory)
    if not there.is_dir():
        raise StoreError(f"storePathRootDir: cannot use {there}: not a directory")
    _check_access(there)


def _check_access(path: Path) -> None:
    """Raises StoreError unless this process may change the file, or the names in the directory."""
    mode = os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)
    if not os.access(path, mode, effective_ids=os.access in os.supports_effective_ids):
        user = f"uid {os.geteuid()}"
        raise StoreError(
            f"storePathRootDir: cannot use {path}: {user} cannot write it (mode, owner or mount)"
        )


def _existing(path: Path) -> Path:
    """Returns the path, or the nearest directory above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
