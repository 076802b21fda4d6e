"""The metadata of one broker, and the master's side of its replication.

A term begins when this broker serves as master, and ends with the role. Within a term, replicas send long
polls (29001): the versions that they name acknowledge, the answer has the updates that they lack. A change is
replicated when every replica whose log acknowledgements count has it (docs/adr/0007).
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from broker.admission.send_gate import SendGate
from broker.metadata.core.resets import PendingResets
from broker.metadata.core.table import Update, Version
from broker.metadata.core.term import Term
from broker.metadata.file_store import FileStore
from broker.metadata.files import GO_BACK
from broker.metadata.groups import Group, GroupTable, illegal_group, refuse_position
from broker.metadata.offset_checks import OffsetChecks
from broker.metadata.offsets import ConsumerOffsetTable, DelayOffsetTable
from broker.metadata.persistence import Persistence
from broker.metadata.ports import LocalQueues, NoReplicas, Replicas
from broker.metadata.queue_ends import Ends, QueueEndTable
from broker.metadata.request_modes import RequestModeTable
from broker.metadata.store import JournaledStore, MetadataStore, version_of
from broker.metadata.timers import TimerProgressTable
from broker.metadata.topics import TopicTable
from broker.metadata.truncation_history import TruncationHistory
from broker.metadata.users import AclTable, UserTable, create_first
from broker.metadata.wire import LARGE_ROWS
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError, LocalProtocolError, Peer, UnknownOutcome
from keelmq.remoting.operations.broker_metadata import (
    MetadataUpdate,
    MetadataVersions,
    PullMetadataRequest,
    SubscriptionGroupConfig,
)
from keelmq.runtime.clock import now_ms
from keelmq.security.core.acls import Acl
from keelmq.security.core.users import User

logger = logging.getLogger(__name__)

IDLE_SHOWN = 20
WAIT_MS_MAX = 10_000
TERM_WAIT_MS = 200
"""A replica may know a new master before the master has finished its role change."""
CHECK_PERIOD_MS = 50
"""A waiting change checks this often whether the SyncStateSet has shrunk."""
ENDS_AT_ONCE = 1_024
"""Ends of emptied queues that one step adopts or records."""
MAY_BE_REPLICATED = "it is stored here, but not known to be on every replica in sync"


class Notifier:
    """A condition of the event loop: notify_all() wakes every task that waits at that moment.

    Unlike asyncio.Event it never stays set, so each waiter checks the state itself after it was woken.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify_all(self) -> None:
        """Wakes all present waiters."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self, timeout_ms: int) -> None:
        """Returns at the next notify_all(), or after timeout_ms; the caller cannot tell which."""
        try:
            async with asyncio.timeout(max(timeout_ms, 0) / 1000):
                await self._event.wait()
        except TimeoutError:
            pass


class Metadata:
    """All tables of one broker. Owned by the event loop's thread."""

    def __init__(
        self,
        directory: Path,
        topics: TopicTable,
        gate: SendGate,
        queues: LocalQueues,
        *,
        auto_create_groups: bool = True,
        waits: bool = False,
        timeout_ms: int = 3_000,
        flush_period_ms: int = 5_000,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """directory: <storePathRootDir>/config. gate: tells whether this broker is a writable master. queues:
        of this broker's store. waits: a change is acknowledged when every member in sync has it, or after
        timeout_ms with an error."""
        self.topics = topics
        self.groups = GroupTable(directory / "subscriptionGroup.json", auto_create=auto_create_groups)
        self.offsets = ConsumerOffsetTable(directory / "consumerOffset.json")
        self.delays = DelayOffsetTable(directory / "delayOffset.json")
        self.timers = TimerProgressTable(directory / "timerProgress.json")
        self.request_modes = RequestModeTable(directory / "messageRequestMode.json")
        self.queue_ends = QueueEndTable(directory / "queueEnds.json")
        self.users = UserTable(directory / "users.json")
        self.acls = AclTable(directory / "acls.json")
        self.stores: dict[str, MetadataStore[Any]] = {
            store.name: store
            for store in (
                self.topics, self.groups, self.offsets, self.delays, self.timers, self.request_modes,
                self.queue_ends, self.users, self.acls,
            )
        }  # fmt: skip
        self.files: tuple[FileStore[Any], ...] = (
            self.topics, self.groups, self.request_modes, self.queue_ends, self.users, self.acls,
        )  # fmt: skip
        """Tables that are written in the background."""
        self.journaled: tuple[JournaledStore[Any], ...] = (self.offsets, self.delays, self.timers)
        self._persistence = Persistence(
            self.files, self.journaled, flush_period_ms=flush_period_ms, clock=clock
        )
        self._idle: tuple[object, list[str]] = (None, [])  # without_effect() of these versions
        self.gate = gate
        self.resets = PendingResets()
        self._queues = queues
        self._checks = OffsetChecks(self.offsets, queues, TruncationHistory(directory / "truncation.json"))
        self.waits, self.timeout_ms = waits, timeout_ms
        self._clock = clock
        self._term: Term | None = None
        self._replicas: Replicas | None = None  # of the term
        self._on_released: Callable[[], None] = _nothing_held  # of the term
        self._changed_notifier, self._acked = Notifier(), Notifier()
        self._holds: list[tuple[int, Version]] = []
        for store in self.stores.values():
            store.watchers.append(self._changed)
        self.topics.on_auto_create = self._hold
        self.first_users: Sequence[tuple[User, Acl | None]] = ()
        """Users to create at the beginning of a term, while the table is empty."""

    def load(self) -> None:
        """Reads all tables, topics first. Raises StoreError if a file is damaged."""
        for store in self.stores.values():
            store.load()
        for text in self.without_effect():
            logger.warning("%s", text)

    def without_effect(self) -> list[str]:
        """Returns texts about settings of topics and groups that this broker stores and does not implement:
        IDLE_SHOWN of them, and their number."""
        versions = self.topics.table.version, self.groups.table.version
        if self._idle[0] == versions:
            return self._idle[1]
        found = self.topics.without_effect() | self.groups.without_effect()
        texts = [f"without effect: {name}: {'; '.join(why)}" for name, why in found.items()]
        if len(texts) > IDLE_SHOWN:
            texts[IDLE_SHOWN:] = [f"without effect: attributes of {len(texts) - IDLE_SHOWN} more"]
        self._idle = versions, texts
        return texts

    def write_in_background(self) -> None:
        """From now on the loop does not wait for files; replicated() returns when a change is on disk."""
        self._persistence.write_in_background()

    # -- terms -------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """masterEpoch of the term; 0: not master, or master without controllers."""
        return self._term.epoch if self._term is not None else 0

    async def begin_term(self, epoch: int, replicas: Replicas, *, on_released: Callable[[], None]) -> None:
        """Begins a term: this broker serves as master when it returns. on_released(): hold_offset() may have
        risen. The caller must not store messages meanwhile.

        Offsets beyond the ends of their queues are set back: their messages are lost (broker-ha pitfall 61).
        Raises LocalProtocolError if a table is of a later epoch.
        """
        for store in self.stores.values():
            await store.settled()
        for store in self.stores.values():
            if epoch < store.table.version.state_version:
                raise LocalProtocolError(
                    f"masterEpoch {epoch} is below epoch {store.table.version.state_version} of {store.what}"
                )
        self._end()
        for store in self.stores.values():
            store.begin_term(epoch)
        await self._begin(epoch, replicas, on_released)

    async def _begin(self, epoch: int, replicas: Replicas, on_released: Callable[[], None]) -> None:
        for number, (topic, queue_id, end) in enumerate(self.queue_ends.each(), 1):
            self._queues.go_on_from(topic, queue_id, end)
            if number % ENDS_AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._checks.clamp(self.commit_staged)
        for ends in self._queues.emptied():
            self.queue_ends.remember(ends)
            await asyncio.sleep(0)
        self._replicas, self._on_released = replicas, on_released
        self._term = Term(
            epoch, {name: store.table for name, store in self.stores.items()}, now_ms=self._clock()
        )
        create_first(self.first_users, self.users, self.acls)
        self._changed_notifier.notify_all()

    async def begin_alone(self) -> None:
        """Begins to serve as master without controllers, in a term of epoch 0: tables keep their versions."""
        try:
            self.topics.settle(self.topics.guesses())
        except OSError as error:  # settled in memory; the next start repeats it
            logger.error("cannot write %s: %s", self.topics.path, error)
        await self._begin(0, NoReplicas(), _nothing_held)

    def end_term(self) -> None:
        """Ends the term: this broker is no longer master.

        Offsets that are committed and not replicated get a version that no new master knows, so the new
        master sends this broker the whole table.
        """
        if self._term is not None:
            self.commit_staged()
        self.resets.offsets.clear()
        self._end()

    def _end(self) -> None:
        self._term = self._replicas = None
        self._holds.clear()
        self._changed_notifier.notify_all()
        self._acked.notify_all()

    def _changed(self) -> None:
        if self._term is not None:
            self._term.changed(now_ms=self._clock())
            self._changed_notifier.notify_all()

    # -- emptied queues ----------------------------------------------------------------------------------

    async def remember_ends(self, ends: Ends) -> None:
        """Records the ends of these queues, on disk when it returns. Retention awaits it before it deletes
        their last messages. If the file cannot be written (the table has logged why), the deletion continues:
        a full disk needs it, and the table is written again later."""
        if self._term is None:
            return
        rows = list(ends.items())
        for at in range(0, len(rows), ENDS_AT_ONCE):
            self.queue_ends.remember(dict(rows[at : at + ENDS_AT_ONCE]))
            await asyncio.sleep(0)
            if self._term is None:
                return
        with contextlib.suppress(OSError):
            await self.queue_ends.saved()

    # -- offsets and truncations -------------------------------------------------------------------------

    def log_truncated(self, before: int, end: int) -> None:
        """Called when the log of this replica was truncated. The offsets stay, because they are the master's;
        check_offsets() logs and records the affected groups."""
        self._checks.truncated(before, end)

    async def check_offsets(self) -> None:
        """Compares consumer offsets with the ends of their queues, while this broker is a replica. Never
        returns."""
        await self._checks.run(lambda: self._term is not None)

    def find_group(self, name: str, peer: Peer | None = None) -> Group | None:
        """Returns the group that a client names; None: it must not exist, or cannot be written. Raises
        CommandError: clients may create no more of them. peer: the client.

        A master creates a missing group. A replica, whose table is its master's, returns the settings of a
        new one.
        """
        refuse_position(name)
        if (group := self.groups.table.rows.get(name)) is not None:
            return group
        if self.gate.writable:
            try:
                created = self.groups.find(name, peer) is not None
                return self.groups.table.rows.get(name) if created else None
            except OSError as error:
                logger.error("cannot write %s: %s", error.filename or self.groups.path, error)
                return None
        if not self.groups.auto_create or illegal_group(name):
            return None
        return Group(SubscriptionGroupConfig(group_name=name))

    def commit_by_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commits the offset in a pull (FLAG_COMMIT_OFFSET), like a oneway commit. Ignored if refused."""
        try:
            if self.resets.is_pending(group, topic, queue_id):
                return
            if self.gate.writable and self.groups.find(group) is not None:
                self.offsets.commit(group, topic, queue_id, offset)
        except OSError as error:
            logger.error("cannot write %s: %s", error.filename or self.groups.path, error)

    # -- waiting for replicas ----------------------------------------------------------------------------

    def lag_ms(self, replica: int, epoch: int) -> int:
        """Returns for how many ms the replica has lacked a change of this term, at least 1; 0: it has all."""
        term = self._term
        return 1 if term is None or term.epoch != epoch else term.lag_ms(replica, now_ms=self._clock())

    def is_behind(self, replica: int) -> bool:
        """Returns whether a fail-over to this replica would lose a change of this term that has a version.

        False for RocketMQ's replicas, which poll whole tables and acknowledge nothing.
        """
        members = self._members()
        return members is not None and replica in members and self.lag_ms(replica, self.epoch) > 0

    def _members(self) -> Collection[int] | None:
        """Returns the replicas whose copies count in the present term; None: there is no term."""
        if self._term is None or self._replicas is None:
            return None
        return self._replicas.metadata_members(self._term.epoch)

    def _is_on_all_members(self, store: MetadataStore[Any], version: Version) -> bool:
        term, members = self._term, self._members()
        return term is not None and members is not None and term.everywhere(members, store.name, version)

    async def replicated(self, store: MetadataStore[Any], version: Version) -> None:
        """Waits until this version is on disk here and every member in sync has it.

        Raises UnknownOutcome (code 12) if the members may or may not have it; CommandError (code 1) if it is
        applied and cannot be written here.
        """
        term = self._term
        await self.on_disk(store)
        if not self.waits or term is None:
            return
        deadline_ms = self._clock() + self.timeout_ms
        while True:
            if term is not self._term:
                raise UnknownOutcome(
                    ResponseCode.FLUSH_SLAVE_TIMEOUT, f"the broker stopped being master; {MAY_BE_REPLICATED}"
                )
            if self._is_on_all_members(store, version) and not self.gate.lease_is_over:
                return
            if self._clock() >= deadline_ms:
                raise UnknownOutcome(
                    ResponseCode.FLUSH_SLAVE_TIMEOUT,
                    f"{store.what}: not replicated within {self.timeout_ms} ms; {MAY_BE_REPLICATED}",
                )
            await self._acked.wait(CHECK_PERIOD_MS)

    async def on_disk(self, store: MetadataStore[Any]) -> None:
        """Waits until all present changes of the table are on this disk. Raises CommandError if they cannot
        be written."""
        await self._persistence.on_disk(store)

    async def all_on_disk(self) -> None:
        """As on_disk(), for all tables."""
        await self._persistence.all_on_disk()

    def _hold(self, version: Version) -> None:
        """Called when a message has created its topic: neither it nor a later one is acknowledged before all
        members have the topic."""
        if self.waits and self._term is not None:
            self._holds.append((self._queues.log_end(), version))

    def hold_offset(self) -> int:
        """Returns the log offset behind which no message may be acknowledged yet; sys.maxsize: there
        is none."""
        while self._holds and self._is_on_all_members(self.topics, self._holds[0][1]):
            del self._holds[0]
        return self._holds[0][0] if self._holds else sys.maxsize

    # -- serving replicas --------------------------------------------------------------------------------

    async def pull(self, request: PullMetadataRequest, named: MetadataVersions) -> list[MetadataUpdate]:
        """Returns the updates that the replica lacks; empty: nothing changed within its wait time.

        Raises CommandError if this broker is not master of that epoch.
        """
        deadline_ms = self._clock() + min(max(request.wait_millis, 0), WAIT_MS_MAX)
        term = await self._term_of(request.master_epoch)
        versions = {name: version_of(data) for name, data in named.versions.items()}
        if term.heard(request.broker_id, versions, now_ms=self._clock()):
            assert self._replicas is not None
            self._replicas.metadata_caught_up(request.broker_id)
        self._acked.notify_all()
        self._release()
        while True:
            changes = [
                (store, update)
                for name, store in self.stores.items()
                if (update := store.changes_since(named.versions.get(name), takes_parts=request.takes_parts))
                is not None
            ]
            left_ms = deadline_ms - self._clock()
            if changes or left_ms <= 0:
                return await _on_the_wire(changes)
            await self._changed_notifier.wait(left_ms)
            if self._term is not term:
                raise _not_master(request.master_epoch, self.epoch)

    async def _term_of(self, epoch: int) -> Term:
        deadline_ms = self._clock() + TERM_WAIT_MS
        while self._term is None or self._term.epoch != epoch:
            left_ms = deadline_ms - self._clock()
            if left_ms <= 0 or self.epoch > epoch:
                raise _not_master(epoch, self.epoch)
            await self._changed_notifier.wait(left_ms)
        return self._term

    def _release(self) -> None:
        if self._holds:
            self._on_released()

    # -- disk --------------------------------------------------------------------------------------------

    @property
    def fault(self) -> str:
        """Why a table or staged offsets cannot be written; empty: they can."""
        return self._persistence.fault

    @property
    def lost(self) -> str:
        """Journals of offsets that a start has found lost, until a master has sent the table; empty: none."""
        found = [store.journal.path.name for store in self.journaled if store.journal.is_lost]
        return f"lost at the start: {', '.join(found)}: {GO_BACK}" if found else ""

    def commit_staged(self) -> None:
        """Commits all staged offsets as one version. On a full disk they stay staged."""
        self._persistence.commit_staged()

    async def run(self) -> None:
        """Commits staged offsets and writes the files, periodically. Never returns."""
        await self._persistence.run(self._release)

    async def end(self) -> None:
        """Ends a clean stop: waits for the writing threads, then calls close()."""
        await self._persistence.wait_for_threads()
        self.close()

    def close(self) -> None:
        """Ends a clean stop without a running loop: writes all unwritten changes. Errors are logged."""
        self._persistence.close()


async def _on_the_wire(changes: Sequence[tuple[MetadataStore[Any], Update[Any]]]) -> list[MetadataUpdate]:
    """Many rows are converted by a thread, so that a new replica does not block the event loop."""

    def convert() -> list[MetadataUpdate]:
        return [store.to_wire(update) for store, update in changes]

    is_large = sum(len(update.rows) + len(update.parts) for _, update in changes) > LARGE_ROWS
    return await asyncio.to_thread(convert) if is_large else convert()


def _nothing_held() -> None:
    """No message waits for a topic outside of a term."""


def _not_master(asked: int, epoch: int) -> CommandError:
    mine = f"it is master at masterEpoch {epoch}" if epoch else "it is not master"
    return CommandError(
        ResponseCode.SYSTEM_ERROR, f"this broker is not master at masterEpoch {asked}: {mine}"
    )
