"""Replies that wait until their message is replicated, and the gate that says whether anything is accepted.

One entry per message, in log order; no futures and no timers. Bounded: when full, new sends are refused
before anything is written.
"""

import struct
from collections import deque
from typing import Annotated, Final, Protocol, TypeAlias

import msgspec

from remoting.codes import ResponseCode
from remoting.command import response_frame
from remoting.operation import Peer

PENDING_REPLIES_MAX: Final = 65_536
Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""An opaque as typed commands have it: what is not 32 bits wide must not come back in a reply."""
_SUCCESS_HEAD: Final = b'{"code":0,'
_PREFIX = struct.Struct(">II")
_PREFIXES_COUNT: Final = 512
_PREFIXES: Final = [_PREFIX.pack(size + 4, size) for size in range(_PREFIXES_COUNT)]  # by header length


class HotPeer(Peer, Protocol):
    """What the data path uses of a connection beside Peer."""

    @property
    def address_bytes(self) -> bytes: ...

    def is_paused(self) -> bool: ...

    def write_parts(self, parts: list[bytes | memoryview]) -> bool: ...


class SendGate:
    """Read by the send handler for every message, written by role changes and by the HA service.

    wait: replies are held back until the message is replicated; in_sync counts the confirmed SyncStateSet.
    """

    __slots__ = ("in_sync", "min_in_sync", "remark", "wait", "writable")

    def __init__(self) -> None:
        self.writable = False
        self.remark = "the broker is not master yet"
        self.wait = False
        self.in_sync = 1
        self.min_in_sync = 1


def with_code(frame: bytes, code: int, remark: str) -> bytes:
    """A success reply (as reply_frame makes it) with another code and a remark (plain ASCII, no quotes)."""
    (_, header_bytes) = _PREFIX.unpack_from(frame)
    header = frame[_PREFIX.size : _PREFIX.size + header_bytes]
    assert header.startswith(_SUCCESS_HEAD)
    return reply_frame(b'{"code":%d,"remark":"%b",' % (code, remark.encode()) + header[len(_SUCCESS_HEAD) :])


def reply_frame(header: bytes) -> bytes:
    """A frame with this JSON header and no body."""
    size = len(header)
    return (_PREFIXES[size] if size < _PREFIXES_COUNT else _PREFIX.pack(size + 4, size)) + header


_Entry = tuple[int, Peer, bytes, int, int]  # end offset, connection, success reply, now_ms, opaque


class PendingReplies:
    """Entries ascend by end offset and by time of arrival."""

    def __init__(self, limit: int = PENDING_REPLIES_MAX) -> None:
        self._entries: deque[_Entry] = deque()
        self._limit = limit

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_full(self) -> bool:
        return len(self._entries) >= self._limit

    def add(self, end_offset: int, connection: Peer, reply: bytes, now_ms: int, opaque: int) -> None:
        """`reply` is sent when the log is replicated up to end_offset."""
        self._entries.append((end_offset, connection, reply, now_ms, opaque))

    def release(self, offset: int) -> None:
        """Everything that ends at or before `offset` is replicated: one write per connection."""
        entries = self._entries
        if not entries or entries[0][0] > offset:
            return
        replies: dict[Peer, list[bytes]] = {}
        while entries and entries[0][0] <= offset:
            _, connection, reply, _, _ = entries.popleft()
            waiting = replies.get(connection)
            if waiting is None:
                replies[connection] = [reply]
            else:
                waiting.append(reply)
        for connection, waiting in replies.items():
            if not connection.is_closing():
                connection.send(waiting[0] if len(waiting) == 1 else b"".join(waiting))

    def expire(self, now_ms: int, timeout_ms: int) -> int:
        """Entries older than the timeout are answered FLUSH_SLAVE_TIMEOUT: stored, but not known to be
        replicated. How many."""
        entries = self._entries
        count = 0
        while entries and now_ms - entries[0][3] >= timeout_ms:
            _, connection, reply, _, _ = entries.popleft()
            count += 1
            if not connection.is_closing():
                remark = f"not replicated within {timeout_ms} ms"
                connection.send(with_code(reply, ResponseCode.FLUSH_SLAVE_TIMEOUT, remark))
        return count

    def fail_all(self, code: int, remark: str) -> int:
        """Role change: nobody knows what becomes of these messages. How many. Codes 10..12 keep the header
        with the message's offsets, as clients expect it of a message that is stored."""
        entries, self._entries = self._entries, deque()
        for _, connection, reply, _, opaque in entries:
            if connection.is_closing():
                continue
            stored = ResponseCode.FLUSH_DISK_TIMEOUT <= code <= ResponseCode.FLUSH_SLAVE_TIMEOUT
            connection.send(
                with_code(reply, code, remark) if stored else response_frame(opaque, code, remark)
            )
        return len(entries)
