"""Reads one page file, with an error that names it."""

from pathlib import Path
from typing import TypeVar

import msgspec

from keelmq.web.page_files import unpacked

FILE_BYTES_MAX = 32 << 20
T = TypeVar("T")


class PageFileError(Exception):
    """A page file cannot be read or is of another version."""


def read_bytes(path: Path) -> bytes:
    """Returns the content. Raises PageFileError; FileNotFoundError is one too."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise PageFileError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise PageFileError(f"{path} has more than {FILE_BYTES_MAX} bytes")
    return data


def read_unpacked(path: Path, data: bytes | None = None) -> bytes:
    """Returns the content of a gzip file; `data`: its bytes, if they are read already. Raises
    PageFileError."""
    try:
        return unpacked(read_bytes(path) if data is None else data)
    except ValueError as error:
        raise PageFileError(f"{path}: {error}") from None


def decoded(path: Path, data: bytes, kind: type[T]) -> T:
    """Decodes `data`, the content of `path`. Raises PageFileError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise PageFileError(f"{path} is damaged: {error}; compute it again") from None
