"""Files that are read as a whole or not at all: one line with format, version and checksum, then the content.

keelmq-store-backup 1 <SHA-256 of everything behind this line>
...
"""

import hashlib


class CheckedFileError(Exception):
    """The content is not a whole file of this format and version. The text says why."""


def encode_checked(kind: str, version: int, body: bytes) -> bytes:
    """Returns the content of the file. kind: the name of the format, without a space."""
    return f"{kind} {version} {hashlib.sha256(body).hexdigest()}\n".encode() + body


def decode_checked(kind: str, version: int, data: bytes, what: str) -> bytes:
    """Returns the body. what: "a backup of controllers", for the error. Raises CheckedFileError: the data is
    cut short, altered, of another format or version."""
    head, _, body = data.partition(b"\n")
    parts = head.decode("ascii", "replace").split(" ")
    if len(parts) != 3 or parts[0] != kind:
        raise CheckedFileError(f"it is not {what}")
    if parts[1] != str(version):
        raise CheckedFileError(f"it has version {parts[1]!r}; this release reads version {version}")
    if hashlib.sha256(body).hexdigest() != parts[2]:
        raise CheckedFileError("it is damaged or cut short: its checksum does not match; use another backup")
    return body
