"""Replies that wait until their message is as safe as the settings require.

One entry per message, or per batch of messages that one read brought, in log order; no futures, no timers.
A reply waits for the replicas, the disk, or both, and is sent when all of them have the message, or when its
timeout is over. Bounded: at the limit the send gate refuses new messages, before anything is written.
"""

import struct
import sys
from collections import deque
from typing import Final

from broker.admission.send_gate import SendGate
from broker.stats.core.put_times import PutTimes
from broker.stats.rpc_latency import RpcLatency
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import decode_parts, response_frame
from keelmq.remoting.frame import whole_frames
from keelmq.remoting.operation import Peer
from keelmq.runtime.clock import now_ms

PENDING_REPLIES_MAX: Final = 65_536
NEVER: Final = sys.maxsize
_SUCCESS_HEAD: Final = b'{"code":0,'
_PREFIX = struct.Struct(">II")
_PREFIXES_COUNT: Final = 512
_PREFIXES: Final = [_PREFIX.pack(size + 4, size) for size in range(_PREFIXES_COUNT)]  # by header length


def with_code(replies: bytes, code: int, remark: str) -> bytes:
    """Returns success replies (frames of reply_frame) with another code and a remark (ASCII, no quotes)."""
    head = b'{"code":%d,"remark":"%b",' % (code, remark.encode())
    headers = [header for _, header, _, _ in whole_frames(replies)]
    assert all(header.startswith(_SUCCESS_HEAD) for header in headers)
    return b"".join([reply_frame(head + header[len(_SUCCESS_HEAD) :]) for header in headers])


def _refusals(replies: bytes, code: int, remark: str) -> bytes:
    """Returns refusals of the same requests, without header fields."""
    opaques = [decode_parts(0, header, b"").opaque for _, header, _, _ in whole_frames(replies)]
    return b"".join([response_frame(opaque, code, remark) for opaque in opaques])


def reply_frame(header: bytes) -> bytes:
    """Returns a frame with this JSON header and no body."""
    size = len(header)
    return (_PREFIXES[size] if size < _PREFIXES_COUNT else _PREFIX.pack(size + 4, size)) + header


_Entry = tuple[int, Peer, bytes, int, int, int]
"""End offset in the log, connection, success replies, time of arrival (ms), number of replies, request code.
"""


