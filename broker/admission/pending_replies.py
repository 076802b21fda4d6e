"""Replies that wait until their message is as safe as the settings ask for, and the gate in front of them.

One entry per message, or for those that one read brought, in log order; no futures and no timers. A reply
waits for up to two things, replicas and the disk, and leaves when both have come or their time is over.
Bounded: when full, new sends are refused before anything is written.
"""

import struct
import sys
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, Final, Protocol, TypeAlias

import msgspec

from remoting.clock import now_ms
from remoting.codes import ResponseCode
from remoting.command import decode_parts, response_frame
from remoting.frame import whole_frames
from remoting.operation import Peer

PENDING_REPLIES_MAX: Final = 65_536
NEVER: Final = sys.maxsize
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
    """Read by the send handler for every message. Several parts close it, each for its own reason, and it is
    open when none does.

    wait: replies are held back until the message is as safe as the settings ask for; in_sync counts the
    confirmed SyncStateSet. lease: (now_ms) -> nothing may be acknowledged any more (core/lease.py).
    detour: takes a message that the closed gate would refuse, if it can; else says no.
    """

    __slots__ = ("_closed", "detour", "in_sync", "lease", "min_in_sync", "remark", "wait", "writable")

    def __init__(self) -> None:
        self._closed = {ROLE: "the broker is not master yet"}
        self.writable = False
        self.remark = self._closed[ROLE]
        self.wait = False
        self.in_sync = 1
        self.min_in_sync = 1
        self.lease: Callable[[int], bool] | None = None
        self.detour: Detour | None = None

    def close(self, by: str, remark: str) -> None:
        self._closed[by] = remark
        self._judge()

    def open(self, by: str) -> None:
        """Withdraws what `by` had against it."""
        self._closed.pop(by, None)
        self._judge()

    def is_closed_by(self, by: str) -> bool:
        return by in self._closed

    @property
    def lease_is_over(self) -> bool:
        """Asked in the moment of acknowledging: a process that stood still for a while must not trust a timer
        that was due meanwhile."""
        return self.lease is not None and self.lease(now_ms())

    def _judge(self) -> None:
        self.writable = not self._closed
        self.remark = next(iter(self._closed.values()), "")


ROLE: Final = "role"
"""The gate is closed while this broker is not master, or is becoming it."""
STOPPING: Final = "stopping"
DISK: Final = "disk"
DISK_FULL: Final = "disk-full"
HAND_OVER: Final = "hand-over"

Detour: TypeAlias = Callable[[Any, bytes, HotPeer], bool]
"""(send command, body, connection) -> it is taken, and answered later."""


def with_code(replies: bytes, code: int, remark: str) -> bytes:
    """Success replies (as reply_frame makes them) with another code and a remark (plain ASCII, no quotes)."""
    head = b'{"code":%d,"remark":"%b",' % (code, remark.encode())
    headers = [header for _, header, _, _ in whole_frames(replies)]
    assert all(header.startswith(_SUCCESS_HEAD) for header in headers)
    return b"".join([reply_frame(head + header[len(_SUCCESS_HEAD) :]) for header in headers])


def _refusals(replies: bytes, code: int, remark: str) -> bytes:
    """To the same requests."""
    opaques = [decode_parts(0, header, b"").opaque for _, header, _, _ in whole_frames(replies)]
    return b"".join([response_frame(opaque, code, remark) for opaque in opaques])


def reply_frame(header: bytes) -> bytes:
    """A frame with this JSON header and no body."""
    size = len(header)
    return (_PREFIXES[size] if size < _PREFIXES_COUNT else _PREFIX.pack(size + 4, size)) + header


_Entry = tuple[int, Peer, bytes, int, int]  # end offset, connection, success replies, now_ms, how many


