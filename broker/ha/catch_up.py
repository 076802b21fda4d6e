"""Threads that send the log to a replica that is far behind, with sendfile, without a copy to user space.

A SendfileBatch is some MiB of packets that the MasterLink has made; a thread sends it. Meanwhile the event
loop writes nothing to that socket, but still reads acks from it. The thread uses only descriptors that the
batch owns, which are duplicates: when a connection closes or a file is deleted, their numbers are not reused.
When the link ends, its socket is shut down, and the thread returns at once with an error.
"""

import asyncio
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from broker.ha.core.master_link import Send
from broker.store.log.commit_log import CommitLog
from broker.store.log_check import Piece, check_file
from keelmq.runtime.log_context import ContextThreadPool

ABORT_CHECK_MS = 1_000
"""Interval at which a thread that waits for a slow replica checks whether its batch was aborted."""
IDLE_WAIT_MS = 1_000
"""Time that a role change waits for the threads; only a disk that does not answer blocks one longer."""
CHECK_AHEAD_BYTES = 16 << 20
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with a time of 0: the send queue of a link that ends is dropped. Sendfile queues pages of the
log, not copies of them, and after the term as master these pages may be overwritten."""


class SendfileBatch:
    """Packets to be sent from the log's files to one socket."""

    def __init__(self, log: CommitLog, fd: int, packets: Sequence[Send]) -> None:
        """`fd`: of the connection. Opens the files now: their bytes may be deleted from the log while they
        are sent."""
        self.aborted = False
        self._socket = socket.socket(fileno=os.dup(fd))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._files: dict[int, int] = {}  # a file's number -> its descriptor
        self._pieces: list[tuple[bytes, int, int, int]] = []
        try:
            for packet in packets:
                self._pieces.append((packet.header, *self._place(log, packet.offset), packet.body_bytes))
        except OSError:
            self.close()
            raise

    def _place(self, log: CommitLog, offset: int) -> tuple[int, int]:
        number, at = divmod(offset, log.file_bytes)
        if number not in self._files:
            self._files[number] = log.open_file(offset)
        return self._files[number], at

    def send(self) -> None:
        """Sends all packets; runs in a thread. Raises OSError if the link ended or a file was truncated."""
        for header, file, at, count in self._pieces:
            self._send_header(header)
            while count:
                try:
                    sent = os.sendfile(self._socket.fileno(), file, at, count)
                except BlockingIOError:
                    self._wait()
                    continue
                if not sent:
                    raise OSError(f"the log's file ends at {at}")
                at, count = at + sent, count - sent

    def _send_header(self, header: bytes) -> None:
        """Sends a header with MSG_MORE, so that it shares a segment with the first bytes of its body."""
        while header:
            try:
                header = header[self._socket.send(header, socket.MSG_MORE) :]
            except BlockingIOError:
                self._wait()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        while not self.aborted:
            if poll.poll(ABORT_CHECK_MS):
                return  # there is room, or the next call raises the error
        raise ConnectionAbortedError("the link was closed")

    def abort(self) -> None:
        """Called by the loop: stops the sending. The thread returns soon, and close() is called then."""
        self.aborted = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the replica has already closed it

    @property
    def is_closed(self) -> bool:
        """Whether all descriptors are closed."""
        return self._socket.fileno() < 0 and not self._files

    def close(self) -> None:
        """Closes all descriptors. Called by the loop when no thread uses the batch."""
        self._socket.close()
        while self._files:
            os.close(self._files.popitem()[1])


class CheckBatch:
    """Some MiB of one file of the log whose records are checked before a SendfileBatch sends them."""

    def __init__(self, log: CommitLog, start: int) -> None:
        """start: a record boundary. Opens the file now: it may be deleted from the log meanwhile."""
        self.aborted = False
        self.pieces: list[Piece] = []
        self._start, self._file_bytes = start, log.file_bytes
        self._end = min(log.max_offset, start - start % log.file_bytes + log.file_bytes)
        self._fd = log.open_file(start)

    def send(self) -> None:
        """Checks the records; runs in a thread. Raises OSError if they cannot be read, or the link ended."""
        for piece in check_file(self._fd, self._start, self._end, self._file_bytes):
            if self.aborted:
                raise ConnectionAbortedError("the link was closed")
            self.pieces.append(piece)
            if piece.end - self._start >= CHECK_AHEAD_BYTES:
                return

    def abort(self) -> None:
        """Called by the loop: stops the check. The thread returns soon, and close() is called then."""
        self.aborted = True

    def close(self) -> None:
        """Closes the descriptor. Called by the loop when no thread uses the batch."""
        os.close(self._fd)


class CatchUpThreads:
    """The threads of one broker (haCatchUpThreads); owned by the event loop's thread."""

    def __init__(self, threads_max: int) -> None:
        """`threads_max`: number of replicas that threads serve at once; the loop serves the others."""
        self._threads = ContextThreadPool(max(threads_max, 1), "ha-catch-up")
        self._threads_max = threads_max
        self._sending: set[asyncio.Future[None]] = set()

    @property
    def is_full(self) -> bool:
        """Whether all threads are sending."""
        return len(self._sending) >= self._threads_max

    def start(self, batch: SendfileBatch | CheckBatch, on_end: Callable[[OSError | None], None]) -> None:
        """Sends or checks the batch in a thread. The loop closes the batch and then calls on_end(error);
        None: it is done."""
        work: Future[None] = self._threads.submit(batch.send)
        future = asyncio.wrap_future(work)
        self._sending.add(future)

        def ended(future: "asyncio.Future[None]") -> None:
            self._sending.discard(future)
            batch.close()
            error = None if future.cancelled() else future.exception()
            if error is not None and not isinstance(error, OSError):
                raise error
            on_end(error)

        future.add_done_callback(ended)

    async def wait_until_idle(self) -> None:
        """Waits until no thread sends, at most IDLE_WAIT_MS. Every batch must have been aborted."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=IDLE_WAIT_MS / 1000)

    async def close(self) -> None:
        """Ends the threads. Every batch must have been aborted."""
        await self.wait_until_idle()
        self._threads.shutdown(wait=False)
