"""The metadata of one broker, and a master's side of its replication: who has what, and who waits for that.

A term begins when this broker serves as master and ends with the role. Within it replicas ask by long poll
(29001): the versions that they name are their acknowledgement, the answer is what they lack. A change counts
as replicated when everybody whose log acknowledgements count has it (docs/adr/0007).
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from broker.clients.core.resets import PendingResets
from broker.metadata.core.table import Version
from broker.metadata.core.term import Term
from broker.metadata.groups import Group, GroupTable, illegal_group
from broker.metadata.notes import TruncationNotes
from broker.metadata.offsets import Clamped, ConsumerOffsetTable, DelayOffsetTable
from broker.metadata.queue_ends import Ends, QueueEndTable
from broker.metadata.request_modes import RequestModeTable
from broker.metadata.store import JournaledStore, MetadataStore, version_of
from broker.metadata.timers import TimerProgressTable
from broker.pending import SendGate
from broker.topics import TopicTable
from remoting.clock import now_ms
from remoting.codes import ResponseCode
from remoting.operation import CommandError, LocalProtocolError
from remoting.operations.broker_metadata import (
    MetadataUpdate,
    MetadataVersions,
    PullMetadataRequest,
    SubscriptionGroupConfig,
)

logger = logging.getLogger(__name__)

SEAL_PERIOD_MS = 100
"""Oneway offset commits of so long are one change: after a switch at most so much is consumed again."""
WAIT_MS_MAX = 10_000
TERM_WAIT_MS = 200
"""A replica may hear of a new master before that one has finished its change of role."""
LOOK_MS = 50
"""How often a waiting change looks again: the SyncStateSet may have shrunk."""
FATE_UNKNOWN = "it is stored here, but not known to be on every replica in sync"


class Pulse:
    """Wakes everybody who waits now."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(max(timeout_ms, 0) / 1000):
                await self._event.wait()
        except TimeoutError:
            pass


