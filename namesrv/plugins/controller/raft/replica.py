"""Replica: one member of the group, its thread and its files. Independent of the raft library.

Threads: start, stop, append and callbacks run in the event loop. The raft thread owns the library, the links,
the journal and the state machine; others use only RaftLibrary.submit (a thread-safe queue) and plain reads.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from keelmq.runtime.config import ConfigError
from keelmq.runtime.stop_steps import StopSteps
from namesrv.plugins.controller.raft.api import (
    EXIT_JOURNAL,
    EXIT_RAFT,
    EXIT_SNAPSHOT,
    EXIT_STATE_MACHINE,
    AppendOutcome,
    ChangeOutcome,
    NotActive,
    RaftSettings,
    StateMachine,
)
from namesrv.plugins.controller.raft.changes import Changes
from namesrv.plugins.controller.raft.codec import VoteEligibility
from namesrv.plugins.controller.raft.fenced_state_machine import Batch, FencedStateMachine, encode_batch
from namesrv.plugins.controller.raft.member import Member
from namesrv.plugins.controller.raft.membership.member_list import Address, MemberList, encode_change
from namesrv.plugins.controller.raft.membership.vote_eligibility import Joining
from namesrv.plugins.controller.raft.membership.vote_eligibility import load as load_vote_eligibility
from namesrv.plugins.controller.raft.membership.vote_eligibility import save as save_vote_eligibility
from namesrv.plugins.controller.raft.proposals import Proposals
from namesrv.plugins.controller.raft.raft_library import RaftLibrary
from namesrv.plugins.controller.raft.settings import check_settings
from namesrv.plugins.controller.raft.storage.directory import DataDirectory
from namesrv.plugins.controller.raft.storage.files import DamagedError
from namesrv.plugins.controller.raft.storage.journal import Journal, LogEntry
from namesrv.plugins.controller.raft.storage.snapshot import Snapshot, read_snapshot, write_snapshot
from namesrv.plugins.controller.raft.transport.certificates import Certificates

logger = logging.getLogger(__name__)

CLAIM_DEADLINE_S = 1.0
CLAIM_RETRY_S = 0.02
STOP_S = 5.0
SNAPSHOT_SLOW_S = 0.1


class FatalRaftError(Exception):
    """Raised instead of ending the process when RaftSettings.on_fatal is set (tests)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


def end_process(code: int, text: str) -> NoReturn:
    """Logs, flushes and exits at once, so that no handler or other thread acts on a state that may be
    wrong."""
    logger.critical("FATAL (exit code %d): %s", code, text)
    logging.shutdown()
    os._exit(code)


