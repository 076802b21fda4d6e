"""manifest.json: the contents of a store's backup, with a checksum of each file and of the manifest itself.

The backup is a directory. Its log/ has the CommitLog's files up to endOffset, the last one cut there;
config/ has the metadata with their journals; identity/ has .broker.meta. ConsumeQueues and index are not in
it: the first start rebuilds them from the log.
"""

from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from broker.ha.core.epochs import Epochs
from keelmq.runtime.checked_file import CheckedFileError, decode_checked, encode_checked

FORMAT: Final = "keelmq-store-backup"
VERSION: Final = 1
MANIFEST_NAME: Final = "manifest.json"
MANIFEST_BYTES_MAX: Final = 64 << 20
LOG, CONFIG, IDENTITY = "log", "config", "identity"
_FOLDERS: Final = (f"{LOG}/", f"{CONFIG}/", f"{IDENTITY}/")
PARTIAL_SUFFIX: Final = ".partial"


class BackupError(Exception):
    """The backup or the restore is not possible. The text gives the reason and the remedy."""


def check_apart(source: Path, target: Path) -> None:
    """Raises BackupError: one of the two directories is inside the other one. The copy would be part of its
    source, and would be deleted with it."""
    real_source, real_target = source.resolve(), target.resolve()
    if real_target.is_relative_to(real_source):
        raise BackupError(f"{target} is in {source}: choose a directory outside it")
    if real_source.is_relative_to(real_target):
        raise BackupError(f"{source} is in {target}: choose another directory")


class FileEntry(msgspec.Struct, frozen=True):
    """A file of the backup: its path, relative with slashes, its size, and its SHA-256 in hex."""

    path: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """taken_ms: ms since 1970. broker_id: None if the broker had none. The log is [min_offset, end_offset);
    records that end above confirm_offset are not known to be on other replicas. epochs: (masterEpoch, start
    offset), ascending. The file sizes are those with which the store was written."""

    cluster_name: str
    broker_name: str
    broker_id: int | None
    program: str
    taken_ms: int
    min_offset: int
    end_offset: int
    confirm_offset: int
    log_file_bytes: int
    epochs: tuple[tuple[int, int], ...]
    files: tuple[FileEntry, ...]

    @property
    def byte_count(self) -> int:
        """Sum of the sizes of all files."""
        return sum(each.bytes for each in self.files)


def encode_manifest(manifest: Manifest) -> bytes:
    """Returns the content of manifest.json."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    return encode_checked(FORMAT, VERSION, body)


def decode_manifest(data: bytes) -> Manifest:
    """Parses manifest.json. Raises BackupError."""
    try:
        body = decode_checked(FORMAT, VERSION, data, "the manifest of a store's backup")
        manifest = msgspec.json.decode(body, type=Manifest)
        Epochs.of(manifest.epochs)
    except (CheckedFileError, msgspec.MsgspecError, ValueError) as error:
        raise BackupError(f"{MANIFEST_NAME}: {error}") from None
    for entry in manifest.files:
        if not entry.path.startswith(_FOLDERS) or ".." in PurePosixPath(entry.path).parts:
            raise BackupError(f"{MANIFEST_NAME}: it names {entry.path!r}, which no backup has")
    return manifest


def read_manifest(backup: Path) -> Manifest:
    """Reads the manifest of a backup's directory. Raises BackupError."""
    if backup.name.endswith(PARTIAL_SUFFIX):
        raise BackupError(f"{backup} is a backup that was not finished: use another one, and delete it")
    path = backup / MANIFEST_NAME
    try:
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES_MAX + 1)
    except FileNotFoundError:
        raise BackupError(f"{backup} has no {MANIFEST_NAME}: it is not a backup of a store") from None
    except OSError as error:
        raise BackupError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > MANIFEST_BYTES_MAX:
        raise BackupError(f"{path} has more than {MANIFEST_BYTES_MAX} bytes")
    return decode_manifest(data)
