"""One connection of a slave to its master, on a socket: receives the master's log in place.

Most of a large packet is read straight into the mapped CommitLog. Headers are read into a small buffer, with
what follows them, so a small packet costs one system call and a copy of its few bytes. The effects of the
SlaveLink are performed in its order, before the next bytes are parsed. With member credentials, the link
begins when the master has proved its membership (core/hello.py).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, cast

from broker.ha.core.hello import HelloRefused, SlaveHello
from broker.ha.core.slave_link import (
    Close,
    Confirm,
    Effect,
    ResetTo,
    SaveEpochs,
    SendBytes,
    SlaveLink,
    SlaveSettings,
    Truncate,
)
from broker.ha.dispatcher import BACKLOG_BYTES_MAX, COPYING_BACKLOG_BYTES_MAX, FAR_BYTES
from broker.ha.log_epochs import LogEpochs
from broker.ha.ports import Clock
from broker.store.log.group_commit import GroupCommit
from broker.store.message_store import MessageStore
from keelmq.runtime.log_context import in_context
from keelmq.runtime.slices import in_slices

logger = logging.getLogger(__name__)

CONTROL_BYTES = 4_096
DIRECT_BYTES = 2_048
"""A body of this length or more is read into the log itself; a shorter one is read with what follows it."""
TURN_BYTES_MAX = 256 << 10
"""Bytes of the log that one turn of the loop reads. libuv reads a busy socket 32 times in a row, which takes
milliseconds, and blocks the other brokers of the process meanwhile."""
LARGE_READ_BYTES = 8_192
"""A read of this length or more is one of many by a slave that catches up: the reports about all such reads
of a turn are written together, because a write for each costs more than the reads."""

NO_PROOF = (
    "the master does not prove its membership: are its member credentials the same as ours? "
    "haPlainMaster=true follows a master of RocketMQ"
)
HelloFactory = Callable[[asyncio.Transport, int], SlaveHello]
"""Makes the hello of a connection: (transport, now_ms)."""


class SlaveOwner(Protocol):
    """The state that the HA service keeps for its client."""

    @property
    def log_epochs(self) -> LogEpochs:
        """The epochs of the log."""
        ...

    def confirm_offset_received(self, offset: int) -> None:
        """Handles a confirmOffset that the master sent."""
        ...

    def log_truncated(self, before: int, end: int) -> None:
        """Reports a truncation: the log ended at `before` and now ends at `end`."""
        ...


class SlaveProtocol(asyncio.BufferedProtocol):
    """One connection. `ended` is resolved with the reason when it is closed."""

    def __init__(
        self,
        link: SlaveLink,
        store: MessageStore,
        owner: SlaveOwner,
        clock: Clock,
        commit: GroupCommit | None,
        new_hello: HelloFactory | None = None,
    ) -> None:
        """commit: None: never sync_flush. new_hello: None if the master needs no proof."""
        self.link = link
        self._new_hello = new_hello
        self._hello: SlaveHello | None = None  # until the master has proved its membership
        self.ended: asyncio.Future[Close] = asyncio.get_running_loop().create_future()
        self._store, self._owner, self._clock = store, owner, clock
        self._transport: asyncio.Transport | None = None
        self._control = memoryview(bytearray(CONTROL_BYTES))
        self._commit = commit
        self._is_direct = False  # the read in progress goes into the log
        self._close: Close | None = None
        self._disk_job: asyncio.Future[None] | None = None  # of a truncation, or of new epochs; in a thread
        self._pending = b""  # bytes that arrived meanwhile
        self._broken = False  # the log accepts no more bytes: the connection is about to be closed
        self._turn_bytes = 0  # read into the log in this turn of the loop
        self._unsent = b""  # reports of a turn with large reads
        self._is_held = False  # reads nothing until more is dispatched
        self.reports_ended = False
        self.closed_by_master = False  # set when the connection is closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass of it
        if self._close is not None:
            self._transport.abort()
            return
        now_ms = self._clock()
        if self._new_hello is None:
            self._perform(now_ms)
            return
        self._hello = self._new_hello(self._transport, now_ms)
        try:
            self._transport.write(self._hello.start())
        except HelloRefused as refused:
            self.close(str(refused))

    def _take_hello(self, hello: SlaveHello, data: memoryview, now_ms: int) -> None:
        try:
            proof = hello.receive_data(data)
        except HelloRefused as refused:
            self.close(f"{NO_PROOF} ({refused})")
            return
        if proof is None or self._transport is None or self._close is not None:
            return
        self._hello = None
        self._transport.write(proof)
        self._perform(now_ms)

    @property
    def is_connected(self) -> bool:
        """Whether the connection was made; it may have ended since."""
        return self._transport is not None

    @property
    def is_proving(self) -> bool:
        """Whether the master has not proved its membership yet, and has to."""
        return self._hello is not None

    @property
    def heard_ms(self) -> int | None:
        """When the last byte of the master was read; None: it does not send its log yet, or is not read."""
        transport = self._transport
        if transport is None or not self.link.transferring or not transport.is_reading():
            return None
        return self.link.read_ms

    def get_buffer(self, sizehint: int) -> memoryview:
        wanted = self.link.body_wanted
        self._is_direct = (
            wanted >= DIRECT_BYTES and self._close is None and self._disk_job is None and not self._broken
        )
        if not self._is_direct:
            return self._control
        try:
            return self._room()[:wanted]
        except OSError as error:  # a full disk, most likely
            # uvloop crashes when its transport is closed in here
            asyncio.get_running_loop().call_soon(self.close, f"cannot write here: {error}")
            self._broken, self._is_direct = True, False
            return self._control

    def _room(self) -> memoryview:
        """Returns where the next bytes of the body go. Raises OSError if the log accepts none."""
        log = self._store.commit_log
        if log.max_offset != self.link.max_offset:
            raise OSError(f"the log ends at {log.max_offset}, not at {self.link.max_offset}")
        return log.receive_view()

    def buffer_updated(self, nbytes: int) -> None:
        now_ms = self._clock()
        if self._hello is not None:
            self._take_hello(self._hello, self._control[:nbytes], now_ms)
        elif self._is_direct and self._close is None:
            self._store.commit_log.received(nbytes)
            if nbytes >= LARGE_READ_BYTES:
                self._count_turn(nbytes)
            self.link.body_received(nbytes, now_ms)
            self._perform(now_ms)
        elif self._disk_job is not None:
            self._pending += self._control[:nbytes]
        elif not self._broken:
            try:
                self._take(self._control[:nbytes], now_ms)
            except OSError as error:
                self.close(f"cannot write here: {error}")

    def _count_turn(self, nbytes: int) -> None:
        """Ends the reading of this turn at TURN_BYTES_MAX: other tasks of this loop have priority."""
        if not self._turn_bytes:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._turn_bytes += nbytes
        if self._turn_bytes >= TURN_BYTES_MAX and self._transport is not None and self._disk_job is None:
            self._transport.pause_reading()

    def _next_turn(self) -> None:
        self._turn_bytes = 0
        if self._transport is None or self._close is not None:
            return
        if self._unsent and not self.reports_ended:
            self._transport.write(self._unsent)
        self._unsent = b""
        self._read_on()

    def _read_on(self) -> None:
        transport, is_busy = self._transport, self._disk_job is not None or self._is_held
        if transport is not None and self._close is None and not is_busy and not transport.is_reading():
            transport.resume_reading()

    @property
    def is_far_behind(self) -> bool:
        """Whether this slave still lacks much of the master's log."""
        return self.link.master_max_offset - self.link.max_offset > FAR_BYTES

    @property
    def _backlog_bytes_max(self) -> int:
        return COPYING_BACKLOG_BYTES_MAX if self.is_far_behind else BACKLOG_BYTES_MAX

    def _hold(self) -> None:
        """Reads nothing while the backlog of the dispatch is too large: the acks show the master that this
        slave lags, and a promotion has little to do."""
        if self._store.dispatcher.dispatch_backlog > self._backlog_bytes_max and self._transport is not None:
            self._is_held = True
            if self._transport.is_reading():
                self._transport.pause_reading()

    def dispatched(self) -> None:
        """Some records were dispatched: resumes reading if it waited for that."""
        if self._is_held and self._store.dispatcher.dispatch_backlog <= self._backlog_bytes_max // 2:
            self._is_held = False
            if not self._turn_bytes:  # else the next turn does
                self._read_on()

    def _take(self, data: memoryview, now_ms: int) -> None:
        """Handles headers, small bodies, and the beginning of a large one. Raises OSError if the log accepts
        no body."""
        link, log = self.link, self._store.commit_log
        at, end = 0, len(data)
        while at < end and self._close is None:
            if self._disk_job is not None:
                self._pending = bytes(data[at:])
                return
            if wanted := link.body_wanted:
                room = self._room()
                count = min(wanted, end - at, len(room))
                room[:count] = data[at : at + count]
                log.received(count)
                link.body_received(count, now_ms)
            else:
                count = min(link.control_wanted, end - at)
                link.receive_control(data[at : at + count], now_ms)
            at += count
            self._perform(now_ms)

    def pause_writing(self) -> None:
        """The peer sends a log, but does not read our acks: some thousand of them are buffered."""
        asyncio.get_running_loop().call_soon(self.close, "the master does not read what is sent to it")

    def tick(self) -> None:
        """Called every TICK_MS: sends reports that are due, and closes a link that has timed out."""
        now_ms = self._clock()
        if fault := self._store.commit_log.sync_fault.text:
            self.close(f"cannot write here: {fault}")
            return
        if self._hello is not None:
            self._check_hello(self._hello, now_ms)
            return
        self.link.tick(now_ms)
        self._perform(now_ms)

    def _check_hello(self, hello: SlaveHello, now_ms: int) -> None:
        try:
            hello.check(now_ms)
        except HelloRefused as refused:
            self.close(f"{NO_PROOF} ({refused})")

    def configure(self, settings: SlaveSettings) -> None:
        """Applies changed settings."""
        self.link.configure(settings)
        self.flushed()

    def flushed(self) -> None:
        """More of the log is on disk: it can be acknowledged."""
        if self._transport is None or self._close is not None:
            return
        self.link.flushed(self._store.commit_log.flushed_offset)
        self._perform(self._clock())

    def _perform(self, now_ms: int) -> None:
        if self._hello is not None:
            return
        next_effect = self.link.next_effect
        try:
            while (
                self._close is None and self._disk_job is None and (effect := next_effect(now_ms)) is not None
            ):
                self._perform_one(effect)
        except OSError as error:
            self.close(f"cannot write here: {error}")
        if self._commit is not None and self._close is None and self.link.wants_flush:
            self._commit.want()

    def _perform_one(self, effect: Effect) -> None:
        match effect:
            case SendBytes():
                if self.reports_ended:
                    return
                if self._turn_bytes:
                    self._unsent += effect.data
                elif self._transport is not None and not self._transport.is_closing():
                    self._transport.write(effect.data)
            case Confirm():
                self._owner.confirm_offset_received(effect.offset)
                self._hold()
            case SaveEpochs(epochs):
                save = self._owner.log_epochs.begin_save(epochs)
                self._in_thread(save.write, save.use)
            case Truncate(offset):
                if self._store.commit_log.is_record_start(offset):
                    self._truncate(offset)
                else:
                    self.link.not_a_record_start(offset)
            case ResetTo(offset):
                self._reset_to(offset)
            case Close():
                self._end(effect)

    def _truncate(self, offset: int) -> None:
        """Truncates durably before the ack is sent: the bytes must not come back after a crash."""
        before, confirmed = self._store.commit_log.max_offset, self._store.confirm_offset

        def cut_is_written() -> None:
            self._store.cutter.end_cut()
            self._truncated(before, confirmed, offset)

        self._wait_for(asyncio.get_running_loop().create_task(self._cut(offset)), cut_is_written)

    async def _cut(self, offset: int) -> None:
        plan = await in_slices(self._store.cutter.plan_cut(offset))
        if self._close is None:  # else the store may belong to the next connection, or to a master
            self._store.cutter.begin_cut(offset, plan)
            await asyncio.to_thread(self._store.cutter.write_cut)

    def _in_thread(self, write: Callable[[], None], then: Callable[[], None]) -> None:
        """Runs `write` in a thread: a slow disk, or a flush in progress, must not block the loop."""
        self._wait_for(asyncio.get_running_loop().run_in_executor(None, in_context(write)), then)

    def _wait_for(self, job: "asyncio.Future[None]", then: Callable[[], None]) -> None:
        """No byte is read and no effect performed until the job is done."""
        assert self._transport is not None
        if self._transport.is_reading():
            self._transport.pause_reading()
        self._disk_job = job
        job.add_done_callback(lambda future: self._disk_job_ended(future, then))

    def _disk_job_ended(self, future: "asyncio.Future[None]", then: Callable[[], None]) -> None:
        self._disk_job = None
        if future.cancelled() or isinstance(error := future.exception(), OSError) or self._close is not None:
            if not future.cancelled():
                self.close(f"cannot write here: {error}")
            return  # the next connection finishes it
        if error is not None:
            self.close("the log or its epochs could not be written")
            raise error
        then()
        now_ms = self._clock()
        self._perform(now_ms)
        pending, self._pending = self._pending, b""
        try:
            self._take(memoryview(pending), now_ms)
        except OSError as full:
            self.close(f"cannot write here: {full}")
        self._read_on()

    def _truncated(self, before: int, confirmed: int, end: int) -> None:
        self.link.truncated(end)
        logger.warning("log truncated from %d to %d: the master's log differs from there on", before, end)
        if end < confirmed:
            logger.error(
                "the truncation removed confirmed records, %d..%d: the new master was elected without them",
                end,
                confirmed,
            )
        self._owner.log_truncated(before, end)

    def _reset_to(self, offset: int) -> None:
        log = self._store.commit_log
        if log.max_offset > log.min_offset:
            logger.warning(
                "this log %d..%d ends before the master's begins: it is deleted, and copied again from %d on",
                log.min_offset,
                log.max_offset,
                offset,
            )
        self._store.cutter.begin_reset(offset)
        self._in_thread(self._store.cutter.write_cut, self._store.cutter.end_cut)

    def end_reports(self) -> None:
        """Stops sending and ends the stream; a master then closes the connection."""
        self.reports_ended = True
        transport = self._transport
        if transport is not None and not transport.is_closing() and transport.can_write_eof():
            transport.write_eof()  # TLS has none

    def close(self, reason: str) -> None:
        """Aborts the connection. Only the first reason is kept."""
        self._end(Close(reason))

    def _end(self, close: Close) -> None:
        if self._close is None:
            self._close = close
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._close is None:
            self.closed_by_master = exc is None or isinstance(exc, ConnectionResetError | BrokenPipeError)
            self._close = Close(
                NO_PROOF if self.is_proving else str(exc or "the master closed the connection")
            )
        if not self.ended.done():
            self.ended.set_result(self._close)
