"""One TCP connection of either side: passes requests to a Dispatcher, and responses to their calls.

One read is one batch: every whole frame that arrived is handled, and the replies leave in one write. All
connections of a server (or client) read into one shared scratch buffer; of a larger frame, what follows the
first LARGE_FRAME_BYTES is received in place, in a buffer of its exact size. While a peer does not read its
replies, no more requests are read from it. PeerLimits has the account of frames that have not ended.
Invariants: between reads, the buffer holds the beginning of one frame or, while paused, the bytes of one
read. Memory grows with the bytes that arrived, never with what a length field announces.
"""

import asyncio
import itertools
import logging
import mmap
import socket
from collections.abc import Callable
from typing import cast

import msgspec

from keelmq.remoting.addresses import both_ends_write, host_and_port_bytes, network_of
from keelmq.remoting.command import FLAG_RESPONSE, RemotingCommand, decode_parts
from keelmq.remoting.dispatch import FAST_PATH_KEY_BYTES, Dispatcher
from keelmq.remoting.frame import Frame, frame_bytes, large_frame, whole_frames
from keelmq.remoting.large_frames import LargeFrames, NoRoomError
from keelmq.remoting.operation import RemoteProtocolError
from keelmq.remoting.peer_limits import FRAME_BYTES, PeerLimits
from keelmq.remoting.turn_requests import TurnRequests
from keelmq.remoting.write_buffers import SLOW_CLOSE, WRITE_HIGH_BYTES, WRITE_LOW_BYTES, WriteBuffers
from keelmq.runtime.clock import now_ms

logger = logging.getLogger(__name__)

SCRATCH_BYTES = 262_144
LARGE_FRAME_BYTES = 65_536
"""A frame gets its own buffer after this many of its bytes arrived."""
BATCHED_MIN = 6
"""Frames in one read; fewer are served faster one by one."""
CLOSE_MS = 10_000
"""How long close() waits for queued bytes to leave before it aborts the connection."""

_ids = itertools.count(1)


