"""RaftLibrary: what this package uses of pysyncobj. replicator.py implements it."""

from collections.abc import Callable, Collection
from typing import Protocol

from namesrv.plugins.controller.raft.storage.journal import Journal

Callback = Callable[[object, int], None]  # (result, reason)


class RaftLibrary(Protocol):
    """The raft state of one member. Raft thread only, except now(), wake() and submit(); reads elsewhere
    may be stale.

    `election_deadline`: when the library starts a campaign by itself, seconds of now().
    """

    election_deadline: float

    @property
    def term(self) -> int:
        """The current term."""
        ...

    @property
    def commit_index(self) -> int:
        """Index of the last entry known to be committed."""
        ...

    @property
    def last_applied(self) -> int:
        """Index of the last applied entry."""
        ...

    @property
    def log(self) -> Journal:
        """The entries since the last snapshot; never empty."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this member is the leader of the current term."""
        ...

    @property
    def leader_id(self) -> str | None:
        """The leader, as far as this member knows; None: no leader is known."""
        ...

    @property
    def has_unsent_entries(self) -> bool:
        """Leader: whether a connected member has not been sent the whole log yet."""
        ...

    def last_responses(self) -> list[float]:
        """Leader: returns when each other member last answered, in seconds of now(), in the order of ids."""
        ...

    def next_index(self, member: str) -> int:
        """Leader: returns the index of the next entry to send to this member; 0: unknown member."""
        ...

    def match_index(self, member: str) -> int:
        """Leader: returns the index of the last entry that this member is known to have; 0: unknown
        member."""
        ...

    def set_other_voters(self, others: Collection[str]) -> None:
        """Replaces the other members that majorities are counted over."""
        ...

    def learner_up(self, member: str) -> None:
        """Starts sending the log to a member without a vote."""
        ...

    def learner_down(self, member: str) -> None:
        """Stops sending the log to a member without a vote."""
        ...

    def now(self) -> float:
        """Returns monotonic seconds."""
        ...

    def wake(self) -> None:
        """Ends the poll that the raft thread waits in. Any thread."""
        ...

    def abstain(self) -> None:
        """Gives no vote in the current term, durably."""
        ...

    def finish_compaction(self, first_index: int) -> None:
        """Installs the snapshot that this tick wrote. `first_index`: of the first log entry after it."""
        ...

    def submit(self, data: bytes, callback: Callback) -> None:
        """Proposes an entry. Any thread. The callback runs in the raft thread, or never."""
        ...

    def doTick(self, time_to_wait: float, /) -> None:
        """One turn of the library; waits for input up to `time_to_wait` seconds."""
        ...

    def close(self) -> None:
        """Closes links, journal and poller."""
        ...
