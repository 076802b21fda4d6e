"""The replicated log on pysyncobj: the only file that imports it, and the adapter to everything in raft/.

Threads: start, stop, append and callbacks belong to the event loop. The raft thread owns the core, the links, the
journal and the ledger; only _Core.append (a thread-safe queue) and plain reads cross over.
"""

import asyncio
import contextlib
import os
import random
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import pysyncobj.journal as journal_module
import pysyncobj.pickle as codec_module
import pysyncobj.syncobj as library
from pysyncobj.config import FAIL_REASON, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj, replicated
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from namesrv.plugins.controller.raft.addresses import AddressBook, is_loopback, resolve
from namesrv.plugins.controller.raft.api import (
    AppendOutcome,
    Applied,
    Busy,
    NotActive,
    RaftSettings,
    Replicator,
    StateMachine,
)
from namesrv.plugins.controller.raft.channel import SECRET_BYTES_MIN, Channel, KeyChannel, PlainChannel
from namesrv.plugins.controller.raft.codec import decode_command, encode
from namesrv.plugins.controller.raft.directory import DataDirectory
from namesrv.plugins.controller.raft.fatal import (
    EXIT_RAFT,
    EXIT_SNAPSHOT,
    EXIT_STATE_MACHINE,
    FatalRaftError,
    end_process,
)
from namesrv.plugins.controller.raft.journal import DamagedError, Journal, LogEntry, sync_directory
from namesrv.plugins.controller.raft.ledger import Ledger
from namesrv.plugins.controller.raft.links import Links, LinkSettings
from namesrv.plugins.controller.raft.member import Member
from namesrv.plugins.controller.raft.proposals import Callback, Proposals
from namesrv.plugins.controller.raft.snapshot import Snapshot, read_snapshot, sync_file, write_snapshot
from remoting.config import ConfigError
from remoting.operation import Unknown

__all__ = [
    "AppendOutcome",
    "Applied",
    "Busy",
    "NotActive",
    "RaftReplicator",
    "RaftSettings",
    "Replicator",
    "StateMachine",
    "Unknown",
]

LIBRARY_VERSION = "0.3.17"
LEADER = 2  # pysyncobj._RAFT_STATE
COMPACTION_ENTRIES_MIN, COMPACTION_ENTRIES_SPREAD = 5_000, 2_000
COMPACTION_TIME_S = 600
APPEND_BYTES_MAX = 1024 * 1024  # one append message; our entries are smaller
COMMANDS_QUEUED_MAX = 10_000  # below the pipe's capacity, where the library raises after queueing
CLAIM_DEADLINE_S = 1.0
CLAIM_RETRY_S = 0.02
STOP_S = 5.0

_PRIVATE = "_SyncObj__"
_CORE_NAMES = (
    *("raftLog", "raftElectionDeadline", "raftCurrentTerm", "lastResponseTime"),
    *("otherNodes", "transport", "pipeNotifier", "raftState"),
)
_journals: dict[str, Journal] = {}  # opened by us, fetched by the core's constructor