class Connection(asyncio.BufferedProtocol):
    """Implements Peer. `pending`: opaque -> future of the response, None when the connection is lost.
    `large_frames`, `write_buffers` and `limits` are shared as `scratch` is; None: no bound."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        scratch: memoryview,
        *,
        on_made: Callable[["Connection"], None],
        on_lost: Callable[["Connection"], None],
        large_frames: LargeFrames | None = None,
        write_buffers: WriteBuffers | None = None,
        limits: PeerLimits | None = None,
    ) -> None:
        self.connection_id = next(_ids)
        self.address = "?"
        self.own_address = self.peer_address = ""  # in the form that both ends write
        self.address_bytes = bytes(8)  # address bytes (4 or 16) and int32 port, as records store them
        self.network = network_of(self.address_bytes)
        self.is_admitted = dispatcher.table.access is None
        self.partial_bytes = self.partial_looks = 0
        self.is_tls = False
        self.certificate_names: tuple[str, ...] = ()  # of the peer, verified
        self.in_flight = self.in_flight_bytes = 0
        self.known_requests: object = None  # of the server's Access
        self.activity = 0  # reads and writes so far: the idle sweep compares it
        self.pending: dict[int, asyncio.Future[RemotingCommand | None]] = {}
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._dispatcher, self._fast_path = dispatcher, dispatcher.fast_path
        self._scratch, self._on_made, self._on_lost = scratch, on_made, on_lost
        self._transport: asyncio.Transport | None = None
        self._tail, self._large_filled = b"", 0
        self._large: mmap.mmap | None = None
        self._large_frames = large_frames or LargeFrames()
        self._write_buffers = write_buffers or WriteBuffers()
        self._limits = limits or PeerLimits()
        self._batch: list[bytes] | None = None
        self.collected: TurnRequests | None = None  # what holds requests of this connection
        self._paused = self._closing = False

    # ---- Peer ----

    def send(self, frame: bytes) -> bool:
        """Queues a whole frame. False: the connection is closing, nothing was sent."""
        if self._closing:
            return False
        if self._batch is not None:
            self._batch.append(frame)
            return True
        return self._write(frame)

    def write_parts(self, parts: list[bytes | memoryview]) -> bool:
        """Queues one frame given in pieces, without joining them (uvloop). The memory behind the views must
        not change until it is sent. False: closing, nothing was sent."""
        transport = self._transport
        if self._closing or transport is None or transport.is_closing():
            return False
        self._write_batch()  # earlier responses leave first
        if self._paused and not self._write_buffers.has_room(self, sum(map(len, parts))):
            return False
        self._write_buffers.write_pieces(transport, parts)
        self.activity += 1
        return True

    def is_closing(self) -> bool:
        """Returns whether the connection is closing or closed."""
        return self._closing or (self._transport is not None and self._transport.is_closing())

    def is_paused(self) -> bool:
        """Returns whether the peer does not read, so no large response should be started for it."""
        return self._paused

    @property
    def tls_fault(self) -> Exception | None:
        """Why the TLS layer has given up: in TLS 1.3 the server can refuse a client after the handshake."""
        return None if self._transport is None else self._transport.get_extra_info("tls_fault")

    def unsent_bytes(self) -> int:
        """Returns the queued bytes that the system has not accepted yet; 0 when the connection is gone."""
        transport = self._transport
        return 0 if transport is None or self.lost.done() else transport.get_write_buffer_size()

    def unfinished_bytes(self) -> int:
        """Received bytes of a frame whose rest has not arrived yet."""
        return self._large_filled if self._large is not None else len(self._tail)

    def refuse_request(self) -> str | None:
        """Returns why a request is not even checked while none is admitted yet; None: it is checked."""
        if self._limits.take_request(self.network, now_ms()):
            return None
        return f"too many unauthenticated requests from {self.address.rpartition(':')[0]}; try again in 1 s"

    def admitted(self) -> None:
        """The access check has let a first request of this connection pass."""
        self.is_admitted = True
        self._limits.admitted(self)

    def close(self) -> None:
        """Sends queued bytes for CLOSE_MS at most, then closes."""
        if self.collected is not None:
            self.collected.flush()
        self._write_batch()
        self._closing = True
        self._drop_partial()  # now, since a peer that does not read can delay the rest
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.close()
        if transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(CLOSE_MS / 1000, self._close_is_over)

    def _close_is_over(self) -> None:
        if unsent := self.unsent_bytes():
            self.give_up(SLOW_CLOSE, f"{unsent} bytes unsent {CLOSE_MS // 1000} s after the close")

    def abort(self) -> None:
        """Closes at once; queued bytes are lost."""
        self._closing = True
        self._drop_partial()
        if self._transport is not None:
            self._transport.abort()

    def evict(self, problem: str) -> None:
        """Logs the problem and closes at once."""
        self._log_close(problem)
        self.abort()

    def give_up(self, kind: str, problem: str) -> None:
        """Aborts a connection whose peer does not read; counts `kind` and logs `problem`."""
        self._write_buffers.given_up[kind] += 1
        self.evict(f"its peer does not read: {problem}")

    def _write(self, data: bytes) -> bool:
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if self._paused and not self._write_buffers.has_room(self, len(data)):
            return False
        transport.write(data)
        self.activity += 1
        return True

    def _write_batch(self) -> None:
        """Sends the responses so far of the read that is being served."""
        if self._batch:
            self._write(b"".join(self._batch))
            self._batch.clear()

    # ---- asyncio.BufferedProtocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        peer = transport.get_extra_info("peername")
        if peer:
            self.address = f"{peer[0]}:{peer[1]}"
            self.address_bytes = host_and_port_bytes(peer[0], peer[1])
            self.network = network_of(self.address_bytes)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_tls = transport.get_extra_info("ssl_object") is not None
        if self.is_tls:
            self.certificate_names = transport.get_extra_info("certificate_names")
        self.own_address, self.peer_address = both_ends_write(transport)
        self._on_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.collected is not None:
            self.collected.flush()
        self._closing = True
        self._tail = b""
        self._drop_partial()
        for future in self.pending.values():
            if not future.done():
                future.set_result(None)
        self.pending.clear()
        if not self.lost.done():
            self.lost.set_result(None)
        self._write_buffers.forget(self)
        self._on_lost(self)

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def pause_writing(self) -> None:
        self._paused = True
        self._write_buffers.paused(self)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        self._write_buffers.forget(self)
        tail, self._tail = self._tail, b""
        if tail:
            self._receive(tail, whole_frames(tail))
        if not self._paused and self._transport is not None and not self.is_closing():
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        if not self._tail:
            return self._scratch
        tail_bytes = len(self._tail)
        self._scratch[:tail_bytes] = self._tail
        return self._scratch[tail_bytes:]

    def buffer_updated(self, nbytes: int) -> None:
        self.activity += 1
        if self._large is None:
            data = bytes(self._scratch[: len(self._tail) + nbytes])
            self._tail = b""
            self._receive(data, whole_frames(data))
            return
        try:
            self._large_frames.take(nbytes)
            self._large_filled += nbytes
            self._limits.hold(self, nbytes)
        except NoRoomError as error:
            self._refuse(error)
            return
        if self._large_filled == len(self._large):
            whole = cast(bytearray, self._large)  # an mmap works as well
            self._drop_partial()
            self._receive(b"", large_frame(whole))

    # ---- frames ----

    def _receive(self, data: bytes, frames: list[Frame]) -> None:
        """Handles the frames of `data`, writes the replies once, keeps the rest."""
        if self._closing or (len(frames) >= BATCHED_MIN and not self._serve_collected()):
            return
        batch = self._batch = []
        at = 0
        problem: RemoteProtocolError | NoRoomError | None = None
        try:
            if len(frames) >= BATCHED_MIN:
                served, replies = self._dispatcher.batch(frames, self)
                if replies:
                    batch.append(replies)
                if served:
                    at, frames = frames[served - 1][3], frames[served:]
            for serialize_type, header, body, at in frames:
                reply = self._frame(serialize_type, header, body)
                if reply is not None:
                    batch.append(reply)
                if self._paused or self._closing:
                    self._limits.release(self)
                    self._tail = data[at:]
                    break
            else:
                if at < len(data) or self.partial_bytes:
                    self._keep(data, at)
        except (RemoteProtocolError, NoRoomError) as error:
            problem = error
        self._batch = None
        if batch:
            self._write(b"".join(batch))
        if problem is not None:
            self._refuse(problem)

    def _refuse(self, problem: RemoteProtocolError | NoRoomError) -> None:
        if not self._closing:
            self._limits.closed[FRAME_BYTES] += isinstance(problem, NoRoomError)
            self._log_close(problem)
            self.close()

    def _log_close(self, problem: object) -> None:
        dispatcher = self._dispatcher
        dispatcher.closed_peers.tell(now_ms(), "%s: closed %s: %s", dispatcher.name, self.address, problem)

    def _keep(self, data: bytes, at: int) -> None:
        """Keeps the beginning of a frame until the rest arrives. RemoteProtocolError: it can never become a
        frame. NoRoomError: there is no room for it now."""
        size = frame_bytes(data, at, len(data))
        have = len(data) - at
        if at and self.partial_bytes:  # the frame that they were of is complete
            self._limits.release(self)
        if have > self.partial_bytes:
            self._limits.hold(self, have - self.partial_bytes)
        if size <= LARGE_FRAME_BYTES or have < LARGE_FRAME_BYTES:
            self._tail = data[at:]
            return
        self._large, self._large_filled = self._large_frames.begin(data[at:], size), have

    def _drop_partial(self) -> None:
        """Forgets the unfinished frame: it is complete, or will never be."""
        if self.partial_bytes:
            self._limits.release(self)
        if self._large is not None:
            self._large = None
            self._large_frames.held_bytes -= self._large_filled

    def _frame(self, serialize_type: int, header: bytes, body: bytes) -> bytes | None:
        """Serves one frame. Returns its response, if there is one now."""
        fast_path = self._fast_path.get(header[:FAST_PATH_KEY_BYTES])
        if fast_path is not None and not serialize_type:
            decode, handler, again, turn = fast_path
            if turn is not None and turn.is_on and (again is None or again(header, body, self)):
                turn.take(header, body, self)
                return None
            if self.collected is not None and not self._serve_collected():
                return None
            try:
                typed = decode(header)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                typed = None  # legal, but only the lenient decoder reads it
            if typed and not typed.flag & FLAG_RESPONSE and (again is None or again(header, body, self)):
                try:
                    return handler(typed, body, self)
                except Exception as error:  # noqa: BLE001 - answered, and logged with its traceback
                    return self._dispatcher.fast_path_failed(error, header, body)
        elif self.collected is not None and not self._serve_collected():
            return None
        command = decode_parts(serialize_type, header, body)
        if command.flag & FLAG_RESPONSE:
            self._response(command)
            return None
        return self._dispatcher.request(command, self)

    def _serve_collected(self) -> bool:
        """Serves what is collected of this connection. False: it has closed the connection."""
        if self.collected is not None:
            self.collected.flush()
        return not self._closing

    def serve_alone(self, header: bytes, body: bytes, failed: Exception | None = None) -> bool:
        """Answers a collected request. failed: what its handler has raised already. False: it has ended the
        connection. Never raises."""
        try:
            answer = self._dispatcher.fast_path_failed
            reply = answer(failed, header, body) if failed else self._frame(0, header, body)
            if reply is not None:
                self.send(reply)
            return True
        except RemoteProtocolError as error:
            self._refuse(error)
        except Exception:
            logger.exception("%s: a request of %s failed", self._dispatcher.name, self.address)
            self.abort()
        return False

    def _response(self, command: RemotingCommand) -> None:
        future = self.pending.pop(command.opaque, None)
        if future is None:
            logger.debug(
                "%s: late response from %s to opaque %d", self._dispatcher.name, self.address, command.opaque
            )
        elif not future.done():
            future.set_result(command)
