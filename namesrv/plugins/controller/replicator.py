# mypy: disable-error-code="no-untyped-call, untyped-decorator"
"""RaftReplicator: the replicated log on pysyncobj, and the adapter to raft/. The only file that imports it.

pysyncobj has no types, and no public interface to much of what must be corrected. So the exact version is
pinned, every private name is checked at the start, and this file only translates; the logic is in raft/.
"""

import contextlib
import os
import random
import threading
import time
import traceback
from collections.abc import Callable, Collection
from typing import Any, NoReturn

# In front of pysyncobj, which would load cryptography.
import namesrv.plugins.controller.raft.without_encryption  # noqa: F401

# isort: split
import pysyncobj.journal
import pysyncobj.pickle
import pysyncobj.serializer
import pysyncobj.syncobj
from pysyncobj.config import FAIL_REASON, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj, replicated
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from keelmq.remoting.operation import Unknown
from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.raft.api import (
    EXIT_SNAPSHOT,
    EXIT_STATE_MACHINE,
    AppendOutcome,
    Busy,
    ChangeRefused,
    Committed,
    NotActive,
    RaftSettings,
    Replicator,
    StateMachine,
)
from namesrv.plugins.controller.raft.codec import decode_command, encode
from namesrv.plugins.controller.raft.fenced_state_machine import FencedStateMachine
from namesrv.plugins.controller.raft.member import Member
from namesrv.plugins.controller.raft.raft_library import Callback
from namesrv.plugins.controller.raft.replica import Replica
from namesrv.plugins.controller.raft.settings import link_settings
from namesrv.plugins.controller.raft.storage.files import rename_durably
from namesrv.plugins.controller.raft.storage.journal import Journal, LogEntry
from namesrv.plugins.controller.raft.transport.addresses import AddressBook
from namesrv.plugins.controller.raft.transport.links import Links