def _refuse(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("pickle is disabled")


def prepare_library() -> None:
    """Check that it is the version whose private names we use, and take pickle and the journal out of it."""
    if VERSION != LIBRARY_VERSION:
        raise ConfigError(f"pysyncobj {VERSION} is installed; this release needs exactly {LIBRARY_VERSION}")
    wanted = [(library, "createJournal"), (library, "monotonicTime"), (SyncObj, "_onTick")]
    wanted += [(module, name) for module in (codec_module, journal_module) for name in ("loads", "dumps")]
    missing = [f"{owner.__name__}.{name}" for owner, name in wanted if not hasattr(owner, name)]
    if missing:
        raise ConfigError(f"pysyncobj {VERSION} is not as released, it lacks {', '.join(missing)}")
    codec_module.loads = journal_module.loads = decode_command
    codec_module.dumps = journal_module.dumps = lambda value, protocol=None: encode(value)
    codec_module.load = codec_module.dump = _refuse
    library.createJournal = _journals.pop


class _Core(SyncObj):  # type: ignore[misc]
    """The library, with our hooks around its tick. Constructed in any thread, then used by the raft thread."""

    def __init__(
        self, ledger: Ledger, fatal: Callable[[int, str], NoReturn], *args: Any, **kwargs: Any
    ) -> None:
        self._ledger, self._fatal = ledger, fatal
        self.member: Member | None = None
        super().__init__(*args, **kwargs)

    @replicated  # type: ignore[misc,untyped-decorator,unused-ignore]
    def append(self, batch: bytes) -> list[object] | None:
        """Method 0, version 0, for ever: the number is in the journal. Never raises."""
        try:
            return self._ledger.apply(batch)
        except BaseException:  # noqa: BLE001 - the library would retry it for ever
            self._fatal(EXIT_STATE_MACHINE, f"the state machine raised:\n{traceback.format_exc()}")

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
        if self.member is not None:
            self.member.before_tick()
        super()._onTick(timeToWait)

    # ------------------------------------------------------------------ what Member needs (raft.member.Core)
    def private(self, name: str) -> Any:
        return self.__dict__[_PRIVATE + name]

    @property
    def term(self) -> int:
        return int(self.raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        return int(self.raftCommitIndex)

    @property
    def last_applied(self) -> int:
        return int(self.raftLastApplied)

    @property
    def log(self) -> Journal:
        journal: Journal = self.private("raftLog")
        return journal

    @property
    def leads(self) -> bool:
        return bool(self._isLeader())

    @property
    def leader_id(self) -> str | None:
        leader = self._getLeader()
        return None if leader is None else str(leader.id)

    @property
    def election_deadline(self) -> float:
        return float(self.private("raftElectionDeadline"))

    @election_deadline.setter
    def election_deadline(self, value: float) -> None:
        self.__dict__[_PRIVATE + "raftElectionDeadline"] = value

    def last_responses(self) -> list[float]:
        """Leader: when each other member last answered, seconds of now()."""
        answered = self.private("lastResponseTime")
        return [answered.get(node, float("-inf")) for node in self.private("otherNodes")]

    def now(self) -> float:
        return float(library.monotonicTime())

    def wake(self) -> None:
        """The poll returns at once. Any thread."""
        self.private("pipeNotifier").notify()

    def check_names(self) -> None:
        missing = [name for name in _CORE_NAMES if _PRIVATE + name not in self.__dict__]
        if missing:
            raise ConfigError(f"pysyncobj {VERSION} is not as released, it lacks {', '.join(missing)}")

    def close(self) -> None:
        """Links, journal, and the pipe that the library forgets."""
        self.destroy()
        notifier = self.private("pipeNotifier")
        for name in ("_PipeNotifier__pipeR", "_PipeNotifier__pipeW"):
            with contextlib.suppress(OSError):
                os.close(getattr(notifier, name))


class _MemberTransport(Transport):  # type: ignore[misc]
    """The library's side of Member: dicts and Nodes here, messages and member ids there."""

    def __init__(self, core: _Core, member: Member, nodes: dict[str, Node]) -> None:
        super().__init__(core, None, nodes.values())
        self._member, self._nodes = member, nodes
        member.deliver = lambda name, message: self._onMessageReceived(nodes.get(name), message)
        member.connected = lambda name: self._onNodeConnected(nodes[name])
        member.disconnected = lambda name: self._onNodeDisconnected(nodes[name])

    def setOnUtilityMessageCallback(self, message: str, callback: object) -> None:  # noqa: N802
        """Admin messages do not exist here."""

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        if message["type"] == "apply_command":
            # only the leader appends: answered "not the leader" in the next tick, which is certain
            if "request_id" in message:
                self._member.later.append(
                    {
                        "type": "apply_command_response",
                        "request_id": message["request_id"],
                        "error": FAIL_REASON.NOT_LEADER,
                    }
                )
            return False
        return self._member.send(node.id, message)

    def destroy(self) -> None:
        self._member.close()


class RaftReplicator:
    """Implements Replicator. One member of a group; a group of one opens no port."""

    def __init__(self, machine: StateMachine, settings: RaftSettings) -> None:
        self._settings, self._ledger = settings, Ledger(machine)
        self._directory = DataDirectory(settings.directory)
        self._core: _Core | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._proposals: Proposals | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._stopping = self._failed = False
        self._epoch: int | None = None
        self._callbacks: list[Callable[[bool], None]] = []
        self._snapshot_bytes = 0

    # ------------------------------------------------------------------ event loop
    @property
    def is_active(self) -> bool:
        return self._epoch is not None

    @property
    def leader_id(self) -> str | None:
        return None if self._core is None else self._core.leader_id

    @property
    def self_id(self) -> str:
        return self._settings.self_id

    @property
    def epoch(self) -> int | None:
        return self._epoch

    def on_active_changed(self, callback: Callable[[bool], None]) -> None:
        self._callbacks.append(callback)

    async def start(self) -> None:
        """Raises ConfigError: bad settings, port taken, directory in use or damaged."""
        prepare_library()
        check_settings(self._settings)
        self._loop = asyncio.get_running_loop()
        core = self._core = await asyncio.to_thread(self._open)
        self._proposals = Proposals(
            self._loop,
            lambda data, callback: self._submit(core, data, callback),
            lambda: self.leader_id,
            self_id=self.self_id,
            deadline_s=self._settings.append_deadline_s,
        )
        self._thread = threading.Thread(
            target=self._run, args=(core,), name=f"raft {self.self_id}", daemon=True
        )
        self._thread.start()

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
        self._directory.close()
        self._core = None

    async def append(self, event: bytes, request_id: str | None = None) -> AppendOutcome:
        if self._proposals is None:
            return NotActive(None)
        return await self._proposals.append(request_id, event)

    async def barrier(self) -> AppendOutcome:
        if self._proposals is None:
            return NotActive(None)
        return await self._proposals.append(None, None)

    def status(self) -> dict[str, Any]:
        common = {"selfId": self.self_id, "active": self.is_active, "epoch": self._epoch}
        if self._core is None or self._proposals is None:
            return common | {"running": False}
        core, member = self._core, self._core.member
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
                "snapshotBytes": self._snapshot_bytes,
                "waiting": self._proposals.waiting,
                "outcomes": dict(self._proposals.outcomes),
            }
            | ({} if member is None else member.status())
        )

    def _on_state(self, leads: bool, term: int) -> None:
        self._set_epoch(None)
        if leads and not self._stopping and self._loop is not None:
            self._claiming = self._loop.create_task(self._claim(term))

    async def _claim(self, term: int) -> None:
        """Active only once our claim is applied: then everything acknowledged before is applied here too."""
        while self._leads(term) and self._proposals is not None:
            await self._proposals.claim(term, CLAIM_DEADLINE_S)
            if self._ledger.claimed_term == term and self._leads(term):
                self._set_epoch(term)
                return
            if self._ledger.claimed_term > term:
                return
            await asyncio.sleep(CLAIM_RETRY_S)

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

    @staticmethod
    def _submit(core: _Core, data: bytes, callback: Callback) -> None:
        core.append(data, callback=callback)

    # ------------------------------------------------------------------ start, in a helper thread
    def _open(self) -> _Core:
        settings = self._settings
        self._directory.open(settings.cluster_id, settings.self_id)
        try:
            journal = self._open_journal()
            try:
                return self._open_core(journal)
            except BaseException:
                journal._destroy()
                raise
        except BaseException:
            self._directory.close()
            raise

    def _open_journal(self) -> Journal:
        previous: LogEntry | None = None
        last: LogEntry | None = None
        if self._directory.snapshot.exists():
            snapshot = read_snapshot(self._directory.snapshot, self._settings.cluster_id)
            previous, last = snapshot.previous, snapshot.last
        journal = Journal(self._directory.journal, fatal=self._fatal, sync=self._settings.sync)
        try:
            journal.align(previous, last)
        except BaseException:
            journal._destroy()
            raise
        return journal

    def _open_core(self, journal: Journal) -> _Core:
        settings = self._settings
        member = Member(settings)
        nodes = {name: Node(name) for name in sorted(settings.members)}
        book = AddressBook(settings.members)

        def transport(core: _Core, _me: Node, _others: object) -> _MemberTransport:
            if len(nodes) > 1:
                member.links = Links(link_settings(settings, book, core.now), core._poller, member)
                member.links.listen()
            member.core, core.member = core, member
            return _MemberTransport(core, member, nodes)

        _journals[str(self._directory.journal)] = journal
        me, others = (
            nodes[settings.self_id],
            [node for name, node in nodes.items() if name != settings.self_id],
        )
        core = _Core(self._ledger, self._fatal, me, others, self._conf(), transportClass=transport)
        core.check_names()
        core.addOnTickCallback(member.after_work)
        return core

    def _conf(self) -> SyncObjConf:
        settings = self._settings
        entries = settings.compaction_entries
        if entries is None:  # spread, so that the members do not pause together
            entries = COMPACTION_ENTRIES_MIN + random.randrange(COMPACTION_ENTRIES_SPREAD)
        return SyncObjConf(
            autoTick=False,
            appendEntriesUseBatch=False,
            commandsWaitLeader=False,
            commandsQueueSize=COMMANDS_QUEUED_MAX,
            appendEntriesPeriod=settings.heartbeat_s,
            raftMinTimeout=settings.election_min_s,
            raftMaxTimeout=settings.election_max_s,
            leaderFallbackTimeout=settings.leader_fallback_s,
            connectionTimeout=settings.connection_timeout_s,
            connectionRetryTime=settings.connection_retry_s,
            appendEntriesBatchSizeBytes=APPEND_BYTES_MAX,
            journalFile=str(self._directory.journal),
            fullDumpFile=str(self._directory.snapshot),
            serializer=self._write_snapshot,
            deserializer=self._read_snapshot,
            logCompactionMinEntries=entries,
            logCompactionMinTime=COMPACTION_TIME_S,
            dynamicMembershipChange=False,
            tcp_keepalive=None,
            onStateChanged=self._state_changed,
        )

    # ------------------------------------------------------------------ raft thread
    def _run(self, core: _Core) -> None:
        try:
            while not self._stopping and not self._failed:
                core.doTick(core.member.wait_s() if core.member is not None else self._settings.tick_s)
        except FatalRaftError:
            pass  # tests only; it was reported where it happened
        except BaseException:  # noqa: BLE001 - never limp on
            with contextlib.suppress(FatalRaftError):
                self._fatal(EXIT_RAFT, f"raft thread:\n{traceback.format_exc()}")
        finally:
            with contextlib.suppress(FatalRaftError):
                core.close()

    def _state_changed(self, _old: int, new: int) -> None:
        core, loop = self._core, self._loop
        if core is not None and loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._on_state, new == LEADER, core.term)

    def _write_snapshot(self, path: str, internals: tuple[LogEntry, LogEntry, set[Node]]) -> None:
        last, previous, members = internals
        try:
            snapshot = Snapshot(
                cluster_id=self._settings.cluster_id,
                members=tuple(sorted(node.id for node in members)),
                last=last,
                previous=previous,
                claimed_term=self._ledger.claimed_term,
                answers=self._ledger.answers(),
                state=self._ledger.state(),
            )
            target = self._directory.path / os.path.basename(path)
            self._snapshot_bytes = write_snapshot(target, snapshot, sync=self._settings.sync)
        except Exception:  # noqa: BLE001 - the library would go on without one
            self._fatal(EXIT_SNAPSHOT, f"cannot write {path}:\n{traceback.format_exc()}")

    def _read_snapshot(self, _path: str) -> tuple[LogEntry, LogEntry, set[Node]]:
        try:
            path = self._directory.snapshot
            sync_file(path)
            sync_directory(path.parent)
            snapshot = read_snapshot(path, self._settings.cluster_id)
            self._ledger.restore(snapshot.claimed_term, snapshot.answers, snapshot.state)
            return snapshot.last, snapshot.previous, {Node(name) for name in snapshot.members}
        except (DamagedError, OSError) as error:
            self._fatal(EXIT_SNAPSHOT, str(error))
        except Exception:  # noqa: BLE001 - the library would run on empty
            self._fatal(EXIT_STATE_MACHINE, f"cannot restore the snapshot:\n{traceback.format_exc()}")

    def _fatal(self, code: int, text: str) -> NoReturn:
        self._failed = True
        if self._settings.on_fatal is None:
            end_process(code, text)
        self._settings.on_fatal(code, text)
        raise FatalRaftError(code, text)


