"""Snapshot: the state as of one log index, in a file with a checksum.

    "KeelSN1\\n"  crc32 (4, little endian)  zlib(MessagePack(Snapshot))

The leader sends the same bytes to a member that is too far behind. A snapshot contains two log entries: the
library needs the last applied one and its predecessor at the start of the journal.
"""

import struct
import zlib
from pathlib import Path

import msgspec

from namesrv.plugins.controller.raft.codec import Entry, Number
from namesrv.plugins.controller.raft.storage.files import DamagedError, write_new_file

MAGIC = b"KeelSN1\n"
FILE_BYTES_MAX = 256 * 1024 * 1024  # of a snapshot that a leader sends
STATE_BYTES_MAX = 1024 * 1024 * 1024  # uncompressed


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    cluster_id: str
    members: tuple[str, ...]
    last: Entry  # last applied
    previous: Entry
    claimed_term: Number
    state: bytes  # StateMachine.snapshot()
    rejoined: tuple[tuple[str, str], ...] = msgspec.field(name="welcomed", default=())
    """(member, incarnation); since the second release."""
    used_ids: tuple[str, ...] = msgspec.field(name="former", default=())
    member_list: tuple[int, bytes] | None = None  # (index, encoded change) as of `last`
    answers: tuple[tuple[str, bytes], ...] = ()  # older releases need it, for request ids that none used


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Returns the content of the file."""
    body = zlib.compress(msgspec.msgpack.encode(snapshot), 1)
    return MAGIC + struct.pack("<I", zlib.crc32(body)) + body


def decode_snapshot(data: bytes, name: str) -> Snapshot:
    """Parses the content of a file. `name`: for the error text. Raises DamagedError."""
    start = len(MAGIC) + 4
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        raise DamagedError(f"{name}: not a snapshot of this version")
    body = data[start:]
    if zlib.crc32(body) != struct.unpack_from("<I", data, len(MAGIC))[0]:
        raise DamagedError(f"{name}: damaged snapshot (checksum)")
    try:
        return msgspec.msgpack.decode(zlib.decompressobj().decompress(body, STATE_BYTES_MAX), type=Snapshot)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise DamagedError(f"{name}: {error}") from None


def write_snapshot(path: Path, snapshot: Snapshot, *, sync: bool = True) -> int:
    """Writes the file, durably, and returns its size in bytes. The library renames it. Raises OSError."""
    data = encode_snapshot(snapshot)
    write_new_file(path, data, sync=sync)
    return len(data)


def read_snapshot(path: Path, cluster_id: str) -> Snapshot:
    """Reads the file. Raises DamagedError: it is damaged, or of another cluster; OSError."""
    snapshot = decode_snapshot(path.read_bytes(), str(path))
    if snapshot.cluster_id != cluster_id:
        raise DamagedError(f"{path}: belongs to cluster {snapshot.cluster_id!r}, this is {cluster_id!r}")
    return snapshot