__all__ = [
    "AppendOutcome",
    "Busy",
    "ChangeRefused",
    "Committed",
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

_library: Any = pysyncobj.syncobj
if hasattr(_library, "monotonicTime"):  # otherwise prepare_library() refuses the library
    _library.monotonicTime = time.monotonic  # its own takes three times as long, and is called very often
_serializer: Any = pysyncobj.serializer
_codecs: tuple[Any, ...] = (pysyncobj.pickle, pysyncobj.journal)
_PRIVATE = "_SyncObj__"
_CORE_NAMES = (
    *("raftLog", "raftElectionDeadline", "raftCurrentTerm", "lastResponseTime"),
    *("raftNextIndex", "raftMatchIndex", "connectedNodes", "readonlyNodes"),
    *("otherNodes", "transport", "pipeNotifier", "raftState", "needLoadDumpFile"),
)
_SET_TERM = _PRIVATE + "setCurrentTerm"
_COMPACT = _PRIVATE + "tryLogCompaction"
_SEND_APPENDS = _PRIVATE + "sendAppendEntries"
_PIPE_NAMES = ("_PipeNotifier__pipeR", "_PipeNotifier__pipeW")
_journals: dict[str, Journal] = {}  # opened by us, fetched by the core's constructor


def prepare_library() -> None:
    """Checks the version and the private names, and replaces pickle and the journal. Raises ConfigError."""
    if VERSION != LIBRARY_VERSION:
        raise ConfigError(f"pysyncobj {VERSION} is installed; this release needs exactly {LIBRARY_VERSION}")
    needed = [
        (_library, "createJournal"),
        (_library, "monotonicTime"),
        (SyncObj, "_onTick"),
        (SyncObj, _SET_TERM),
        (SyncObj, _COMPACT),
        (SyncObj, _SEND_APPENDS),
    ]
    needed += [(module, name) for module in _codecs for name in ("loads", "dumps")]
    _refuse_missing(f"{owner.__name__}.{name}" for owner, name in needed if not hasattr(owner, name))
    for module in _codecs:
        module.loads, module.dumps = decode_command, lambda value, protocol=None: encode(value)
    _codecs[0].load = _codecs[0].dump = _no_pickle
    _library.createJournal = _journals.pop
    _serializer.atomicReplace = rename_durably


def _refuse_missing(names: Any) -> None:
    missing = ", ".join(names)
    if missing:
        raise ConfigError(f"pysyncobj {VERSION} differs from the released version: it lacks {missing}")


def _no_pickle(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("pickle is disabled")


class _Node(Node):
    """Equal only to itself, which costs no call: the library hashes nodes several times for each message."""

    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__


class _Nodes(dict[str, _Node]):
    """The only Node of each member id, made at its first use."""

    def __missing__(self, name: str) -> _Node:
        node = self[name] = _Node(name)
        return node


class _Core(SyncObj):
    """The library with hooks around its tick. Implements RaftLibrary."""

    member: Member
    nodes: _Nodes
    _SyncObj__raftLog: Journal
    _SyncObj__raftElectionDeadline: float
    _SyncObj__needLoadDumpFile: bool
    _set_term: Any = getattr(SyncObj, _SET_TERM, None)
    _compact: Any = getattr(SyncObj, _COMPACT, None)
    _send_appends: Any = getattr(SyncObj, _SEND_APPENDS, None)

    def __init__(
        self,
        state_machine: FencedStateMachine,
        fatal: Callable[[int, str], NoReturn],
        *args: object,
        **kwargs: object,
    ) -> None:
        self._state_machine, self._fatal = state_machine, fatal
        self._pipe_lock, self._pipe_closed = threading.Lock(), False
        super().__init__(*args, **kwargs)
        _refuse_missing(name for name in _CORE_NAMES if _PRIVATE + name not in self.__dict__)
        _refuse_missing(name for name in _PIPE_NAMES if not hasattr(self._private("pipeNotifier"), name))

    @replicated
    def append(self, batch: bytes) -> list[object] | None:
        """Method 0, version 0: the numbers are in every journal, so they must not change. Never raises."""
        try:
            return self._state_machine.apply(batch)
        except BaseException:  # noqa: BLE001 - the library would retry it for ever
            self._fatal(EXIT_STATE_MACHINE, f"the state machine raised:\n{traceback.format_exc()}")

    def submit(self, data: bytes, callback: Callback) -> None:
        """Queues an entry. After close() it does nothing, and the proposal ends at its deadline."""
        with self._pipe_lock:
            if not self._pipe_closed:
                self.append(data, callback=callback)

    def _onTick(self, timeToWait: float = 0.0) -> None:
        if self._SyncObj__needLoadDumpFile:
            super()._onTick(0.0)  # the snapshot must be loaded before anything else
        else:
            self.member.before_tick()
            super()._onTick(timeToWait)

    def _SyncObj__sendAppendEntries(self) -> None:
        """Replaces the library's method: Member decides whether appends must be sent."""
        if self.member.must_append():
            self._send_appends()

    def finish_compaction(self, first_index: int) -> None:
        """Called in the tick that wrote the snapshot: until it is installed, the library sends only "pending"
        frames to a member that needs it."""
        self._compact()
        if self.log[0][1] != first_index:  # the library would try again at every tick
            self._fatal(EXIT_SNAPSHOT, "cannot put the snapshot into place: the reason is logged above")

    def wake(self) -> None:
        """Ends the poll. Any thread, even after close(): without the lock a write could reach another file
        that has got the pipe's descriptor number."""
        with self._pipe_lock:
            if not self._pipe_closed:
                self._private("pipeNotifier").notify()

    def close(self) -> None:
        """Closes links, journal and the pipe, which the library leaves open."""
        self.destroy()
        with self._pipe_lock:
            self._pipe_closed = True
            for name in _PIPE_NAMES:
                with contextlib.suppress(OSError):
                    os.close(getattr(self._private("pipeNotifier"), name))

    def now(self) -> float:
        now: float = _library.monotonicTime()
        return now

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
        return self._SyncObj__raftLog

    @property
    def leads(self) -> bool:
        return bool(self._isLeader())

    @property
    def leader_id(self) -> str | None:
        leader = self._getLeader()
        return None if leader is None else str(leader.id)

    def abstain(self) -> None:
        """Gives this term's vote to itself, durably, so that no other member gets it."""
        self._set_term(self.term, self.selfNode.id)

    @property
    def election_deadline(self) -> float:
        return self._SyncObj__raftElectionDeadline

    @election_deadline.setter
    def election_deadline(self, value: float) -> None:
        self.__dict__[_PRIVATE + "raftElectionDeadline"] = value

    def next_index(self, member: str) -> int:
        return int(self._private("raftNextIndex").get(self.nodes[member], 0))

    def match_index(self, member: str) -> int:
        return int(self._private("raftMatchIndex").get(self.nodes[member], 0))

    def set_other_voters(self, others: Collection[str]) -> None:
        """Does what the library's own membership entries would do; they are disabled because they are
        pickles."""
        peers, mine = {self.nodes[name] for name in others}, self._private("otherNodes")
        for node in sorted(mine - peers, key=lambda node: node.id):
            mine.discard(node)
            for name in ("raftNextIndex", "raftMatchIndex", "lastResponseTime"):
                self._private(name).pop(node, None)
            self._private("connectedNodes").discard(node)
        for node in sorted(peers - mine, key=lambda node: node.id):
            mine.add(node)
            self._private("readonlyNodes").discard(node)
            self._private("raftNextIndex").setdefault(node, self.log[-1][1] + 1)
            self._private("raftMatchIndex").setdefault(node, 0)
            self._private("lastResponseTime").setdefault(node, self.now())

    def learner_up(self, member: str) -> None:
        """A learner is a read-only node of the library: it receives the log, but majorities do not count
        it."""
        self._private("transport")._onReadonlyNodeConnected(self.nodes[member])

    def learner_down(self, member: str) -> None:
        if self.nodes[member] in self._private("readonlyNodes"):
            self._private("transport")._onReadonlyNodeDisconnected(self.nodes[member])

    @property
    def has_unsent_entries(self) -> bool:
        last, next_index = self.log[-1][1], self._private("raftNextIndex")
        return any(next_index.get(node, 0) <= last for node in self._private("connectedNodes"))

    def last_responses(self) -> list[float]:
        """Leader: when each other member last answered, seconds of now(), in the order of their ids."""
        answered = self._private("lastResponseTime")
        others = sorted(self._private("otherNodes"), key=lambda node: node.id)
        return [answered.get(node, float("-inf")) for node in others]

    def _private(self, name: str) -> Any:
        return self.__dict__[_PRIVATE + name]


class _MemberTransport(Transport):
    """The library's transport, on top of Member: translates between Nodes and member ids."""

    def __init__(self, core: _Core, member: Member, nodes: _Nodes) -> None:
        super().__init__(core, None, [])
        self._member = member
        member.deliver = lambda name, message: self._onMessageReceived(nodes[name], message)
        member.connected = lambda name: self._onNodeConnected(nodes[name])
        member.disconnected = lambda name: self._onNodeDisconnected(nodes[name])

    def setOnUtilityMessageCallback(self, message: str, callback: object) -> None:
        """Does nothing: the library's admin messages are not supported."""

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        if message["type"] != "apply_command":
            return self._member.send(node.id, message)
        if (
            "request_id" in message
        ):  # only the leader appends: refused in the next tick, certainly not applied
            refusal = {"request_id": message["request_id"], "error": FAIL_REASON.NOT_LEADER}
            self._member.later.append({"type": "apply_command_response"} | refusal)
        return False

    def destroy(self) -> None:
        self._member.close()


class RaftReplicator(Replica):
    """Implements Replicator with pysyncobj. A group of one member opens no port."""

    def open_core(self, journal: Journal) -> _Core:
        prepare_library()
        settings, nodes = self.settings, _Nodes()

        def transport(core: _Core, _me: Node, _others: object) -> _MemberTransport:
            core.nodes = nodes
            member = core.member = self.member = self.make_member(core)
            self.member_list.changed = member.apply_member_list
            if len(settings.members) > 1:
                member.links = self.open_links(core, member)
            return _MemberTransport(core, member, nodes)

        _journals[str(self.directory.journal)] = journal
        others = [nodes[name] for name in sorted(self.member_list.members) if name != self.self_id]
        core = _Core(
            *(self.state_machine, self.fatal, nodes[self.self_id], others, self._conf(nodes)),
            transportClass=transport,
        )
        self.member.apply_member_list()
        core.addOnTickCallback(self.member.after_work)
        if not others:
            core.election_deadline = core.now()  # a group of one need not wait
        return core

    def open_links(self, core: _Core, member: Member) -> Links:
        """Opens the raft port. Raises ConfigError."""
        wiring = link_settings(self.settings, self.certificates, AddressBook(self.settings.members), core.now)
        links = Links(wiring, core._poller, member)
        links.listen()
        return links

    def _conf(self, nodes: _Nodes) -> SyncObjConf:
        settings = self.settings
        entries = settings.compaction_entries
        if entries is None:  # random, so that the members do not pause at the same time
            entries = COMPACTION_ENTRIES_MIN + random.randrange(COMPACTION_ENTRIES_SPREAD)

        def write_snapshot(path: str, internals: tuple[LogEntry, LogEntry, object]) -> None:
            self.write_snapshot(path, last=internals[0], previous=internals[1])
            self.member.snapshot_index = internals[1][1]

        def read_snapshot(_path: str) -> tuple[LogEntry, LogEntry, set[Node]]:
            return (*self.read_snapshot(), set(nodes.values()))

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
            journalFile=str(self.directory.journal),
            fullDumpFile=str(self.directory.snapshot),
            serializer=write_snapshot,
            deserializer=read_snapshot,
            logCompactionMinEntries=entries,
            logCompactionMinTime=COMPACTION_TIME_S,
            dynamicMembershipChange=False,
            tcp_keepalive=None,
            onStateChanged=lambda _old, new: self.state_changed(new == LEADER),
        )
