"""config/NAME.sum: the checksums of the two newest versions of a file whose format has no place for one.

RocketMQ reads and writes the files of config/, so their checksums are beside them. A line of JSON behind
its own CRC-32 in hex and a blank: [[crc32, size, modified_ns], ...], the newest version first. A bad disk
does not change the modification time; an editor or another program does. So a file with the time of a version
but other content is damaged, and one with another time was changed by a program.
"""

import logging
import zlib
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from keelmq.runtime.durable_file import replace_file

logger = logging.getLogger(__name__)

SUFFIX: Final = ".sum"
SUM_BYTES_MAX: Final = 4_096
VERSIONS: Final = 2
"""The file and its .bak."""


class FileVersion(NamedTuple):
    """crc32 and size of a content in bytes; modified_ns: st_mtime_ns of the file that had it."""

    crc32: int
    size: int
    modified_ns: int


_decode = msgspec.json.Decoder(list[FileVersion]).decode


def sum_of(path: Path) -> Path:
    """Returns the path of the checksums of the file at `path`."""
    return path.with_name(path.name + SUFFIX)


class FileSums:
    """The checksums of one file. private: only this user may read them."""

    def __init__(self, path: Path, *, private: bool = False) -> None:
        self.path = sum_of(path)
        self._private = private

    def read(self) -> list[FileVersion]:
        """Returns the versions, newest first; none if there is no file, or if it is damaged itself. Raises
        OSError."""
        try:
            with self.path.open("rb") as file:
                raw = file.read(SUM_BYTES_MAX)
        except FileNotFoundError:
            return []
        crc, _, body = raw.partition(b" ")
        if crc != b"%08x" % zlib.crc32(body):
            logger.warning("%s is damaged: its file is taken as it is", self.path)
            return []
        return _decode(body)

    def add(self, version: FileVersion, *, replaces_damaged: bool = False) -> None:
        """Puts a new version in front of the others. replaces_damaged: the newest of these is not kept as
        .bak. Not synced: after a power failure the checksums may be missing, and then the file is accepted
        unchecked. Never raises: the file itself is written."""
        try:
            older = self.read()[1 if replaces_damaged else 0 :]
            body = msgspec.json.encode([version, *older][:VERSIONS])
            data = b"%08x " % zlib.crc32(body) + body
            replace_file(self.path, data, keep_backup=False, durable=False, private=self._private)
        except OSError as error:
            logger.warning("cannot write %s: %s; damage to its file is not found", self.path, error)


def check(path: Path, raw: bytes, versions: list[FileVersion]) -> None:
    """Raises ValueError if this content of the file at `path` differs from the written one. Logs if another
    program has changed the file. Raises OSError."""
    if not versions:
        return
    crc32, modified_ns = zlib.crc32(raw), path.stat().st_mtime_ns
    if any(each.crc32 == crc32 and each.size == len(raw) for each in versions):
        return
    if any(each.modified_ns == modified_ns for each in versions):
        raise ValueError("its checksum does not match, and no program has written it since")
    logger.warning("%s was changed by another program: it is taken as it is", path)