class PendingReplies:
    """Entries ascend by end offset and by time of arrival.

    gate: refuses new messages while `limit` replies wait; no reply is released while its lease is over.
    replicas, disk: what a reply waits for. `times`: durations of replies, including those that did not wait
    (Tick adds these). `latency`: the same by request code, with all other requests of the broker.
    `few_replicas`: fewer replicas are in sync than inSyncReplicas, so a longer wait would not help; it
    decides between codes 11 and 12.
    """

    def __init__(
        self,
        gate: SendGate,
        limit: int = PENDING_REPLIES_MAX,
        *,
        replicas: bool = True,
        disk: bool = False,
    ) -> None:
        self._entries: deque[_Entry] = deque()
        self._count = 0
        self._limit = limit
        self._is_full = False  # as the gate knows it
        self._gate = gate
        self.times, self.latency = PutTimes(), RpcLatency()
        self._waits_for = (replicas, disk)
        self._replicated = self._flushed = 0
        self.few_replicas = False
        self._reset()

    def __len__(self) -> int:
        return self._count

    @property
    def room(self) -> int:
        """Number of replies that may wait in addition; at least 0."""
        return max(self._limit - self._count, 0)

    def _reset(self) -> None:
        replicas, disk = self._waits_for
        self._replicated, self._flushed = 0 if replicas else NEVER, 0 if disk else NEVER

    def configure(self, *, replicas: bool, disk: bool, flushed_offset: int) -> None:
        """Changes what replies wait for. A reply that waits now is sent as soon as the new rule allows: for
        replicas, at the next release()."""
        before, self._waits_for = self._waits_for, (replicas, disk)
        if replicas != before[0]:
            self._replicated = 0 if replicas else NEVER
        if disk != before[1]:
            self._flushed = flushed_offset if disk else NEVER
        self._release(min(self._replicated, self._flushed))

    def add(
        self,
        end_offset: int,
        connection: Peer,
        replies: bytes,
        now_ms: int,
        count: int = 1,
        code: int = RequestCode.SEND_MESSAGE_V2,
    ) -> None:
        """Sends `replies` (`count` frames) when the log is safe up to end_offset. code: of the requests."""
        self._entries.append((end_offset, connection, replies, now_ms, count, code))
        self._count += count
        if self._count >= self._limit:
            self._is_full = True
            self._gate.set_overload(self._count)

    def _tell_gate(self) -> None:
        if self._count < self._limit:
            self._is_full = False
            self._gate.set_overload(0)

    def release(self, offset: int) -> None:
        """Records that the log is replicated up to `offset`; sends the replies that waited for it."""
        self._replicated = offset
        self._release(min(offset, self._flushed))

    def flushed(self, offset: int) -> None:
        """Records that the log is on disk up to `offset`; sends the replies that waited for it."""
        if self._waits_for[1]:
            self._flushed = offset
            self._release(min(offset, self._replicated))

    def _release(self, offset: int) -> None:
        """Sends the replies up to `offset`, with one write per connection."""
        entries = self._entries
        if not entries or entries[0][0] > offset or self._gate.lease_is_over:
            return
        last, waiting = entries[0][1], list[bytes]()
        replies: dict[Peer, list[bytes]] = {last: waiting}
        now = now_ms()
        run_ms, run_code, run = now, 0, 0  # adjacent entries of one time and code are counted together
        while entries and entries[0][0] <= offset:
            _, connection, reply, added_ms, count, code = entries.popleft()
            if added_ms != run_ms or code != run_code:
                if run:
                    self._answered(run_code, now - run_ms, run)
                run_ms, run_code, run = added_ms, code, 0
            run += count
            if connection is not last:  # rare: the messages of one read are adjacent
                last, waiting = connection, replies.setdefault(connection, [])
            waiting.append(reply)
        self._answered(run_code, now - run_ms, run)
        if self._is_full:
            self._tell_gate()
        for connection, waiting in replies.items():
            if not connection.is_closing():
                connection.send(waiting[0] if len(waiting) == 1 else b"".join(waiting))

    def _answered(self, code: int, elapsed_ms: int, count: int) -> None:
        self._count -= count
        self.times.add(elapsed_ms, count)
        self.latency.observe(code, ResponseCode.SUCCESS, elapsed_ms, count)

    def expire(self, now_ms: int, timeout_ms: int, flush_timeout_ms: int = NEVER) -> int:
        """Answers entries whose timeout is over: the message is stored, but not known to be replicated (code
        12; 11 if there are too few replicas), or not known to be on disk (10). Returns their number."""
        self._release(min(self._replicated, self._flushed))  # the lease may be back
        entries, is_cut_off = self._entries, self._gate.lease_is_over
        expired = 0
        while entries:
            end, connection, replies, added_ms, count, request_code = entries[0]
            age_ms = now_ms - added_ms
            is_replicated, is_flushed = end <= self._replicated and not is_cut_off, end <= self._flushed
            if not (is_replicated or age_ms >= timeout_ms) or not (is_flushed or age_ms >= flush_timeout_ms):
                break  # entries ascend by age: the others are younger
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
            self.times.add(age_ms, count)
            self.latency.observe(request_code, code, age_ms, count)
            if not connection.is_closing():
                connection.send(with_code(replies, code, remark))
        if self._is_full:
            self._tell_gate()
        return expired

    def fail_all(self, code: int, remark: str) -> int:
        """Answers all entries with a code, at a role change or a disk fault; returns their number.

        Codes 10 to 12 keep the header with the message's offsets: clients expect it for a stored message.
        """
        entries, self._entries = self._entries, deque()
        failed, self._count = self._count, 0
        self._reset()
        if self._is_full:
            self._tell_gate()
        is_stored = ResponseCode.FLUSH_DISK_TIMEOUT <= code <= ResponseCode.FLUSH_SLAVE_TIMEOUT
        answer = with_code if is_stored else _refusals
        now = now_ms()
        for _, connection, replies, added_ms, count, request_code in entries:
            self.latency.observe(request_code, code, now - added_ms, count)
            if not connection.is_closing():
                connection.send(answer(replies, code, remark))
        return failed
