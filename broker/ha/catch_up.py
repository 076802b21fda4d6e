"""Helper threads that send a far replica what it lacks, by sendfile: the log's bytes pass no memory of ours.

A run is some MiB of packets that the MasterLink has made, and a thread sends it. Meanwhile the loop writes
nothing to that socket, and goes on reading acks from it. The thread touches nothing but the run's own
descriptors, which are duplicates: a closed connection or a deleted file does not give their numbers to
somebody else. Whoever ends a link shuts the socket down, and the thread comes back at once with an error.
"""

import asyncio
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from broker.ha.core.master_link import Send
from broker.ha.ports import ReplicatedLog

LOOK_MS = 1_000
"""A thread that waits for a slow replica looks this often whether it is still wanted."""
QUIET_MS = 1_000
"""How long a role change waits for threads; only a disk that does not answer keeps one longer."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: what is queued on a link that ends is dropped. Sendfile queues pages of the log, not copies of
them, and who leaves the mastership may change these pages next."""


SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Of this thread, in ns: on a core, and waiting for one."""
BUSY_US = 700_000
"""A loop that works, or waits for a core, for so much of a second has nothing to spare."""


def demand_us() -> int:
    """CPU time that this thread had or waited for. 0 where the system does not tell: it counts as idle."""
    try:
        had, waited, _ = SCHEDSTAT.read_bytes().split()
    except (OSError, ValueError):
        return 0
    return (int(had) + int(waited)) // 1_000


class Run:
    """Packets on their way from the log's files to one socket."""

    def __init__(self, log: ReplicatedLog, fd: int, packets: Sequence[Send]) -> None:
        """fd: of the connection. The bytes are in the log now; they need not stay there."""
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

    def _place(self, log: ReplicatedLog, offset: int) -> tuple[int, int]:
        number, at = divmod(offset, log.file_bytes)
        if number not in self._files:
            self._files[number] = log.open_file(offset)
        return self._files[number], at

    def send(self) -> None:
        """In a thread. OSError: the link is gone, or the file was cut."""
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
        """It leaves together with the first bytes of its body."""
        while header:
            try:
                header = header[self._socket.send(header, socket.MSG_MORE) :]
            except BlockingIOError:
                self._wait()

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        while not self.aborted:
            if poll.poll(LOOK_MS):
                return  # room, or an error that the next call tells
        raise ConnectionAbortedError("the link was closed")

    def abort(self) -> None:
        """By the loop: nothing more leaves. The thread comes back soon, and then close() is called."""
        self.aborted = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the replica was faster

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0 and not self._files

    def close(self) -> None:
        """By the loop, when no thread uses it."""
        self._socket.close()
        while self._files:
            os.close(self._files.popitem()[1])


class CatchUp:
    """The threads of one broker; owned by the event loop's thread."""

    def __init__(self, threads_max: int) -> None:
        """Replicas that come when so many are served already are served by the loop."""
        self._threads = ThreadPoolExecutor(max(threads_max, 1), "ha-catch-up")
        self._threads_max = threads_max
        self._runs: set[asyncio.Future[None]] = set()

    @property
    def is_full(self) -> bool:
        return len(self._runs) >= self._threads_max

    def start(self, run: Run, on_end: Callable[[OSError | None], None]) -> None:
        """on_end is called by the loop; the run is closed before that."""
        work: Future[None] = self._threads.submit(run.send)
        future = asyncio.wrap_future(work)
        self._runs.add(future)

        def ended(future: "asyncio.Future[None]") -> None:
            self._runs.discard(future)
            run.close()
            error = None if future.cancelled() else future.exception()
            if error is not None and not isinstance(error, OSError):
                raise error
            on_end(error)

        future.add_done_callback(ended)

    async def quiet(self) -> None:
        """No thread sends any more; after every run was aborted."""
        if self._runs:
            await asyncio.wait(self._runs, timeout=QUIET_MS / 1000)

    async def close(self) -> None:
        """After every run was aborted."""
        await self.quiet()
        self._threads.shutdown(wait=False)
