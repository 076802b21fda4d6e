"""The state at one log index, in a file: written synchronously, checksummed, or not usable at all.

    "KeelSN1\\n"  crc32 (4, little endian)  zlib(MessagePack(Snapshot))

The same bytes travel to a member that is too far behind. Two log entries are kept, because the library wants
the last applied one and its predecessor at the head of the journal.
"""

import struct
import zlib
from pathlib import Path

import msgspec

from namesrv.plugins.controller.raft.codec import Entry, Number
from namesrv.plugins.controller.raft.files import DamagedError, write_new_file
from namesrv.plugins.controller.raft.roster import Change, decode_change

MAGIC = b"KeelSN1\n"
FILE_BYTES_MAX = 256 * 1024 * 1024  # of one that a leader sends
STATE_BYTES_MAX = 1024 * 1024 * 1024  # what may come out of the compressed part


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cluster_id: str
    members: tuple[str, ...]
    last: Entry  # last applied
    previous: Entry
    claimed_term: Number
    answers: tuple[tuple[str, bytes], ...]  # request id -> encoded answer, oldest first
    state: bytes  # StateMachine.snapshot()
    welcomed: tuple[tuple[str, str], ...] = ()  # (member, incarnation): since the second release
    former: tuple[str, ...] = ()
    roster: tuple[int, bytes] | None = None  # (index, encoded change) as of `last`

    def members_change(self) -> tuple[int, Change] | None:
        """Raises msgspec.MsgspecError."""
        return None if self.roster is None else (self.roster[0], decode_change(self.roster[1]))


def encode_snapshot(snapshot: Snapshot) -> bytes:
    body = zlib.compress(msgspec.msgpack.encode(snapshot), 1)
    return MAGIC + struct.pack("<I", zlib.crc32(body)) + body


def decode_snapshot(data: bytes, name: str) -> Snapshot:
    """`name` is for the error text. Raises DamagedError."""
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
    """Written and durable, not yet renamed (the library does). Returns its bytes. Raises OSError."""
    data = encode_snapshot(snapshot)
    write_new_file(path, data, sync=sync)
    return len(data)


def read_snapshot(path: Path, cluster_id: str) -> Snapshot:
    """Raises DamagedError; also for a snapshot of another cluster."""
    snapshot = decode_snapshot(path.read_bytes(), str(path))
    if snapshot.cluster_id != cluster_id:
        raise DamagedError(f"{path}: belongs to cluster {snapshot.cluster_id!r}, this is {cluster_id!r}")
    return snapshot
