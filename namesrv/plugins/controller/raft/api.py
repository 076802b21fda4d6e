"""What the controller sees of its replicated log: outcomes, settings and two protocols. No I/O here.

An append ends in exactly one of four ways, and only two of them are certain:

    Applied    committed by a majority and applied here; `result` is what the state machine answered
    NotActive  surely not applied, ever: this member does not lead, or stopped leading before it was appended
    Busy       surely not applied: the waiting queue is full (QUEUED_MAX)
    Unknown    may have been applied, or may be later: ask again with the same request id
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from remoting.operation import Unknown


class Applied(msgspec.Struct, frozen=True, gc=False):
    """Committed and applied on this member; `result` is what StateMachine.apply returned."""

    result: object


@dataclass(frozen=True, slots=True)
class NotActive:
    """Surely not applied. leader_id: the member that leads as far as we know, None while there is none."""

    leader_id: str | None


@dataclass(frozen=True, slots=True)
class Busy:
    """Surely not applied: too many appends are waiting already."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A change of the group that is not possible now; nothing happened. `reason` is for people."""

    reason: str


AppendOutcome = Applied | NotActive | Unknown | Busy
ChangeOutcome = AppendOutcome | Refused


class StateMachine(Protocol):
    """Replicated state. Runs in the raft thread; deterministic: no clock, no dice, no I/O, no set order."""

    def apply(self, event: bytes) -> object:
        """Total: refusals are results. An exception here ends the process (EXIT_STATE_MACHINE).

        With a request id the result is replicated too (table of answers), so it must then be made of None,
        bool, int, str, bytes, tuple and dict only.
        """
        ...

    def snapshot(self) -> bytes:
        """The whole state. Takes well under 100 ms: followers count the pause as silence."""
        ...

    def restore(self, data: bytes) -> None:
        """Replace the whole state by what snapshot() wrote, here or on another member."""
        ...


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of one member. `certificate`: its own, which names it as DNS name, then intermediate ones."""

    certificate: Path
    key: Path
    trust: Path  # the CA, or several while one is replaced; whoever has a certificate of it is let in


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
    """Where clients ask the members: not for raft, told to everybody by Replicator.request_addresses."""
    on_fatal: Callable[[int, str], None] | None = (
        None  # tests only; None: the process ends with the exit code
    )


class Replicator(Protocol):
    """The log as handlers use it. Everything is called in the event loop that called start()."""

    @property
    def is_active(self) -> bool:
        """This member leads and has applied everything acknowledged before its own claim."""
        ...

    @property
    def leader_id(self) -> str | None:
        """Best guess; may be stale, never a promise."""
        ...

    @property
    def self_id(self) -> str: ...

    @property
    def epoch(self) -> int | None:
        """Claimed term; None while not active. Grows with every change of the active member."""
        ...

    @property
    def request_addresses(self) -> Mapping[str, tuple[str, int]]:
        """Where clients ask the members, by the log, and else by our configuration: who is in neither is
        left out, and so is who was removed."""
        ...

    @property
    def added(self) -> Mapping[str, tuple[str, int]]:
        """Those of them that came by add_member: configurations elsewhere do not know them."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def append(self, event: bytes, request_id: str | None = None) -> AppendOutcome:
        """Replicate one event. Same request_id again: the first answer, not a second application."""
        ...

    async def barrier(self) -> AppendOutcome:
        """Applied(None) when everything acknowledged before this call is applied here: fresh reads."""
        ...

    async def add_member(
        self,
        member_id: str,
        address: tuple[str, int],
        request_address: tuple[str, int] | None = None,
    ) -> ChangeOutcome:
        """One more member; it must be running, with an empty directory. Applied: it is one, or was before,
        perhaps at other addresses. request_address: replicated, and forgotten when it is removed."""
        ...

    async def remove_member(self, member_id: str) -> ChangeOutcome:
        """One member less; never the active one. Applied: it is none any more."""
        ...

    async def transfer_leadership(self, member_id: str) -> ChangeOutcome:
        """Applied: that member leads now. Appends that wait meanwhile are NotActive."""
        ...

    def on_active_changed(self, callback: Callable[[bool], None]) -> None:
        """Called in the event loop with True/False. Register before start()."""
        ...

    def status(self) -> dict[str, Any]:
        """Plain values for health, metrics and people."""
        ...
