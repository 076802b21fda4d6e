"""The slave's side of a link on sockets: connects to the master's HA address, and receives its log in place.

Most of a large packet is read straight into the mapped CommitLog. Headers are read into a small buffer, with
what follows them, so a small packet costs one system call and a copy of its few bytes. The effects of the
SlaveLink are performed in its order, before the next bytes are parsed.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

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
from broker.ha.log_epochs import LogEpochs
from broker.ha.log_truncation import begin_truncation, truncate_partial_record
from broker.ha.ports import Clock, ReplicatedStore
from broker.store.log.group_commit import GroupCommit
from keelmq.runtime.backoff import Backoff

logger = logging.getLogger(__name__)

CONTROL_BYTES = 4_096
DIRECT_BYTES = 2_048
"""A body of this length or more is read into the log itself; a shorter one is read with what follows it."""
CONNECT_TIMEOUT_MS = 1_000
RECONNECT = Backoff(first_ms=20, max_ms=300)
"""The pause between two attempts to connect. RocketMQ waits 5 s."""

TICK_MS = 100

MasterCheck = Callable[[], Awaitable[str | None]]
"""Returns why the broker that now listens at the master's address must not be followed; None: it may be."""


class SlaveOwner(Protocol):
    """What the HA service keeps for its client."""

    @property
    def log_epochs(self) -> LogEpochs:
        """The epochs of the log."""
        ...

    def confirm_offset_received(self, offset: int) -> None:
        """Takes a confirmOffset that the master sent."""
        ...

    def log_truncated(self, before: int, end: int) -> None:
        """Reports a truncation: the log ended at `before` and now ends at `end`."""
        ...


class SlaveProtocol(asyncio.BufferedProtocol):
    """One connection. `ended` is resolved with the reason when it is closed."""

    def __init__(
        self,
        link: SlaveLink,
        store: ReplicatedStore,
        owner: SlaveOwner,
        clock: Clock,
        commit: GroupCommit | None,
    ) -> None:
        self.link = link
        self.ended: asyncio.Future[Close] = asyncio.get_running_loop().create_future()
        self._store, self._owner, self._clock = store, owner, clock
        self._transport: asyncio.Transport | None = None
        self._control = memoryview(bytearray(CONTROL_BYTES))
        self._commit = commit
        self._is_direct = False  # the read in progress goes into the log
        self._close: Close | None = None
        self._disk_job: asyncio.Future[None] | None = None  # of a truncation, or of new epochs; in a thread
        self._pending = b""  # bytes that arrived meanwhile
        self._broken = False  # the log takes no more bytes: the connection is about to be closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass of it
        self._perform(self._clock())

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
        """Returns where the next bytes of the body go. Raises OSError if the log takes none."""
        log = self._store.commit_log
        if log.max_offset != self.link.max_offset:
            raise OSError(f"the log ends at {log.max_offset}, not at {self.link.max_offset}")
        return log.receive_view()

    def buffer_updated(self, nbytes: int) -> None:
        now_ms = self._clock()
        if self._is_direct and self._close is None:
            self._store.commit_log.received(nbytes)
            self.link.body_received(nbytes, now_ms)
            self._perform(now_ms)
        elif self._disk_job is not None:
            self._pending += self._control[:nbytes]
        elif not self._broken:
            try:
                self._take(self._control[:nbytes], now_ms)
            except OSError as error:
                self.close(f"cannot write here: {error}")

    def _take(self, data: memoryview, now_ms: int) -> None:
        """Handles headers, small bodies, and the beginning of a large one. Raises OSError if the log takes no
        body."""
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
        self.link.tick(now_ms)
        self._perform(now_ms)

    def flushed(self) -> None:
        """More of the log is on disk: it can be acknowledged."""
        if self._transport is None or self._close is not None:
            return
        self.link.flushed(self._store.commit_log.flushed_offset)
        self._perform(self._clock())

    def _perform(self, now_ms: int) -> None:
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
                if self._transport is not None and not self._transport.is_closing():
                    self._transport.write(effect.data)
            case Confirm():
                self._owner.confirm_offset_received(effect.offset)
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
        end = begin_truncation(self._store, offset)
        self._finish_cut(lambda: self._truncated(before, confirmed, end))

    def _finish_cut(self, then: Callable[[], None]) -> None:
        def cut_is_written() -> None:
            self._store.end_cut()
            then()

        self._in_thread(self._store.write_cut, cut_is_written)

    def _in_thread(self, write: Callable[[], None], then: Callable[[], None]) -> None:
        """Runs `write` in a thread: a slow disk, or a flush in progress, must not block the loop. No byte is
        read and no effect performed until it is done."""
        assert self._transport is not None
        if self._transport.is_reading():
            self._transport.pause_reading()
        self._disk_job = asyncio.get_running_loop().run_in_executor(None, write)
        self._disk_job.add_done_callback(lambda future: self._disk_job_ended(future, then))

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
        if self._disk_job is None and self._close is None and self._transport is not None:
            self._transport.resume_reading()

    def _truncated(self, before: int, confirmed: int, end: int) -> None:
        self.link.truncated(end)
        logger.warning(
            "log truncated from %d to %d: the master has another history from there on", before, end
        )
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
        self._store.begin_reset(offset)
        self._finish_cut(lambda: None)

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
            self._close = Close(str(exc or "the master closed the connection"))
        if not self.ended.done():
            self.ended.set_result(self._close)


