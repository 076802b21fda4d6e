"""Makes the store of a new broker from a backup.

Everything is checked while it is copied. The log gets its name last, so a broker never starts with a part of
it. A checkpoint and an `abort` file make the first start read the whole log, check every record, and build
ConsumeQueues and index.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.backup.manifest import (
    CONFIG,
    IDENTITY,
    LOG,
    BackupError,
    FileEntry,
    Manifest,
    check_apart,
    read_manifest,
)
from broker.backup.writer import STEP_BYTES, write_all
from broker.controller_mode.broker_meta_file import META_NAME
from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile
from broker.store.log.checkpoint import StoreCheckpoint, write_checkpoint
from broker.store.log.mapped_file import StoreError, lock_directory, write_mark
from broker.store.store_check import START_BYTES_MIN, check_room
from keelmq.runtime.durable_file import sync_directory

RESTORED_MARK: Final = "restored from a backup\n"
RESTORING: Final = ".restoring"
PRIVATE_FILES: Final = ("users.json", "acls.json")
IN_USE_ONLY: Final = frozenset({"lost+found"})


def restore_store(
    backup: Path, root: Path, *, with_identity: bool, epoch_path: Path | None = None
) -> Iterator[tuple[int, int]]:
    """Writes the store into an empty or new directory; yields (bytes checked and copied, bytes of all files)
    after each step of bounded size. Raises BackupError: the backup is damaged, the directory is not empty, or
    a file cannot be read or written; OSError: nothing was begun. An incomplete store has no messages.

    with_identity: the broker keeps the brokerId of the backup. Otherwise it gets a new one.
    """
    manifest = read_manifest(backup)
    check_target(backup, root, manifest, with_identity=with_identity)
    root.mkdir(parents=True, exist_ok=True)
    lock = lock_directory(root)
    try:
        log_path = root / f"commitlog{RESTORING}"
        log_path.mkdir()
        (root / CONFIG).mkdir()
        done, total = 0, manifest.byte_count
        for entry in manifest.files:
            target = _target_of(entry, root, log_path)
            for step in _copied(backup, entry, target):
                done += step
                yield done, total
        sync_directory(root / CONFIG)
        sync_directory(log_path)
        _write_ends(root, manifest, epoch_path or root / "epochFileCheckpoint")
        os.rename(log_path, root / "commitlog")
        sync_directory(root)
        identity = root / f"{META_NAME}{RESTORING}"
        if with_identity:
            os.rename(identity, root / META_NAME)
        else:
            identity.unlink(missing_ok=True)
        sync_directory(root)
    except OSError as error:
        where = f" at {error.filename}" if error.filename else ""
        raise BackupError(
            f"the restore into {root} failed{where}: {error.strerror or error}; remove what is in {root} "
            "before you repeat it"
        ) from error
    finally:
        os.close(lock)


def check_target(backup: Path, root: Path, manifest: Manifest, *, with_identity: bool) -> None:
    """Raises BackupError unless the backup may be restored there; OSError: the directory cannot be read."""
    check_apart(backup, root)
    if root.exists() and not root.is_dir():
        raise BackupError(f"{root} is not a directory")
    if root.exists() and {each.name for each in root.iterdir()} - IN_USE_ONLY:
        raise BackupError(
            f"{root} is not empty: a restore never overwrites a store; choose another directory"
        )
    try:
        check_room(root, manifest.byte_count + START_BYTES_MIN)
    except StoreError as error:
        raise BackupError(str(error)) from None
    if with_identity and manifest.broker_id is None:
        raise BackupError(
            "the backup has no identity: its broker was not in controller mode; leave --with-identity out"
        )


def _target_of(entry: FileEntry, root: Path, log_path: Path) -> Path:
    part, _, name = entry.path.partition("/")
    if part == LOG:
        return log_path / name
    return root / f"{name}{RESTORING}" if part == IDENTITY else root / CONFIG / name


def _copied(backup: Path, entry: FileEntry, target: Path) -> Iterator[int]:
    """Copies a file, durably, and checks it. Raises BackupError, OSError."""
    mode = 0o600 if target.name in PRIVATE_FILES else 0o644
    with open(target, "xb", buffering=0, opener=lambda path, flags: os.open(path, flags, mode)) as copy:
        for piece in checked_pieces(backup, entry):
            write_all(copy.fileno(), piece)
            yield len(piece)
        os.fsync(copy.fileno())


def checked_pieces(backup: Path, entry: FileEntry) -> Iterator[bytes]:
    """Yields the content of a file of the backup. Raises BackupError, at the end, if it is damaged."""
    digest, done = hashlib.sha256(), 0
    try:
        file = (backup / entry.path).open("rb", buffering=0)
    except FileNotFoundError:
        raise BackupError(f"{entry.path} is missing in the backup; use another backup") from None
    with file:
        while piece := file.read(STEP_BYTES):
            digest.update(piece)
            done += len(piece)
            yield piece
    if done != entry.bytes or digest.hexdigest() != entry.sha256:
        raise BackupError(
            f"{entry.path} is damaged: it has {done} bytes"
            + (" and another checksum" if done == entry.bytes else f", the manifest says {entry.bytes}")
            + "; use another backup"
        )


def _write_ends(root: Path, manifest: Manifest, epoch_path: Path) -> None:
    """The epochs, and the confirmed end of the log. `abort`: the first start reads everything."""
    if manifest.epochs:
        EpochFile(epoch_path).save(Epochs.of(manifest.epochs))
    write_checkpoint(root / "checkpoint", StoreCheckpoint(confirm_offset=manifest.confirm_offset))
    write_mark(root / "abort", RESTORED_MARK)


def check_backup(backup: Path) -> Iterator[tuple[int, int]]:
    """Reads a backup and checks every file; yields as restore_store(). Raises BackupError, OSError."""
    manifest = read_manifest(backup)
    done, total = 0, manifest.byte_count
    for entry in manifest.files:
        for piece in checked_pieces(backup, entry):
            done += len(piece)
            yield done, total
