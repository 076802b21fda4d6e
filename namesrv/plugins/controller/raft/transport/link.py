"""Link: one connection to another member, non-blocking, on the library's poller. Raft thread.

Reads and writes the bytes of a Channel, and gives whole frames to its LinkOwner. It sends HELLO itself on a
connection that this side opened; the owner checks the HELLO of the peer.
"""

import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from namesrv.plugins.controller.raft.codec import CodecError
from namesrv.plugins.controller.raft.transport.channel import FRAME_BYTES_MAX, Channel, ChannelError

READ_BYTES = 64 * 1024
READ_BUDGET_BYTES = 1024 * 1024  # per connection and event, so that one fast sender does not delay the timers
SEND_BUFFER_BYTES_MAX = 64 * 1024 * 1024
USER_TIMEOUT_MS = 2000  # unacknowledged bytes older than this break a half-open link

READ, WRITE, ERROR = 1, 2, 4  # pysyncobj's poll event bits

SocketAddress = tuple[int, Any]  # (family, address for connect/bind)


class Poller(Protocol):
    """The poller of the raft library."""

    def subscribe(self, descr: int, callback: Callable[[int, int], None], event_mask: int, /) -> None:
        """Calls callback(descr, events) for the events of `event_mask`. Replaces an earlier subscription."""
        ...

    def unsubscribe(self, descr: int, /) -> None:
        """Ends the subscription of this file descriptor."""
        ...


class LinkSettings(msgspec.Struct, frozen=True):
    """Settings of all links of one member."""

    self_id: str
    members: frozenset[str]  # all, self included
    cluster_id: str
    listen: SocketAddress
    connection_timeout_s: float
    retry_s: float
    channel: Callable[[bool], Channel]  # argument: this side dialed
    lookup: Callable[[str], SocketAddress | None]  # never blocks; None: not resolved yet
    now: Callable[[], float]
    accept_unlisted: bool = False  # accept authenticated peers that are not in `members`
    learn: Callable[[str, tuple[str, int]], None] = lambda _member, _address: (
        None
    )  # address of a member that joined later


class LinkOwner(Protocol):
    """What a Link uses of Links."""

    settings: LinkSettings
    poller: Poller

    def hello(self, receiver: str) -> bytes:
        """Returns the HELLO frame for this member."""
        ...

    def frame(self, link: "Link", frame: bytes) -> None:
        """Handles a received frame. Raises ChannelError or CodecError: the link is closed."""
        ...

    def frames_end(self) -> None:
        """Called after the frames of one read."""
        ...

    def closed(self, link: "Link", reason: str, detail: str) -> None:
        """Handles the end of a link. `reason` is one of few (for metrics), `detail` may be any text."""
        ...


class Link:
    """One connection, before and after its HELLO. `member` None: it dialed us and has not sent HELLO yet."""

    def __init__(self, owner: LinkOwner, sock: socket.socket, *, member: str | None) -> None:
        self.owner, self.sock, self.member = owner, sock, member
        self.dialed = member is not None
        self.opened_at = self.heard_at = self.sent_at = owner.settings.now()
        self.up, self.alive = False, True
        self.is_foreign = False  # sent what no member sends
        self._connecting, self._hello_sent = self.dialed, False
        self._out = bytearray()
        self._mask = 0
        self._file = sock.fileno()
        self._channel = owner.settings.channel(self.dialed)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        if not self.dialed:
            self._write(self._channel.start())
        self._subscribe()

    def send(self, frame: bytes) -> bool:
        """Queues a frame. False: the link is closed."""
        if self.alive:
            self.sent_at = self.owner.settings.now()
            try:
                self._write(self._channel.encode_frame(frame))
            except ChannelError as error:
                self.close(error.reason, error.detail)
        return self.alive

    def close(self, reason: str, detail: str = "") -> None:
        """Closes the connection; LinkOwner.closed() is called once. Safe to repeat."""
        if self.alive:
            self.alive = False
            self.owner.poller.unsubscribe(self._file)
            self.sock.close()
            self.owner.closed(self, reason, detail)

    def accept_frames(self) -> None:
        """HELLO was accepted: longer frames are allowed from now on."""
        self.up = True
        self._channel.frame_bytes_max = FRAME_BYTES_MAX

    def _subscribe(self) -> None:
        mask = READ | ERROR | (WRITE if self._out or self._connecting else 0)
        if self.alive and mask != self._mask:
            self._mask = mask
            self.owner.poller.subscribe(self._file, self._on_event, mask)

    def _write(self, data: bytes) -> None:
        if len(self._out) > SEND_BUFFER_BYTES_MAX:
            return self.close("send buffer full")
        self._out += data
        if self._out and not self._connecting:
            try:
                del self._out[: self.sock.send(self._out)]
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                return self.close(os.strerror(error.errno or 0))
        self._subscribe()

    def _on_event(self, _: int, events: int) -> None:
        if not self.alive:
            return
        try:
            if self._connecting:
                self._connected(events)
                return
            if events & WRITE:
                self._write(b"")
            if self.alive and events & (READ | ERROR):
                self._read()
        except ChannelError as error:
            self.is_foreign = True
            self._send_alert()
            self.close(error.reason, error.detail)
        except CodecError as error:
            self.close("not a message", str(error)[:100])
        except OSError as error:
            self.close(os.strerror(error.errno or 0))

    def _connected(self, events: int) -> None:
        error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self.close(os.strerror(error))
        elif events & WRITE:
            self._connecting = False
            self._write(self._channel.start())
            self._send_hello()

    def may_be(self, member: str) -> bool:
        return self._channel.may_be(member)

    def _send_alert(self) -> None:
        """Sends the TLS alert with the reason, so that the peer can log it."""
        words = self._channel.data_to_send()
        if words and not self._out:
            with contextlib.suppress(OSError):
                self.sock.send(words)

    def _send_hello(self) -> None:
        if self.alive and self.dialed and self._channel.is_open and not self._hello_sent:
            if not self.may_be(self.member or ""):
                raise ChannelError("certificate of another member", f"than {self.member!r}, who was dialed")
            self._hello_sent = True
            self.send(self.owner.hello(self.member or ""))

    def _read(self) -> None:
        budget = READ_BUDGET_BYTES
        while budget > 0 and self.alive:
            try:
                data = self.sock.recv(READ_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            if not data:
                return self.close("closed by the other side")
            budget -= len(data)
            self.heard_at = self.owner.settings.now()
            self._channel.receive_data(data)
            if answer := self._channel.data_to_send():
                self._write(answer)
            self._send_hello()
            while self.alive and (frame := self._channel.next_frame()) is not None:
                self.owner.frame(self, frame)
            if len(data) < READ_BYTES:  # it was all; what comes later makes another event
                break
        self.owner.frames_end()
