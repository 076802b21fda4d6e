"""A backup of the store of a stopped broker."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from broker.admin.repair import RepairError, inspect_store
from broker.backup.manifest import CONFIG, IDENTITY, LOG, BackupError, Manifest, check_apart
from broker.backup.offline_check import missing_parts
from broker.backup.writer import BackupWriter
from broker.controller_mode.broker_meta_file import META_NAME, decode_meta
from broker.store.log.checkpoint import read_checkpoint
from broker.store.log.mapped_file import StoreError, listed_files, lock_directory
from keelmq.runtime.clock import wall_ms

CONFIG_SUFFIXES = (".json", ".json.journal")


def backup_stopped(
    root: Path, target: Path, *, program: str, epoch_path: Path | None = None
) -> Iterator[tuple[int, int]]:
    """Writes the backup; yields (bytes copied, bytes of all files) after each step of bounded size. Raises
    BackupError: the broker runs, or its files are no whole store; OSError. After an error, nothing is left
    under `target`.

    The log ends at its last whole record. The manifest records which part is not confirmed.
    """
    check_apart(root, target)
    with _locked(root), ExitStack() as stack:
        try:
            found = inspect_store(root, epoch_path)
        except RepairError as error:
            raise BackupError(str(error)) from None
        if found.epoch_fault is not None:
            raise BackupError(f"{found.epoch_fault}")
        for _, text in missing_parts(found, is_running=False):
            raise BackupError(f"{text}: see keelmq verify --from-dir {root}; a backup would lack messages")
        writer = BackupWriter(target)
        stack.callback(writer.discard)
        writer.begin()
        meta = _read_meta(root)
        small = dict(_small_files(root))
        log_files = [
            (path, min(found.max_offset - int(path.name), path.stat().st_size))
            for path in listed_files(root / "commitlog")
            if int(path.name) < found.max_offset
        ]
        total, done = sum(count for _, count in log_files) + sum(map(len, small.values())), 0
        for name, data in small.items():
            writer.add(name, data)
            done += len(data)
        yield done, total
        for path, count in log_files:
            with path.open("rb", buffering=0) as source:
                for step in writer.copy(f"{LOG}/{path.name}", source.fileno(), count):
                    done += step
                    yield done, total
        confirm_offset = read_checkpoint(root / "checkpoint").confirm_offset
        writer.finish(
            Manifest(
                cluster_name=meta[0],
                broker_name=meta[1],
                broker_id=meta[2],
                program=program,
                taken_ms=wall_ms(),
                min_offset=found.min_offset,
                end_offset=found.max_offset,
                confirm_offset=max(min(confirm_offset, found.max_offset), found.min_offset),
                log_file_bytes=found.file_bytes,
                epochs=found.epochs.pairs,
                files=tuple(writer.entries),
            )
        )


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Keeps brokers from starting. Raises BackupError: one runs, or there is no such directory."""
    if not (root / "commitlog").is_dir():
        raise BackupError(f"{root} has no commitlog: it is not a broker's store")
    try:
        descriptor = lock_directory(root)
    except StoreError:
        raise BackupError(
            f"a broker uses {root}: back it up while it runs with -b ADDRESS, or stop it first"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def _small_files(root: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted((root / CONFIG).glob("*.json*")):
        if path.name.endswith(CONFIG_SUFFIXES) and path.is_file():
            yield f"{CONFIG}/{path.name}", path.read_bytes()
    with suppress(FileNotFoundError):
        yield f"{IDENTITY}/{META_NAME}", (root / META_NAME).read_bytes()


def _read_meta(root: Path) -> tuple[str, str, int | None]:
    """Returns cluster name, broker name and broker id; empty without an identity."""
    try:
        meta = decode_meta((root / META_NAME).read_bytes())
    except FileNotFoundError:
        return "", "", None
    except ValueError as error:
        raise BackupError(f"broker identity {root / META_NAME} is damaged: {error}") from None
    return meta.cluster_name, meta.broker_name, meta.broker_id