class PendingReplies:
    """Entries ascend by end offset and by time of arrival.

    replicas, disk: what a reply waits for. few_replicas: so few replicas are in sync that waiting longer
    would not help; it decides between the codes 11 and 12.
    """

    def __init__(
        self,
        limit: int = PENDING_REPLIES_MAX,
        *,
        replicas: bool = True,
        disk: bool = False,
        gate: SendGate | None = None,
    ) -> None:
        self._entries: deque[_Entry] = deque()
        self._count = 0
        self._limit = limit
        self._gate = gate or SendGate()
        self._waits_for = (replicas, disk)
        self._replicated = self._flushed = 0
        self.few_replicas = False
        self._reset()

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self._limit

    @property
    def room(self) -> int:
        """So many more replies may wait."""
        return max(self._limit - self._count, 0)

    def _reset(self) -> None:
        replicas, disk = self._waits_for
        self._replicated, self._flushed = 0 if replicas else NEVER, 0 if disk else NEVER

    def add(self, end_offset: int, connection: Peer, replies: bytes, now_ms: int, count: int = 1) -> None:
        """`replies`, so many frames, are sent when the log is safe up to end_offset."""
        self._entries.append((end_offset, connection, replies, now_ms, count))
        self._count += count

    def release(self, offset: int) -> None:
        """Everything that ends at or before `offset` is replicated."""
        self._replicated = offset
        self._release(min(offset, self._flushed))

    def flushed(self, offset: int) -> None:
        """Everything that ends at or before `offset` is on disk here."""
        if self._waits_for[1]:
            self._flushed = offset
            self._release(min(offset, self._replicated))

    def _release(self, offset: int) -> None:
        """One write per connection."""
        entries = self._entries
        if not entries or entries[0][0] > offset or self._gate.lease_is_over:
            return
        last, waiting = entries[0][1], list[bytes]()
        replies: dict[Peer, list[bytes]] = {last: waiting}
        while entries and entries[0][0] <= offset:
            _, connection, reply, _, count = entries.popleft()
            self._count -= count
            if connection is not last:  # mostly it is: what one read brought stands together
                last, waiting = connection, replies.setdefault(connection, [])
            waiting.append(reply)
        for connection, waiting in replies.items():
            if not connection.is_closing():
                connection.send(waiting[0] if len(waiting) == 1 else b"".join(waiting))

    def expire(self, now_ms: int, timeout_ms: int, flush_timeout_ms: int = NEVER) -> int:
        """Entries whose time is over are answered: stored, but not known to be replicated (12; 11 if there
        is nobody to replicate to), or else not known to be on disk (10). How many."""
        self._release(min(self._replicated, self._flushed))  # the lease may be back
        entries, is_cut_off = self._entries, self._gate.lease_is_over
        expired = 0
        while entries:
            end, connection, replies, added_ms, count = entries[0]
            age_ms = now_ms - added_ms
            is_replicated, is_flushed = end <= self._replicated and not is_cut_off, end <= self._flushed
            if not (is_replicated or age_ms >= timeout_ms) or not (is_flushed or age_ms >= flush_timeout_ms):
                break  # what waits longer than its neighbour in front does not exist
            if not is_replicated:
                code = ResponseCode.FLUSH_SLAVE_TIMEOUT
                remark = f"not replicated within {timeout_ms} ms"
                if is_cut_off:
                    remark = "this master is cut off: another one may have been elected without the message"
                elif self.few_replicas:
                    code = ResponseCode.SLAVE_NOT_AVAILABLE
                    remark += ": fewer replicas are in sync than inSyncReplicas"
            else:
                code = ResponseCode.FLUSH_DISK_TIMEOUT
                remark = f"not on disk within {flush_timeout_ms} ms"
            entries.popleft()
            self._count -= count
            expired += count
            if not connection.is_closing():
                connection.send(with_code(replies, code, remark))
        return expired

    def fail_all(self, code: int, remark: str) -> int:
        """Role change: nobody knows what becomes of these messages. How many. Codes 10..12 keep the header
        with the message's offsets, as clients expect it of a message that is stored."""
        entries, self._entries = self._entries, deque()
        failed, self._count = self._count, 0
        self._reset()
        is_stored = ResponseCode.FLUSH_DISK_TIMEOUT <= code <= ResponseCode.FLUSH_SLAVE_TIMEOUT
        answer = with_code if is_stored else _refusals
        for _, connection, replies, _, _ in entries:
            if not connection.is_closing():
                connection.send(answer(replies, code, remark))
        return failed
