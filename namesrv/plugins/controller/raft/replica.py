"""One member of the group: its event loop side, its thread, its files. Does not know which raft library runs.

Threads: start, stop, append and callbacks belong to the event loop. The raft thread owns the core, the links,
the journal and the ledger; only ReplicaCore.submit (a thread-safe queue) and plain reads cross over.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from namesrv.plugins.controller.raft.api import (
    AppendOutcome,
    ChangeOutcome,
    NotActive,
    RaftSettings,
    StateMachine,
)
from namesrv.plugins.controller.raft.certificates import Certificates
from namesrv.plugins.controller.raft.changes import Changes
from namesrv.plugins.controller.raft.codec import Standing
from namesrv.plugins.controller.raft.directory import DataDirectory
from namesrv.plugins.controller.raft.fatal import (
    EXIT_JOURNAL,
    EXIT_RAFT,
    EXIT_SNAPSHOT,
    EXIT_STATE_MACHINE,
    FatalRaftError,
    end_process,
)
from namesrv.plugins.controller.raft.files import DamagedError
from namesrv.plugins.controller.raft.journal import Journal, LogEntry
from namesrv.plugins.controller.raft.ledger import Batch, Ledger, encode_batch
from namesrv.plugins.controller.raft.member import Core, Member
from namesrv.plugins.controller.raft.proposals import Callback, Proposals
from namesrv.plugins.controller.raft.roster import Address, Roster, encode_change
from namesrv.plugins.controller.raft.settings import check_settings
from namesrv.plugins.controller.raft.snapshot import Snapshot, read_snapshot, write_snapshot
from namesrv.plugins.controller.raft.standing import Joining
from namesrv.plugins.controller.raft.standing import load as load_standing
from namesrv.plugins.controller.raft.standing import save as save_standing
from remoting.config import ConfigError

logger = logging.getLogger(__name__)

CLAIM_DEADLINE_S = 1.0
CLAIM_RETRY_S = 0.02
STOP_S = 5.0
SNAPSHOT_SLOW_S = 0.1


class ReplicaCore(Core, Protocol):
    """The library as Replica runs it."""

    member: Member

    def submit(self, data: bytes, callback: Callback) -> None:
        """Any thread. The callback comes in the raft thread, or never."""
        ...

    def doTick(self, time_to_wait: float, /) -> None: ...
    def close(self) -> None: ...


class Replica:
    """Implements Replicator but for open_core(), which the file that knows the library adds."""

    def __init__(self, machine: StateMachine, settings: RaftSettings) -> None:
        self.settings, self.ledger = settings, Ledger(machine)
        self.directory = DataDirectory(settings.directory)
        self.roster = Roster(settings.members)
        self.certificates: Certificates | None = None
        self._core: ReplicaCore | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._proposals: Proposals | None = None
        self._changes: Changes | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._stopping = self._failed = False
        self._epoch: int | None = None
        self._callbacks: list[Callable[[bool], None]] = []
        self._snapshots = self._snapshot_bytes = 0
        self._snapshot_seconds = 0.0  # the last one; nothing else happens meanwhile

    # ------------------------------------------------------------------ event loop
    @property
    def is_active(self) -> bool:
        return self._epoch is not None

    @property
    def leader_id(self) -> str | None:
        return None if self._core is None else self._core.leader_id

    @property
    def self_id(self) -> str:
        return self.settings.self_id

    @property
    def epoch(self) -> int | None:
        return self._epoch

    def on_active_changed(self, callback: Callable[[bool], None]) -> None:
        self._callbacks.append(callback)

    async def start(self) -> None:
        """Raises ConfigError: bad settings, port taken, directory in use or damaged."""
        check_settings(self.settings)
        core = await asyncio.to_thread(self._open)
        self._attach(core, asyncio.get_running_loop())
        self._thread = threading.Thread(
            target=self._run, args=(core,), name=f"raft {self.self_id}", daemon=True
        )
        self._thread.start()

    def _attach(self, core: ReplicaCore, loop: asyncio.AbstractEventLoop) -> None:
        self._core, self._loop = core, loop
        self._proposals = Proposals(
            loop,
            core.submit,
            lambda: self.leader_id,
            self_id=self.self_id,
            deadline_s=self.settings.append_deadline_s,
        )
        self._changes = Changes(
            self.self_id, core, self._proposals, self.roster, self.ledger, lambda: self._epoch
        )

    async def stop(self) -> None:
        """Ends the thread, closes files and connections; what was in flight is Unknown."""
        self._stopping = True
        if self._claiming is not None:
            self._claiming.cancel()
        if self._core is not None and self._thread is not None and self._thread.is_alive():
            self._core.wake()
            await asyncio.to_thread(self._thread.join, STOP_S)
        self._set_epoch(None)
        if self._proposals is not None:
            self._proposals.stop()
        self.directory.close()
        self._core = None

    async def append(self, event: bytes, request_id: str | None = None) -> AppendOutcome:
        if self._proposals is None:
            return NotActive(None)
        return await self._proposals.append(request_id, event)

    async def barrier(self) -> AppendOutcome:
        if self._proposals is None:
            return NotActive(None)
        return await self._proposals.append(None, None)

    @property
    def request_addresses(self) -> dict[str, Address]:
        return self.roster.request_addresses(self.settings.request_addresses)

    @property
    def added(self) -> dict[str, Address]:
        return self.roster.added

    async def add_member(
        self, member_id: str, address: Address, request_address: Address | None = None
    ) -> ChangeOutcome:
        if self._changes is None:
            return NotActive(None)
        return await self._changes.add(member_id, address, request_address)

    async def remove_member(self, member_id: str) -> ChangeOutcome:
        return NotActive(None) if self._changes is None else await self._changes.remove(member_id)

    async def transfer_leadership(self, member_id: str) -> ChangeOutcome:
        return NotActive(None) if self._changes is None else await self._changes.transfer(member_id)

    def status(self) -> dict[str, Any]:
        common: dict[str, Any] = {"selfId": self.self_id, "active": self.is_active, "epoch": self._epoch}
        if self._core is None or self._proposals is None:
            return common | {"running": False}
        core = self._core
        return (
            common
            | {
                "running": self._thread is not None and self._thread.is_alive(),
                "leaderId": core.leader_id,
                "term": core.term,
                "commitIndex": core.commit_index,
                "lastApplied": core.last_applied,
                "logEntries": len(core.log),
                "journalBytes": core.log.file_bytes,
                "journalSyncs": core.log.syncs,
                "syncSeconds": core.log.sync_seconds.values(),
                "commitSeconds": self._proposals.commit_seconds.values(),
                "batchSizes": self._proposals.batch_sizes.values(),
                "snapshotBytes": self._snapshot_bytes,
                "snapshots": self._snapshots,
                "snapshotSeconds": self._snapshot_seconds,
                "waiting": self._proposals.waiting,
                "outcomes": dict(self._proposals.outcomes),
            }
            | core.member.status()
            | ({} if self.certificates is None else self.certificates.status())
        )

    def _on_state(self, leads: bool, term: int) -> None:
        self._set_epoch(None)
        if leads and not self._stopping and self._loop is not None:
            self._claiming = self._loop.create_task(self._claim(term))

    async def _claim(self, term: int) -> None:
        """Active only once our claim is applied: then everything acknowledged before is applied here too."""
        while self._leads(term) and self._proposals is not None:
            await self._proposals.claim(term, CLAIM_DEADLINE_S)
            if self.ledger.claimed_term == term and self._leads(term):
                self._set_epoch(term)
                return
            if self.ledger.claimed_term > term:
                return
            await asyncio.sleep(CLAIM_RETRY_S)

    def _welcome(self, member: str, incarnation: str) -> None:
        """A member whose directory was empty asks; it repeats until it has seen the answer in the log."""
        if self._epoch is not None and self._core is not None:
            logger.warning("member %s joins with an empty data directory", member)
            batch = Batch("welcome", self._epoch, member, ((incarnation, None),))
            self._core.submit(encode_batch(batch), lambda _result, _reason: None)

    def _leads(self, term: int) -> bool:
        return not self._stopping and self._core is not None and self._core.leads and self._core.term == term

    def _set_epoch(self, epoch: int | None) -> None:
        was_active, self._epoch = self.is_active, epoch
        if self._proposals is not None:
            if epoch is None:
                self._proposals.close()
            else:
                self._proposals.open(epoch)
        if was_active != self.is_active:
            for callback in self._callbacks:
                callback(self.is_active)

    # ------------------------------------------------------------------ start, in a helper thread
    def _open(self) -> ReplicaCore:
        settings = self.settings
        if settings.tls is not None:
            self.certificates = Certificates(settings.tls, settings.self_id)
        try:
            self.directory.open(settings.cluster_id, settings.self_id)
            self.standing = load_standing(
                self.directory.standing,
                has_journal=self.directory.journal.exists(),
                bootstrap=settings.bootstrap,
            )
            journal = self._open_journal()
            try:
                return self.open_core(journal)
            except BaseException:
                journal._destroy()
                raise
        except DamagedError as error:
            self.directory.close()
            raise DamagedError(f"{error}; what to do: docs/controller-log.md, 'Power loss'") from error
        except OSError as error:  # a full or broken disk: one line, no traceback
            self.directory.close()
            where = error.filename or self.directory.path
            raise ConfigError(f"{where}: {os.strerror(error.errno or 0)}") from error
        except BaseException:
            self.directory.close()
            raise

    def open_core(self, journal: Journal) -> ReplicaCore:
        """Binds the port. Raises ConfigError; the journal stays the caller's then."""
        raise NotImplementedError

    def _open_journal(self) -> Journal:
        previous: LogEntry | None = None
        last: LogEntry | None = None
        self.ledger.former_of = self.roster.former
        if self.directory.snapshot.exists():
            snapshot = read_snapshot(self.directory.snapshot, self.settings.cluster_id)
            previous, last = snapshot.previous, snapshot.last
            self.roster.restored(last[1], snapshot.members_change())
        journal = Journal(
            self.directory.journal, fatal=self.fatal, sync=self.settings.sync, observer=self.roster
        )
        try:
            journal.align(previous, last)
            for entry in journal[:]:
                self.roster.appended(*entry)
        except BaseException:
            journal._destroy()
            raise
        return journal

    def join(self, member: Member) -> None:
        """Called by open_core() before the first tick."""
        others = frozenset(self.settings.members) - {self.self_id}
        member.roster, self.roster.changed = self.roster, member.follow_roster
        member.joining = Joining(self.self_id, others, self.standing, self._store_standing)
        member.welcomed_as = lambda: self.ledger.welcomed.get(self.self_id)
        member.welcome = self._hop_welcome

    # ------------------------------------------------------------------ raft thread
    def _store_standing(self, standing: Standing) -> None:
        try:
            save_standing(self.directory.standing, standing, sync=self.settings.sync)
        except OSError as error:
            self.fatal(EXIT_JOURNAL, f"{self.directory.standing}: {os.strerror(error.errno or 0)}")

    def _hop_welcome(self, member: str, incarnation: str) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._welcome, member, incarnation)

    def _run(self, core: ReplicaCore) -> None:
        try:
            while not self._stopping and not self._failed:
                core.doTick(core.member.wait_s())
        except FatalRaftError:
            pass  # tests only; it was reported where it happened
        except BaseException:  # noqa: BLE001 - never limp on
            with contextlib.suppress(FatalRaftError):
                self.fatal(EXIT_RAFT, f"raft thread:\n{traceback.format_exc()}")
        finally:
            with contextlib.suppress(FatalRaftError):
                core.close()

    def state_changed(self, leads: bool) -> None:
        """Hops only: an exception here would stop the library in the middle of a change."""
        core, loop = self._core, self._loop
        if core is not None and loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._on_state, leads, core.term)

    def write_snapshot(self, path: str, last: LogEntry, previous: LogEntry) -> None:
        started = time.perf_counter()
        roster_index, change = self.roster.at(last[1])
        try:
            snapshot = Snapshot(
                cluster_id=self.settings.cluster_id,
                members=tuple(sorted(name for name, _, _ in change.members)),
                last=last,
                previous=previous,
                claimed_term=self.ledger.claimed_term,
                answers=self.ledger.answers(),
                state=self.ledger.state(),
                welcomed=tuple(sorted(self.ledger.welcomed.items())),
                former=tuple(sorted(self.ledger.former)),
                roster=(roster_index, encode_change(change)),
            )
            target = self.directory.path / os.path.basename(path)
            self._snapshot_bytes = write_snapshot(target, snapshot, sync=self.settings.sync)
        except Exception:  # noqa: BLE001 - the library would go on without one
            self.fatal(EXIT_SNAPSHOT, f"cannot write {path}:\n{traceback.format_exc()}")
        self._snapshots += 1
        self._snapshot_seconds = time.perf_counter() - started
        if self._snapshot_seconds > SNAPSHOT_SLOW_S:
            logger.warning(
                "the snapshot took %.0f ms, in which no heartbeat left: followers elect after %.0f ms",
                self._snapshot_seconds * 1000,
                self.settings.election_min_s * 1000,
            )

    def read_snapshot(self) -> tuple[LogEntry, LogEntry]:
        """Also called for one that the leader sent."""
        try:
            snapshot = read_snapshot(self.directory.snapshot, self.settings.cluster_id)
            self.ledger.restore(
                snapshot.claimed_term,
                snapshot.answers,
                snapshot.state,
                snapshot.welcomed,
                snapshot.former,
            )
            self.roster.restored(snapshot.last[1], snapshot.members_change())
            return snapshot.last, snapshot.previous
        except (DamagedError, OSError) as error:
            self.fatal(EXIT_SNAPSHOT, str(error))
        except Exception:  # noqa: BLE001 - the library would run on empty
            self.fatal(EXIT_STATE_MACHINE, f"cannot restore the snapshot:\n{traceback.format_exc()}")

    def fatal(self, code: int, text: str) -> NoReturn:
        self._failed = True
        if self.settings.on_fatal is None:
            end_process(code, text)
        self.settings.on_fatal(code, text)
        raise FatalRaftError(code, text)
