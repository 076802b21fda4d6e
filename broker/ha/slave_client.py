"""The slave's connection: dials the master's HA address, and receives its log in place.

Most of a large packet is read straight into the mapped CommitLog. A header is read into a small buffer with
what follows it, so that a small packet costs one system call and the copy of its few bytes. Effects of
the SlaveLink are performed in its order, before the bytes behind them are looked at.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from broker.group_commit import GroupCommit
from broker.ha.core.epochs import Epochs
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
from broker.ha.ports import Clock, ReplicatedStore

logger = logging.getLogger(__name__)

CONTROL_BYTES = 4_096
DIRECT_BYTES = 2_048
"""So much of a packet's body, or more, is read into the log itself; less of it together with what follows."""
CONNECT_TIMEOUT_MS = 1_000
RETRY_FIRST_MS = 20
RETRY_MAX_MS = 300
"""A master that restarts, or a new one that is not ready yet, is found this soon (the peer: 5 s)."""

TICK_MS = 100

Stranger = Callable[[], Awaitable[str | None]]
"""Why whoever sits at the master's address now must not be dialled; None: it may be."""


async def nobody_knows() -> str | None:
    return None


class SlaveOwner(Protocol):
    """What the service keeps for its client."""

    @property
    def epoch_list(self) -> Epochs: ...

    def save_epochs(self, epochs: Epochs) -> None: ...
    def confirmed(self, offset: int) -> None: ...
    def cut(self, before: int, end: int) -> None: ...


class SlaveProtocol(asyncio.BufferedProtocol):
    """One connection; `ended` is resolved with the reason when it is gone."""

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
        self._is_direct = False  # the read that is under way goes into the log
        self._close: Close | None = None
        self._broken = False  # the log takes nothing more: the close is under way

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass of it
        if self._commit is not None:
            self._commit.listeners.append(self._flushed)
        self._perform(self._clock())

    def get_buffer(self, sizehint: int) -> memoryview:
        wanted = self.link.body_wanted
        self._is_direct = wanted >= DIRECT_BYTES and self._close is None and not self._broken
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
        """Where the body goes that the link waits for. OSError: nowhere."""
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
        elif not self._broken:
            try:
                self._take(self._control[:nbytes], now_ms)
            except OSError as error:
                self.close(f"cannot write here: {error}")

    def _take(self, data: memoryview, now_ms: int) -> None:
        """Headers, small bodies, and the beginning of a large one. OSError: no room for a body."""
        link, log = self.link, self._store.commit_log
        at, end = 0, len(data)
        while at < end and self._close is None:
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

    def tick(self) -> None:
        now_ms = self._clock()
        self.link.tick(now_ms)
        self._perform(now_ms)

    def _flushed(self) -> None:
        self.link.flushed(self._store.commit_log.flushed_offset)
        self._perform(self._clock())

    def _perform(self, now_ms: int) -> None:
        next_effect = self.link.next_effect
        try:
            while self._close is None and (effect := next_effect(now_ms)) is not None:
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
                self._owner.confirmed(effect.offset)
            case SaveEpochs(epochs):
                self._owner.save_epochs(epochs)
            case Truncate(offset):
                if self._store.commit_log.is_record_start(offset):
                    self.link.truncated(self._truncate(offset))
                else:
                    self.link.not_a_boundary(offset)
            case ResetTo(offset):
                self._reset_to(offset)
            case Close():
                self._end(effect)

    def _truncate(self, offset: int) -> int:
        """Durable before the ack: what lies behind the cut must not come back after a crash."""
        before, confirmed = self._store.commit_log.max_offset, self._store.confirm_offset
        self._store.truncate(offset)
        end = self._store.truncate_half_message()
        self._store.commit_log.sync()
        logger.warning("log cut from %d to %d: the master has another history behind it", before, end)
        if end < confirmed:
            logger.error(
                "the cut took confirmed records, %d..%d: the new master was elected without them",
                end,
                confirmed,
            )
        self._owner.cut(before, end)
        return end

    def _reset_to(self, offset: int) -> None:
        log = self._store.commit_log
        if log.max_offset > log.min_offset:
            logger.warning(
                "this log %d..%d ends before the master's begins: it is deleted, and copied from %d on",
                log.min_offset,
                log.max_offset,
                offset,
            )
        self._store.reset_to(offset)

    def close(self, reason: str) -> None:
        self._end(Close(reason))

    def _end(self, close: Close) -> None:
        if self._close is None:
            self._close = close
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._commit is not None and self._flushed in self._commit.listeners:
            self._commit.listeners.remove(self._flushed)
        if self._close is None:
            self._close = Close(str(exc or "the master closed the connection"))
        if not self.ended.done():
            self.ended.set_result(self._close)


