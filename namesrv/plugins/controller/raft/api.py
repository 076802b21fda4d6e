"""The replicated log as the controller uses it: outcomes, settings, StateMachine and Replicator. No I/O.

An append has exactly one of four outcomes:

    Committed  committed by a majority and applied here; `result` is what the state machine returned
    NotActive  never applied: this member does not lead, or stopped leading before it was appended
    Busy       never applied: the queue is full (QUEUED_MAX)
    Unknown    may have been applied, or may be later: repeat with the same request id
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from keelmq.remoting.operation import Unknown


class Committed(msgspec.Struct, frozen=True, gc=False):
    """Committed and applied on this member; `result` is what StateMachine.apply returned."""

    result: object


@dataclass(frozen=True, slots=True)
class NotActive:
    """Never applied. leader_id: the leader as far as this member knows; None: no leader is known."""

    leader_id: str | None


@dataclass(frozen=True, slots=True)
class Busy:
    """Never applied: too many appends are queued."""


@dataclass(frozen=True, slots=True)
class ChangeRefused:
    """A membership change that is not possible now; nothing was changed. `reason` is for people."""

    reason: str


AppendOutcome = Committed | NotActive | Unknown | Busy
ChangeOutcome = AppendOutcome | ChangeRefused


class StateMachine(Protocol):
    """The replicated state. Raft thread; deterministic: no clock, no randomness, no I/O, no set order."""

    def apply(self, event: bytes) -> object:
        """Total: refusals are results. An exception here ends the process (EXIT_STATE_MACHINE).

        With a request id the result is replicated too (table of answers), so it must then be made of None,
        bool, int, str, bytes, tuple and dict only.
        """
        ...

    def snapshot(self) -> bytes:
        """Returns the whole state. Takes well under 100 ms: no heartbeat leaves meanwhile."""
        ...

    def restore(self, data: bytes) -> None:
        """Replaces the whole state by a snapshot() of this or another member."""
        ...


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of one member. `certificate`: its own, which names it as DNS name, then intermediate ones."""

    certificate: Path
    key: Path
    trust: Path  # the CA, or several while one is replaced; every certificate of it is accepted


@dataclass(frozen=True)
class RaftSettings:
    """One member of the group. `members`: raft addresses, self_id included, the same on every member."""

    self_id: str
    members: Mapping[str, tuple[str, int]]
    directory: Path  # journal, vote, snapshot and lock; belongs to one member for ever
    cluster_id: str
    secret: bytes | None = None  # shared key of all members, at least SECRET_BYTES_MIN random bytes
    tls: TlsFiles | None = None  # instead of the key: mutual TLS 1.3
    insecure: bool = False  # plain frames; only when every member address is loopback
    listen_host: str | None = (
        None  # bind here instead of the own member address (which may be a service name)
    )
    tick_s: float = 0.05  # bounds timers only: sockets and appends wake the tick
    heartbeat_s: float = 0.1
    election_min_s: float = 0.4  # must be above 3 x heartbeat_s
    election_max_s: float = 0.8
    fast_election_s: float = 0.12  # election delay after the connection to the leader broke; 0: not used
    connection_timeout_s: float = 1.5
    connection_retry_s: float = 0.3
    leader_fallback_s: float = 0.8  # a leader that no majority answers steps down
    append_deadline_s: float = 3.0  # later an append is Unknown
    compaction_entries: int | None = (
        None  # None: 5,000 + random(2,000), so that members do not pause together
    )
    bootstrap: bool = False  # True: this group is new, start it although not every member is there
    sync: bool = True  # False: no fdatasync (tests and benches only)
    request_addresses: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Addresses at which the members answer clients (Replicator.request_addresses); not used by raft."""
    on_fatal: Callable[[int, str], None] | None = (
        None  # tests only; None: the process ends with the exit code
    )


class Replicator(Protocol):
    """The log as handlers use it. Event loop only, except call_in_loop()."""

    @property
    def is_active(self) -> bool:
        """This member leads and has applied everything acknowledged before its own claim."""
        ...

    @property
    def leader_id(self) -> str | None:
        """The leader as far as this member knows; it may be another one by now."""
        ...

    @property
    def self_id(self) -> str:
        """This member's id."""
        ...

    @property
    def epoch(self) -> int | None:
        """Claimed term; None while not active. Grows with every change of the active member."""
        ...

    @property
    def request_addresses(self) -> Mapping[str, tuple[str, int]]:
        """Addresses at which the members answer clients: from the log, else from our configuration.

        Removed members, and members in neither, are left out.
        """
        ...

    @property
    def added(self) -> Mapping[str, tuple[str, int]]:
        """The request addresses of members that came by add_member, which no configuration file names."""
        ...

    async def start(self) -> None:
        """Opens port and files and starts the raft thread. Raises ConfigError: it cannot start."""
        ...

    async def stop(self) -> None:
        """Ends the thread and closes everything; appends in flight are Unknown. Raises StopError."""
        ...

    async def append(self, event: bytes, request_id: str | None = None) -> AppendOutcome:
        """Replicates one event. A repeated request_id returns the first result and is not applied again."""
        ...

    async def barrier(self) -> AppendOutcome:
        """Committed(None): everything acknowledged before this call is applied here, so a read is fresh."""
        ...

    async def add_member(
        self,
        member_id: str,
        address: tuple[str, int],
        request_address: tuple[str, int] | None = None,
    ) -> ChangeOutcome:
        """Adds a member, which must be running with an empty directory.

        Committed: it is a member, or was one before, perhaps at other addresses. request_address: replicated,
        and forgotten when the member is removed.
        """
        ...

    async def remove_member(self, member_id: str) -> ChangeOutcome:
        """Removes a member, never the active one. Committed: it is not a member."""
        ...

    async def transfer_leadership(self, member_id: str) -> ChangeOutcome:
        """Committed: that member leads now. Appends that waited meanwhile are NotActive."""
        ...

    def on_active_changed(self, callback: Callable[[bool], None]) -> None:
        """Called in the event loop with True/False. Register before start()."""
        ...

    def call_in_loop(self, action: Callable[[], object]) -> None:
        """Runs `action` in the event loop, after everything that was applied before this call and before the
        outcome of the append that is being applied. For StateMachine: raft thread. Not run after stop()."""
        ...

    def status(self) -> dict[str, Any]:
        """Returns plain values for health and metrics."""
        ...