class Replica:
    """Implements Replicator. The adapter of the library (replicator.py) implements open_core()."""

    def __init__(self, machine: StateMachine, settings: RaftSettings) -> None:
        self.settings, self.state_machine = settings, FencedStateMachine(machine)
        self.directory = DataDirectory(settings.directory)
        self.member_list = MemberList(settings.members)
        self.certificates: Certificates | None = None
        self.member: Member  # set by open_core()
        self._core: RaftLibrary | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._proposals: Proposals | None = None
        self._changes: Changes | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[RaftLibrary] | None = None
        self._stopping = self._failed = False
        self._epoch: int | None = None
        self._callbacks: list[Callable[[bool], None]] = []
        self._snapshots = self._snapshot_bytes = 0
        self._snapshot_seconds = 0.0  # duration of the last one, in which the raft thread does nothing else

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
        """Raises ConfigError: invalid settings, a port in use, or a directory that is in use or damaged."""
        check_settings(self.settings)
        self._opening = asyncio.create_task(asyncio.to_thread(self._open))
        core = await asyncio.shield(self._opening)
        self._attach(core, asyncio.get_running_loop())
        self._thread = threading.Thread(
            target=self._run, args=(core,), name=f"raft {self.self_id}", daemon=True
        )
        self._thread.start()

    def _attach(self, core: RaftLibrary, loop: asyncio.AbstractEventLoop) -> None:
        self._core, self._loop = core, loop
        self._proposals = Proposals(
            loop,
            core.submit,
            lambda term, done: self.member.do(lambda: self.member.read_index.begin(term, done)),
            lambda: self.leader_id,
            self_id=self.self_id,
            deadline_s=self.settings.append_deadline_s,
        )
        self._changes = Changes(
            self.self_id, self.member, self._proposals, self.state_machine, lambda: self._epoch
        )

    async def stop(self) -> None:
        """Ends the thread, and closes files and connections; appends in flight are Unknown."""
        self._stopping = True
        if self._claiming is not None:
            self._claiming.cancel()
        steps = StopSteps("raft")
        steps.add("the raft thread", self._stop_thread)
        steps.add("leadership", lambda: self._set_epoch(None))
        if self._proposals is not None:
            steps.add("proposals", self._proposals.stop)
        if self._opening is None or self._opening.done():  # else the lock ends with the process
            steps.add("the data directory", self.directory.close)
        try:
            await steps.run()
        finally:
            self._core = None

    async def _stop_thread(self) -> None:
        if self._core is not None and self._thread is not None and self._thread.is_alive():
            self._core.wake()
            await asyncio.to_thread(self._thread.join, STOP_S)

    async def append(self, event: bytes) -> AppendOutcome:
        return NotActive(None) if self._proposals is None else await self._proposals.append(event)

    async def barrier(self) -> AppendOutcome:
        return NotActive(None) if self._proposals is None else await self._proposals.read()

    @property
    def request_addresses(self) -> dict[str, Address]:
        return self.member_list.request_addresses(self.settings.request_addresses)

    @property
    def added(self) -> dict[str, Address]:
        return self.member_list.added

    async def add_member(
        self, member_id: str, address: Address, request_address: Address | None = None
    ) -> ChangeOutcome:
        if self._changes is None:
            return NotActive(None)
        return await self._changes.add(member_id, address, request_address)

    async def remove_member(self, member_id: str, *, dry_run: bool = False) -> ChangeOutcome:
        if self._changes is None:
            return NotActive(None)
        return await self._changes.remove(member_id, dry_run=dry_run)

    async def transfer_leadership(self, member_id: str) -> ChangeOutcome:
        return NotActive(None) if self._changes is None else await self._changes.transfer(member_id)

    def status(self) -> dict[str, Any]:
        common: dict[str, Any] = {"selfId": self.self_id, "active": self.is_active, "epoch": self._epoch}
        if self._core is None or self._proposals is None:
            return common | {"running": False}
        core = self._core
        return {
            **common,
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
            **self.member.status(),
            **({} if self.certificates is None else self.certificates.status()),
        }

    def _on_state(self, leads: bool, term: int) -> None:
        self._set_epoch(None)
        if leads and not self._stopping and self._loop is not None:
            self._claiming = self._loop.create_task(self._claim(term))

    async def _claim(self, term: int) -> None:
        """Becomes active when our claim is applied, and with it everything acknowledged before."""
        while self._leads(term) and self._proposals is not None:
            await self._proposals.claim(term, CLAIM_DEADLINE_S)
            if self.state_machine.claimed_term == term and self._leads(term):
                self._set_epoch(term)
                return
            if self.state_machine.claimed_term > term:
                return
            await asyncio.sleep(CLAIM_RETRY_S)

    def _rejoin(self, member: str, incarnation: str) -> None:
        """Proposes the rejoin of a member that has an empty directory, and which repeats its request."""
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

    # ------------------------------------------------------------------ start, in a worker thread
    def _open(self) -> RaftLibrary:
        settings = self.settings
        if settings.tls is not None:
            self.certificates = Certificates(settings.tls, settings.self_id)
        try:
            self.directory.open(settings.cluster_id, settings.self_id)
            self.vote_eligibility = load_vote_eligibility(
                self.directory.vote_eligibility,
                has_journal=self.directory.journal.exists(),
                bootstrap=settings.bootstrap,
            )
            journal = self._open_journal()
            try:
                return self.open_core(journal)
            except BaseException:
                journal.close()
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

    def open_core(self, journal: Journal) -> RaftLibrary:
        """Sets `member`, binds the port. Raises ConfigError; the caller then closes the journal."""
        raise NotImplementedError

    def _open_journal(self) -> Journal:
        previous: LogEntry | None = None
        last: LogEntry | None = None
        self.state_machine.used_ids_of = self.member_list.used_ids
        if self.directory.snapshot.exists():
            snapshot = read_snapshot(self.directory.snapshot, self.settings.cluster_id)
            previous, last = snapshot.previous, snapshot.last
            self.member_list.restored(last[1], snapshot.member_list)
        journal = Journal(
            self.directory.journal, fatal=self.fatal, sync=self.settings.sync, observer=self.member_list
        )
        try:
            journal.align(previous, last)
            for entry in journal[:]:
                self.member_list.appended(*entry)
        except BaseException:
            journal.close()
            raise
        return journal

    def make_member(self, core: RaftLibrary) -> Member:
        """Makes the Member. For open_core(): the vote eligibility must have been read."""
        others = frozenset(self.settings.members) - {self.self_id}
        return Member(
            self.settings,
            core,
            member_list=self.member_list,
            joining=Joining(self.self_id, others, self.vote_eligibility, self._store_vote_eligibility),
            rejoined_as=lambda: self.state_machine.rejoined.get(self.self_id),
            rejoin=self._schedule_rejoin,
        )

    # ------------------------------------------------------------------ raft thread
    def _store_vote_eligibility(self, vote_eligibility: VoteEligibility) -> None:
        try:
            save_vote_eligibility(self.directory.vote_eligibility, vote_eligibility, sync=self.settings.sync)
        except OSError as error:
            self.fatal(EXIT_JOURNAL, f"{self.directory.vote_eligibility}: {os.strerror(error.errno or 0)}")

    def _schedule_rejoin(self, member: str, incarnation: str) -> None:
        self.call_in_loop(lambda: self._rejoin(member, incarnation))

    def call_in_loop(self, action: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(action)

    def _run(self, core: RaftLibrary) -> None:
        try:
            while not self._stopping and not self._failed:
                core.doTick(self.member.wait_s())
        except FatalRaftError:
            pass  # only in tests; it was reported where it was raised
        except BaseException:  # noqa: BLE001 - the member must not go on
            with contextlib.suppress(FatalRaftError):
                self.fatal(EXIT_RAFT, f"raft thread:\n{traceback.format_exc()}")
        finally:
            with contextlib.suppress(FatalRaftError):
                core.close()

    def state_changed(self, leads: bool) -> None:
        """Schedules _on_state(): an exception here would stop the library in the middle of a change."""
        if self._core is not None:
            term = self._core.term
            self.call_in_loop(lambda: self._on_state(leads, term))

    def write_snapshot(self, path: str, last: LogEntry, previous: LogEntry) -> None:
        """Writes the state as of entry `last`; EXIT_SNAPSHOT if it fails."""
        started = time.perf_counter()
        member_list_index, change = self.member_list.at(last[1])
        try:
            snapshot = Snapshot(
                cluster_id=self.settings.cluster_id,
                members=tuple(sorted(name for name, _, _ in change.members)),
                last=last,
                previous=previous,
                claimed_term=self.state_machine.claimed_term,
                state=self.state_machine.state(),
                rejoined=tuple(sorted(self.state_machine.rejoined.items())),
                used_ids=tuple(sorted(self.state_machine.used_ids)),
                member_list=(member_list_index, encode_change(change)),
            )
            target = self.directory.path / os.path.basename(path)
            self._snapshot_bytes = write_snapshot(target, snapshot, sync=self.settings.sync)
        except Exception:  # noqa: BLE001 - the library would go on without one
            self.fatal(EXIT_SNAPSHOT, f"cannot write {path}:\n{traceback.format_exc()}")
        self._snapshots += 1
        self._snapshot_seconds = time.perf_counter() - started
        if self._snapshot_seconds > SNAPSHOT_SLOW_S:
            logger.warning(
                "the snapshot took %.0f ms without a heartbeat: followers elect a leader after %.0f ms",
                self._snapshot_seconds * 1000,
                self.settings.election_min_s * 1000,
            )

    def read_snapshot(self) -> tuple[LogEntry, LogEntry]:
        """Restores the state from the snapshot file: at the start, or after the leader has sent one."""
        try:
            found = read_snapshot(self.directory.snapshot, self.settings.cluster_id)
            self.state_machine.restore(found.claimed_term, found.state, found.rejoined, found.used_ids)
            self.member_list.restored(found.last[1], found.member_list)
            return found.last, found.previous
        except (DamagedError, OSError) as error:
            self.fatal(EXIT_SNAPSHOT, str(error))
        except Exception:  # noqa: BLE001 - the library would run on empty
            self.fatal(EXIT_STATE_MACHINE, f"cannot restore the snapshot:\n{traceback.format_exc()}")

    def fatal(self, code: int, text: str) -> NoReturn:
        """Ends the process with this exit code (api.py)."""
        self._failed = True
        if self.settings.on_fatal is None:
            end_process(code, text)
        self.settings.on_fatal(code, text)
        raise FatalRaftError(code, text)
