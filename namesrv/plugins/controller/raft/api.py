"""The replicated log as the controller uses it: outcomes, settings, StateMachine and Replicator. No I/O.

An append has exactly one of four outcomes:

    Committed  committed by a majority and applied here; `result` is what the state machine returned
    NotActive  never applied: this member does not lead, or lost the leadership before it was appended
    Busy       never applied: the queue is full (QUEUED_MAX)
    Unknown    was applied, will be, or never will be
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import msgspec

from keelmq.remoting.operation import Unknown

EXIT_JOURNAL = 70  # the journal or the vote file could not be written: the disk content is unknown
EXIT_TRUNCATION = 71  # a message asked to remove committed entries
EXIT_SNAPSHOT = 72  # a snapshot could not be written or read
EXIT_STATE_MACHINE = 73  # an event made the state machine raise
EXIT_RAFT = 74  # anything else in the raft thread
"""Exit codes of a process that must not go on: after a failed write or a partly applied event, a member could
lose acknowledged changes."""

Fatal = Callable[[int, str], NoReturn]
"""Ends the process with this exit code, and logs the reason."""


class Committed(msgspec.Struct, frozen=True, gc=False):
    """Committed and applied on this member; `result` is what StateMachine.apply returned."""

    result: object


class NotActive(msgspec.Struct, frozen=True):
    """Never applied. leader_id: the leader, as far as this member knows; None: no leader is known."""

    leader_id: str | None


class Busy(msgspec.Struct, frozen=True):
    """Never applied: too many appends are queued."""


class ChangeRefused(msgspec.Struct, frozen=True):
    """A membership change that is not possible now; nothing was changed. `reason` is the error text."""

    reason: str


AppendOutcome = Committed | NotActive | Unknown | Busy
ChangeOutcome = AppendOutcome | ChangeRefused


class StateMachine(Protocol):
    """The replicated state. Raft thread; deterministic: no clock, no randomness, no I/O, no set order."""

    def apply(self, event: bytes) -> object:
        """Applies one event and returns its result, which may be a refusal. An exception ends the process."""
        ...

    def snapshot(self) -> bytes:
        """Returns the whole state. Must take well below 100 ms, in which no heartbeat is sent."""
        ...

    def restore(self, data: bytes) -> None:
        """Replaces the whole state with a snapshot() of this or another member."""
        ...


class TlsFiles(msgspec.Struct, frozen=True):
    """PEM files of one member. `certificate`: its own, with its id as DNS name, then intermediate ones."""

    certificate: Path
    key: Path
    trust: Path  # the CA, or several while one is replaced; every certificate that they issued is accepted


@dataclass(frozen=True)
class RaftSettings:
    """One member of the group. `members`: raft addresses, self_id included, the same on every member."""

    self_id: str
    members: Mapping[str, tuple[str, int]]
    directory: Path  # journal, vote, snapshot and lock; never used by another member
    cluster_id: str
    # Shared key of all members, at least SECRET_BYTES_MIN random bytes.
    secret: bytes | None = field(default=None, repr=False)
    tls: TlsFiles | None = None  # instead of the key: mutual TLS 1.3
    insecure: bool = False  # plain frames; only when every member address is loopback
    listen_host: str | None = (
        None  # bind here instead of the own member address (which may be a service name)
    )
    tick_s: float = 0.05  # resolution of the timers; sockets and appends wake the thread at once
    heartbeat_s: float = 0.1
    election_min_s: float = 0.4  # first wait for a silent leader, then election_wait.py; > 3 x heartbeat_s
    election_max_s: float = 0.8  # of the library's own timer, which does not decide
    fast_election_s: float = 0.03  # maximum election delay after the link to the leader broke; 0: disabled
    connection_timeout_s: float = 1.5
    connection_retry_s: float = 0.3
    leader_fallback_s: float = 0.8  # a leader that gets no answers from a majority for this long steps down
    append_deadline_s: float = 3.0  # after this time the outcome of an append is Unknown
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
        """Whether this member leads and has applied everything acknowledged before its own claim."""
        ...

    @property
    def leader_id(self) -> str | None:
        """The leader, as far as this member knows; it may have changed. None: no leader is known."""
        ...

    @property
    def self_id(self) -> str:
        """This member's id."""
        ...

    @property
    def epoch(self) -> int | None:
        """The claimed term; None: not active. Grows with every change of the active member."""
        ...

    @property
    def request_addresses(self) -> Mapping[str, tuple[str, int]]:
        """Addresses at which the members serve clients: from the log, else from our configuration.

        Members whose address is in neither are left out.
        """
        ...

    @property
    def added(self) -> Mapping[str, tuple[str, int]]:
        """The request addresses of members that were added by add_member(); files need not contain them."""
        ...

    async def start(self) -> None:
        """Opens port and files and starts the raft thread. Raises ConfigError: it cannot start."""
        ...

    async def stop(self) -> None:
        """Ends the thread and closes everything; appends in flight are Unknown. Raises StopError."""
        ...

    async def append(self, event: bytes) -> AppendOutcome:
        """Replicates one event."""
        ...

    async def barrier(self) -> AppendOutcome:
        """Committed(None): everything acknowledged before this call is applied here, so a read is fresh; and
        what was appended here before is applied, or never will be. Adds nothing to the log."""
        ...

    async def add_member(
        self,
        member_id: str,
        address: tuple[str, int],
        request_address: tuple[str, int] | None = None,
    ) -> ChangeOutcome:
        """Adds a member, which must be running with an empty directory.

        Committed: it is a member; or it was one already, perhaps with other addresses. request_address:
        replicated until the member is removed.
        """
        ...

    async def remove_member(self, member_id: str, *, dry_run: bool = False) -> ChangeOutcome:
        """Removes a member, never the active one. Committed: it is not a member. dry_run: makes every check
        and proposes nothing; Committed: it would be removed."""
        ...

    async def transfer_leadership(self, member_id: str) -> ChangeOutcome:
        """Makes that member the leader. Committed: it leads. Queued appends are NotActive then."""
        ...

    def on_active_changed(self, callback: Callable[[bool], None]) -> None:
        """Registers a callback: called in the event loop with is_active. Call this before start()."""
        ...

    def call_in_loop(self, action: Callable[[], object]) -> None:
        """Runs `action` in the event loop, before the outcome of the append that is being applied. For the
        StateMachine, in the raft thread. After stop() it is not run."""
        ...

    def status(self) -> dict[str, Any]:
        """Returns plain values for health and metrics."""
        ...