def check_settings(settings: RaftSettings) -> None:
    """Raises ConfigError, one line."""
    if settings.self_id not in settings.members:
        raise ConfigError(f"raft member {settings.self_id!r} is not in {sorted(settings.members)}")
    if (
        settings.election_min_s <= 3 * settings.heartbeat_s
        or settings.election_max_s <= settings.election_min_s
    ):
        raise ConfigError("raft timers: 3 x heartbeat < election minimum < election maximum")
    if settings.connection_timeout_s < settings.election_max_s:
        raise ConfigError("raft timers: connection timeout must not be below the election maximum")
    if len(settings.members) == 1:
        return
    if settings.secret is not None:
        if len(settings.secret) < SECRET_BYTES_MIN:
            raise ConfigError(
                f"the raft secret needs at least {SECRET_BYTES_MIN} bytes, it has {len(settings.secret)}"
            )
    elif not settings.insecure:
        raise ConfigError("raft between members needs a shared secret")
    elif not all(is_loopback(host) for host, _ in settings.members.values()):
        raise ConfigError("raft without a secret is possible only when every member is on a loopback address")
    elif settings.listen_host is not None and not is_loopback(settings.listen_host):
        raise ConfigError("raft without a secret listens on a loopback address only")


def link_settings(settings: RaftSettings, book: AddressBook, now: Callable[[], float]) -> LinkSettings:
    host, port = settings.members[settings.self_id]

    def channel(dialed: bool) -> Channel:
        if settings.secret is None:
            return PlainChannel()
        return KeyChannel(settings.secret, settings.cluster_id, dialed=dialed)

    return LinkSettings(
        self_id=settings.self_id,
        members=frozenset(settings.members),
        cluster_id=settings.cluster_id,
        listen=resolve(settings.listen_host or host, port),
        connection_timeout_s=settings.connection_timeout_s,
        retry_s=settings.connection_retry_s,
        channel=channel,
        lookup=book.lookup,
        now=now,
    )