class SlaveClient:
    """Follows one master address until stopped. `fault` tells why it gave up, if it did."""

    def __init__(
        self,
        store: ReplicatedStore,
        owner: SlaveOwner,
        *,
        broker_id: int,
        address: tuple[str, int],
        settings: SlaveSettings,
        clock: Clock,
        commit: GroupCommit | None = None,
        on_changed: Callable[[], None] = lambda: None,
        stranger: Stranger = nobody_knows,
    ) -> None:
        """stranger: asked before every dial but the first: who told us to dial has just looked."""
        self.address = address
        self.broker_id = broker_id
        self.fault: str | None = None
        self.protocol: SlaveProtocol | None = None
        self.last_reason = ""
        self._store, self._owner = store, owner
        self._settings, self._clock = settings, clock
        self._commit = commit
        self._on_changed = on_changed
        self._stranger = stranger
        self._stopped = False

    @property
    def connected(self) -> bool:
        return self.protocol is not None and self.protocol.link.transferring

    async def run(self) -> None:
        """Dial, receive, dial again. Returns after a fatal close: an operator must act."""
        retry_ms = RETRY_FIRST_MS
        self._prepare()
        refusal: str | None = None
        while not self._stopped:
            close, received = (Close(refusal), False) if refusal else await self._one_connection()
            if self._stopped:
                return
            if close.reason != self.last_reason:  # once per reason, not three times a second
                logger.warning("HA link to %s:%d: %s", *self.address, close.reason)
                self.last_reason = close.reason
            if close.fatal:
                self.give_up(close.reason)
                return
            if received:
                retry_ms = RETRY_FIRST_MS
            await asyncio.sleep(retry_ms / 1000)
            retry_ms = min(retry_ms * 2, RETRY_MAX_MS)
            refusal = await self._stranger()

    def give_up(self, reason: str) -> None:
        """Nothing is copied from this master any more; instead of run(), or at its end."""
        self.fault = self.last_reason = reason
        logger.error("HA link to %s:%d stopped: %s", *self.address, reason)

    async def _one_connection(self) -> tuple[Close, bool]:
        """Why it ended, and whether a byte of the log had come."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                _, protocol = await loop.create_connection(self._new_protocol, *self.address)
        except (OSError, UnicodeError, TimeoutError) as error:
            return Close(f"cannot connect: {error or 'timeout'}"), False
        self.protocol = protocol
        try:
            while not protocol.ended.done():
                await asyncio.wait([protocol.ended], timeout=TICK_MS / 1000)
                if not protocol.ended.done():
                    protocol.tick()
            return protocol.ended.result(), protocol.link.received_bytes > 0
        finally:
            protocol.close("the client stops")
            self.protocol = None
            if not self._stopped:
                self._prepare()

    def _prepare(self) -> None:
        """Before every dial: no half message at the tail, no epoch that begins behind it or was deleted."""
        end = self._store.truncate_half_message()
        epochs = self._owner.epoch_list.drop_above(end).drop_below(self._store.commit_log.min_offset)
        if epochs != self._owner.epoch_list:
            self._owner.save_epochs(epochs)

    def _new_protocol(self) -> SlaveProtocol:
        log = self._store.commit_log
        link = SlaveLink(
            self.broker_id,
            self._settings,
            epochs=self._owner.epoch_list,
            min_offset=log.min_offset,
            max_offset=log.max_offset,
            now_ms=self._clock(),
        )
        return SlaveProtocol(link, self._store, self._owner, self._clock, self._commit)

    def stop(self) -> None:
        """At once: not a byte reaches the log after this."""
        self._stopped = True
        if self.protocol is not None:
            self.protocol.close("the role changes")