class SlaveClient:
    """Follows the master at one address until stopped. `fault` says why it gave up; None: it did not."""

    def __init__(
        self,
        store: ReplicatedStore,
        owner: SlaveOwner,
        *,
        broker_id: int,
        address: tuple[str, int],
        settings: SlaveSettings,
        clock: Clock,
        commit: GroupCommit | None,
        check_master: MasterCheck,
    ) -> None:
        """commit: the group commit; None without sync_flush. check_master: asked before every connection but
        the first, whose address the caller has just checked."""
        self.address = address
        self.broker_id = broker_id
        self.fault: str | None = None
        self.protocol: SlaveProtocol | None = None
        self.last_reason = ""
        self._store, self._owner = store, owner
        self._settings, self._clock = settings, clock
        self._commit = commit
        self._check_master = check_master
        self._stopped = False

    @property
    def connected(self) -> bool:
        """The handshake is done and the master sends its log."""
        return self.protocol is not None and self.protocol.link.transferring

    async def run(self) -> None:
        """Connects, receives, and connects again. Returns after a fatal close: an operator must act."""
        failures = 0
        refused = await self._prepare()
        refusal: str | None = None
        while not self._stopped:
            if fault := self._store.commit_log.sync_fault.text:
                self.give_up(f"cannot write here: {fault}")
                return
            refusal = refused or refusal
            close, received = (Close(refusal), False) if refusal else await self._one_connection()
            if self._stopped:
                return
            if close.reason != self.last_reason:  # once per reason, not with every attempt
                logger.warning("HA link to %s:%d: %s", *self.address, close.reason)
                self.last_reason = close.reason
            if close.fatal:
                self.give_up(close.reason)
                return
            failures = 1 if received else failures + 1
            await asyncio.sleep(RECONNECT.pause_ms(failures, random.random()) / 1000)
            refused = await self._prepare()
            refusal = None if refused else await self._check_master()

    def give_up(self, reason: str) -> None:
        """Stops copying from this master for good. Called instead of run(), or at its end."""
        self.fault = self.last_reason = reason
        logger.error("HA link to %s:%d stopped: %s", *self.address, reason)

    async def _one_connection(self) -> tuple[Close, bool]:
        """Returns why the connection ended, and whether it brought bytes of the log."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                _, protocol = await loop.create_connection(self._new_protocol, *self.address)
        except (OSError, UnicodeError, TimeoutError) as error:
            self.protocol = None
            return Close(f"cannot connect: {error or 'timeout'}"), False
        try:
            while not protocol.ended.done():
                await asyncio.wait([protocol.ended], timeout=TICK_MS / 1000)
                if not protocol.ended.done():
                    protocol.tick()
            return protocol.ended.result(), protocol.link.received_bytes > 0
        finally:
            protocol.close("the client stops")
            self.protocol = None

    async def _prepare(self) -> str | None:
        """Before every connection: cuts off a partial record, and drops epochs that begin behind the log's
        end or belong to deleted files. Returns why this is impossible; None: it is done."""
        try:
            end = await truncate_partial_record(self._store)
            await self._drop_epochs(end)
        except OSError as error:
            return f"cannot write here: {error}"
        return None

    async def _drop_epochs(self, end: int) -> None:
        log_epochs = self._owner.log_epochs
        epochs = log_epochs.now.drop_above(end).drop_below(self._store.commit_log.min_offset)
        if epochs != log_epochs.now:
            await log_epochs.save(epochs)

    def _new_protocol(self) -> SlaveProtocol:
        log = self._store.commit_log
        link = SlaveLink(
            self.broker_id,
            self._settings,
            epochs=self._owner.log_epochs.now,
            min_offset=log.min_offset,
            max_offset=log.max_offset,
            now_ms=self._clock(),
        )
        # kept at once: a round of the group commit may end before create_connection() returns
        self.protocol = SlaveProtocol(link, self._store, self._owner, self._clock, self._commit)
        return self.protocol

    def stop(self) -> None:
        """Closes the connection. No byte is written to the log after this call."""
        self._stopped = True
        if self.protocol is not None:
            self.protocol.close("the role changes")