class Metadata:
    """Owned by the event loop's thread."""

    def __init__(
        self,
        directory: Path,
        topics: TopicTable,
        gate: SendGate,
        *,
        auto_create_groups: bool = True,
        waits: bool = False,
        timeout_ms: int = 3_000,
        flush_period_ms: int = 5_000,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """directory: <root>/config. waits: changes are acknowledged when every member in sync has them."""
        self.topics = topics
        self.groups = GroupTable(directory / "subscriptionGroup.json", auto_create=auto_create_groups)
        self.offsets = ConsumerOffsetTable(directory / "consumerOffset.json")
        self.delays = DelayOffsetTable(directory / "delayOffset.json")
        self.timers = TimerProgressTable(directory / "timerProgress.json")
        self.request_modes = RequestModeTable(directory / "messageRequestMode.json")
        self.queue_ends = QueueEndTable(directory / "queueEnds.json")
        self.stores: dict[str, MetadataStore[Any]] = {
            store.name: store
            for store in (
                self.topics, self.groups, self.offsets, self.delays, self.timers, self.request_modes,
                self.queue_ends,
            )
        }  # fmt: skip
        self.journaled: tuple[JournaledStore[Any], ...] = (self.offsets, self.delays, self.timers)
        self.gate = gate
        self.resets = PendingResets()
        self.notes = TruncationNotes(directory / "truncation.json")
        self.members: Callable[[int], Collection[int] | None] = lambda epoch: ()
        """Whose copies count in the term of this epoch; None: it is over."""
        self.on_heard: Callable[[int], None] = lambda replica: None
        """A replica has everything now."""
        self.on_released: Callable[[], None] = lambda: None
        """hold_offset() has risen."""
        self.log_end: Callable[[], int] = lambda: 0
        self.queue_end: Callable[[str, int], int] = lambda topic, queue_id: sys.maxsize
        self.emptied: Callable[[], Ends] = dict
        """The queues that have lost all their messages to retention here."""
        self.go_on_from: Callable[[str, int, int], None] = lambda topic, queue_id, end: None
        """This queue has counted so far: its next message gets no lower offset."""
        self.fault = ""
        """Why staged offsets could not be written, while that is so."""
        self._waits, self._timeout_ms, self._flush_period_ms = waits, timeout_ms, flush_period_ms
        self._clock = clock
        self._term: Term | None = None
        self._news, self._moved = Pulse(), Pulse()
        self._holds: list[tuple[int, Version]] = []
        for store in self.stores.values():
            store.watchers.append(self._changed)
        self.topics.on_auto_create = self._hold

    def load(self) -> None:
        """Topics first. StoreError: a file is damaged."""
        for store in self.stores.values():
            store.load()

    # -- terms -------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """Of the term; 0: not master, or alone."""
        return self._term.epoch if self._term is not None else 0

    def begin_term(self, epoch: int) -> None:
        """This broker serves as master from now on. Offsets beyond the queues' ends are set back: their
        messages are gone (broker-ha pitfall 61). LocalProtocolError: a table is of a later epoch."""
        for store in self.stores.values():
            if epoch < store.table.version.state_version:
                raise LocalProtocolError(
                    f"masterEpoch {epoch} is below epoch {store.table.version.state_version} of {store.what}"
                )
        self._end()
        for store in self.stores.values():
            store.begin_term(epoch)
        for topic, queue_id, end in self.queue_ends.each():
            self.go_on_from(topic, queue_id, end)
        self._remember_ends(self.emptied())
        self._clamp()
        self._term = Term(
            epoch, {name: store.table for name, store in self.stores.items()}, now_ms=self._clock()
        )
        self._news.notify()

    def begin_alone(self) -> None:
        """Master without replicas, for good: nobody has a newer version than this broker."""
        try:
            self.topics.settle(self.topics.guesses())
        except OSError as error:  # it is settled here; the next start does it again
            logger.error("cannot write %s: %s", self.topics.path, error)
        self._clamp()

    def end_term(self) -> None:
        """Not master any more: what was committed and not replicated gets a version that no new master knows,
        so that this broker is sent the whole table."""
        if self._term is not None:
            self.seal()
        self.resets.offsets.clear()
        self._end()

    def _end(self) -> None:
        self._term = None
        self._holds.clear()
        self._news.notify()
        self._moved.notify()

    def _changed(self) -> None:
        if self._term is not None:
            self._term.changed(now_ms=self._clock())
            self._news.notify()

    # -- emptied queues ----------------------------------------------------------------------------------

    def remember_ends(self, ends: Ends) -> None:
        """Retention is about to delete the last messages of these queues."""
        if self._term is not None:
            self._remember_ends(ends)

    def _remember_ends(self, ends: Ends) -> None:
        try:
            self.queue_ends.remember(ends)
        except OSError as error:  # a full disk, and deleting is what helps; the next round tries again
            logger.error("cannot write %s: %s", self.queue_ends.path, error)

    # -- offsets and cuts --------------------------------------------------------------------------------

    def _clamp(self) -> None:
        beyond = self.offsets.beyond(self.queue_end)
        if not beyond:
            return
        self.offsets.clamp(beyond)
        self.seal()
        self._report("consumer offsets beyond the ends of their queues were set back", beyond, clamped=True)

    def cut(self, before: int, end: int) -> None:
        """The log of this replica was cut. Its offsets are its master's and stay; who is affected is told."""
        beyond = self.offsets.beyond(self.queue_end)
        if beyond:
            self._report(f"the log was cut from {before} to {end}", beyond, clamped=False)

    def _report(self, reason: str, beyond: list[Clamped], *, clamped: bool) -> None:
        groups = sorted({each.group for each in beyond})
        logger.error("%s; affected groups: %s", reason, ", ".join(groups))
        self.notes.add(reason, beyond, clamped=clamped)

    def find_group(self, name: str) -> Group | None:
        """A group that a client names: created here by a master, assumed by a replica, whose table is its
        master's. None: it must not exist, or cannot be written."""
        rows = self.groups.table.rows
        group = rows.get(name)
        if group is not None:
            return group
        if self.gate.writable:
            try:
                created = self.groups.find(name) is not None
                return self.groups.table.rows.get(name) if created else None
            except OSError as error:
                logger.error("cannot write %s: %s", error.filename or self.groups.path, error)
                return None
        if not self.groups.auto_create or illegal_group(name):
            return None
        return Group(SubscriptionGroupConfig(group_name=name))

    def commit_by_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """A pull's commit flag: like a oneway commit. What cannot be kept is not."""
        try:
            if self.resets.is_pending(group, topic, queue_id):
                return
            if self.gate.writable and self.groups.find(group) is not None:
                self.offsets.commit(group, topic, queue_id, offset)
        except OSError as error:
            logger.error("cannot write %s: %s", error.filename or self.groups.path, error)

    # -- waiting for replicas ----------------------------------------------------------------------------

    def lag_ms(self, replica: int, epoch: int) -> int:
        """0: it has everything of this term. Else how long it has been behind, at least 1."""
        term = self._term
        return 1 if term is None or term.epoch != epoch else term.lag_ms(replica, now_ms=self._clock())

    def is_behind(self, replica: int) -> bool:
        """Would a switch to this replica lose a change of this term that has a version? RocketMQ's replicas
        poll, and are not waited for."""
        term = self._term
        counted = self.members(term.epoch) if term is not None else None
        return counted is not None and replica in counted and self.lag_ms(replica, self.epoch) > 0

    def _everywhere(self, term: Term, store: MetadataStore[Any], version: Version) -> bool:
        members = self.members(term.epoch)
        return members is not None and term.everywhere(members, store.name, version)

    async def replicated(self, store: MetadataStore[Any], version: Version) -> None:
        """Returns when every member in sync has this version; CommandError 12: it may or may not."""
        term = self._term
        if not self._waits or term is None:
            return
        deadline_ms = self._clock() + self._timeout_ms
        while True:
            if term is not self._term:
                raise CommandError(
                    ResponseCode.FLUSH_SLAVE_TIMEOUT, f"the broker stopped being master; {FATE_UNKNOWN}"
                )
            if self._everywhere(term, store, version) and not self.gate.lease_is_over:
                return
            if self._clock() >= deadline_ms:
                raise CommandError(
                    ResponseCode.FLUSH_SLAVE_TIMEOUT,
                    f"{store.what}: not replicated within {self._timeout_ms} ms; {FATE_UNKNOWN}",
                )
            await self._moved.wait(LOOK_MS)

    def _hold(self, version: Version) -> None:
        """A message creates its topic: nothing behind it is acknowledged before the topic is everywhere."""
        if self._waits and self._term is not None:
            self._holds.append((self.log_end(), version))

    def hold_offset(self) -> int:
        """Messages that end behind it are not to be acknowledged yet."""
        if not self._holds:
            return sys.maxsize
        term = self._term
        while self._holds and term is not None and self._everywhere(term, self.topics, self._holds[0][1]):
            del self._holds[0]
        return self._holds[0][0] if self._holds else sys.maxsize

    # -- serving replicas --------------------------------------------------------------------------------

    async def pull(self, request: PullMetadataRequest, named: MetadataVersions) -> list[MetadataUpdate]:
        """What the replica lacks; empty when nothing came up for as long as it wanted to wait. CommandError:
        this broker is not master of that epoch."""
        deadline_ms = self._clock() + min(max(request.wait_millis, 0), WAIT_MS_MAX)
        term = await self._term_of(request.master_epoch)
        versions = {name: version_of(data) for name, data in named.versions.items()}
        if term.heard(request.broker_id, versions, now_ms=self._clock()):
            self.on_heard(request.broker_id)
        self._moved.notify()
        self._release()
        while True:
            updates = [
                update
                for name, store in self.stores.items()
                if (update := store.updates_since(named.versions.get(name))) is not None
            ]
            left_ms = deadline_ms - self._clock()
            if updates or left_ms <= 0:
                return updates
            await self._news.wait(left_ms)
            if self._term is not term:
                raise _not_master(request.master_epoch, self.epoch)

    async def _term_of(self, epoch: int) -> Term:
        deadline_ms = self._clock() + TERM_WAIT_MS
        while self._term is None or self._term.epoch != epoch:
            left_ms = deadline_ms - self._clock()
            if left_ms <= 0 or self.epoch > epoch:
                raise _not_master(epoch, self.epoch)
            await self._news.wait(left_ms)
        return self._term

    def _release(self) -> None:
        if self._holds:
            self.on_released()

    # -- background --------------------------------------------------------------------------------------

    def seal(self) -> None:
        """One version for the offsets committed since the last one. On a full disk they stay staged."""
        try:
            for store in self.journaled:
                if store.is_staged:
                    store.seal()
            self.fault = ""
        except OSError as error:
            if not self.fault:
                logger.error("cannot write consumer offsets, they are not replicated: %s", error)
            self.fault = str(error)

    async def run(self) -> None:
        """Seals often, and writes the files now and then."""
        next_flush_ms = self._clock() + self._flush_period_ms
        while True:
            await asyncio.sleep(SEAL_PERIOD_MS / 1000)
            self.seal()
            self._release()
            if self._clock() >= next_flush_ms or any(store.is_long for store in self.journaled):
                next_flush_ms = self._clock() + self._flush_period_ms
                await self._write_files()

    async def _write_files(self) -> None:
        for store in self.journaled:
            if store.is_behind:
                try:
                    written = await asyncio.to_thread(store.snapshot())
                    written()
                except OSError as error:
                    logger.error("cannot write %s: %s; its journal has what it lacks", store.path, error)

    def close(self) -> None:
        """A clean stop."""
        for store in self.journaled:
            try:
                store.flush()
            except OSError as error:
                logger.error("cannot write %s: %s", store.path, error)
            store.journal.close()


def _not_master(asked: int, epoch: int) -> CommandError:
    mine = f"it is master at {epoch}" if epoch else "it is not master"
    return CommandError(
        ResponseCode.SYSTEM_ERROR, f"this broker is not master at masterEpoch {asked}: {mine}"
    )
