"""The isolation lease: until when a master may acknowledge, regardless of the other brokers (design S2).

A master that is cut off is deposed after controllerHeartBeatTimeoutMills, without notice. So it stops
acknowledging before that, unless it knows that no other broker can have been elected. It knows that in one of
two ways:

    heard by the controllers    the controller that led when it was asked has answered each heartbeat since;
                                it waits a whole timeout after the last one, a later leader its grace period
    heard by its slaves         every other member of the SyncStateSet, in force or proposed, was heard lately
                                over an open link, so lately that it cannot have begun a term since:
                                core/report_lease.py says how long that is. What waited in the kernel while
                                this process was stopped was not heard (core/pauses.py)

Either is enough: while the controllers are down, the slaves are heard; while a slave is lost, the controllers
are heard (and remove it from the set). A master that is the only member has no transfer target. All times are
of this machine's monotonic clock and count from when we *sent* what was answered: clocks are never compared
with each other, only their rates, and MARGIN allows for those.

Invariant (property test): while controllers_end_ms() is ahead, no controller has deposed us.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

MARGIN = 10
"""A tenth of each term is not used: for clocks that run at different rates, and for the time from the check
to the socket."""
GRACE_MS = 3_000
"""Default of controllerGraceMs: how long a new leader considers a master alive that timed out before."""


class ReplicaLink(Protocol):
    """The state of a slave's open link (MasterLink)."""

    @property
    def heard_ms(self) -> int:
        """When the slave is known to have sent something last (PauseDetector)."""
        ...

    @property
    def pulls_metadata(self) -> bool:
        """Whether it is a KeelMQ slave, which keeps the second rule of core/report_lease.py."""
        ...


class ReplicaLeases(NamedTuple):
    """For how many ms after its arrival a slave's report counts; 0: not at all."""

    keelmq_ms: int
    foreign_ms: int


class Lease:
    """Computes the end of the lease from the facts below."""

    def __init__(self, *, timeout_ms: int, replica_leases: ReplicaLeases) -> None:
        """timeout_ms: the heartbeat timeout that we give the controllers."""
        self._heard: dict[str, tuple[int, int]] = {}  # since when without a break, and the latest
        self._proof: tuple[str, int] | None = None
        self._not_before_ms = 0  # heartbeats that were sent earlier had a shorter timeout
        self._set(timeout_ms, replica_leases)

    def _set(self, timeout_ms: int, replica_leases: ReplicaLeases) -> None:
        self._timeout_ms = timeout_ms - timeout_ms // MARGIN
        grace_ms = min(timeout_ms, GRACE_MS)
        self._grace_ms = grace_ms - grace_ms // MARGIN
        self._replica_leases = replica_leases

    def configure(self, *, timeout_ms: int, replica_leases: ReplicaLeases, since_ms: int) -> None:
        """Changes the times. since_ms: heartbeats that were sent from then on had this timeout.

        A shorter timeout counts at once. A longer one must be given when the old one has passed since
        since_ms: then no earlier heartbeat can still count, and they are forgotten here.
        """
        if timeout_ms - timeout_ms // MARGIN > self._timeout_ms:
            self._not_before_ms = since_ms
            self._heard = {each: heard for each, heard in self._heard.items() if heard[1] >= since_ms}
        self._set(timeout_ms, replica_leases)

    def heartbeat_answered(self, controller: str, sent_ms: int, now_ms: int) -> None:
        """The controller has heard us at sent_ms or later.

        If a whole timeout may have passed for it since the heartbeat before, it may have deposed us in
        between, and only its later statements count.
        """
        if sent_ms < self._not_before_ms:
            return
        since_ms, latest_ms = self._heard.get(controller, (now_ms, 0))
        if now_ms >= latest_ms + self._timeout_ms:
            since_ms = now_ms
        self._heard[controller] = (since_ms, max(sent_ms, latest_ms))

    def confirmed(self, controller: str, asked_ms: int) -> None:
        """This controller led, and we were its master, at asked_ms or later."""
        self._proof = (controller, asked_ms)

    def connection_lost(self, controller: str) -> None:
        """The controller suspects us from the moment at which it detects the loss."""
        self._heard.pop(controller, None)
        if self._proof is not None and self._proof[0] == controller:
            self._proof = None

    def controllers_end_ms(self) -> int:
        """Returns when the controllers' part of the lease ends; 0: the leader is unknown."""
        if self._proof is None or self._proof[0] not in self._heard:
            return 0
        controller, asked_ms = self._proof
        since_ms, latest_ms = self._heard[controller]
        if asked_ms < since_ms:
            return 0
        return min(latest_ms + self._timeout_ms, asked_ms + self._grace_ms)

    def is_over(
        self, now_ms: int, transfer_targets: Collection[int], links: Mapping[int, ReplicaLink]
    ) -> bool:
        """Returns whether nothing may be acknowledged. links: of each connected slave, by broker id.

        Called for every acknowledgement, so the transfer targets come first: while all of them are heard, the
        controllers do not matter.
        """
        keelmq_ms, foreign_ms = self._replica_leases
        for transfer_target in transfer_targets:
            link = links.get(transfer_target)
            if link is None or now_ms >= link.heard_ms + (keelmq_ms if link.pulls_metadata else foreign_ms):
                return now_ms >= self.controllers_end_ms()
        return False
