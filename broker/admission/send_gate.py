"""The send gate: whether this broker accepts messages now, and if not, why.

The one place for refusals that concern the whole broker and not one message: role, a failed or full disk, a
shutdown, brokerPermission, startAcceptSendRequestTimeStamp, minInSyncReplicas, overload. The fast path reads
one flag, `accepts_all`, for all of them. The gate computes that flag each time an input changes, by the rules
from which the slow path and readiness get the reason. So a new rule goes into `refuse_first` or
`refuse_last`, and nowhere else.

Refusals of one message (its size, topic or properties) are not here: see broker/handlers/slow_path_sends.py.
Source: RocketMQ 5.3.3 SendMessageProcessor.preSend, DefaultMessageStore.checkStoreStatus.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from broker.admission.fast_path import FastPathPeer
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError
from keelmq.runtime.clock import now_ms, wall_ms

NOT_AVAILABLE: Final = "service not available now"
CUT_OFF: Final = f"{NOT_AVAILABLE}: this master hears neither the controllers nor its in-sync replicas"

ROLE: Final = "role"
"""Reason to close the gate: this broker is not master, or is becoming it."""
STOPPING: Final = "stopping"
DISK: Final = "disk"
DISK_FULL: Final = "disk-full"
HAND_OVER: Final = "hand-over"


class ClosedBy(NamedTuple):
    """What a broker does while its gate is closed for one reason. role_is_settled: it has a role, so a master
    goes on to register with the name servers, and consumers find it. hands_over: a master gives its role to a
    member of the SyncStateSet. heartbeats: it may be elected. alert: the rule of deploy/prometheus that
    fires; empty: none, because the reason lasts for a moment or is no fault."""

    role_is_settled: bool
    hands_over: bool
    heartbeats: bool
    alert: str


REASONS: Final[Mapping[str, ClosedBy]] = {
    ROLE: ClosedBy(False, False, True, "KeelmqGroupWithoutMaster"),
    HAND_OVER: ClosedBy(False, False, True, ""),  # its target may be master already
    STOPPING: ClosedBy(True, False, True, "KeelmqDown"),  # it has handed over before: PlannedStop
    DISK: ClosedBy(True, True, False, "KeelmqDiskFull"),
    DISK_FULL: ClosedBy(True, True, True, "KeelmqDiskFull"),
}
"""Every reason that closes the gate. docs/replication.md has them as a table, with those that refuse messages
while the gate is open."""

GATHER_MS: Final = 2_000
"""How long after the beginning of a term a master with too few replicas in sync waits for them: they have
just lost their master, too. Below the clients' timeout of 3 s."""

HoldOrForward: TypeAlias = Callable[[Any, bytes, FastPathPeer], bool]
"""(send command, body, connection) -> True if it accepts the message and answers later."""


class PutRefused(NamedTuple):
    """A refusal: the response code (ResponseCode) and the remark that the client gets."""

    code: int
    remark: str


class SendGate:
    """Owned by the event loop's thread.

    Several components close the gate, each for its own reason (ROLE, DISK ...). `writable`: none of them has
    closed it. `accepts_all`: no rule refuses anything now, so a plain message needs no further check of the
    broker's state. `wait`: replies are held back until the message is as safe as the settings ask for.
    `lease`: (now_ms) -> True if this master must not acknowledge anything any more (core/lease.py).
    `hold_or_forward`: accepts a message while the gate is closed or gathering, or returns False.
    """

    __slots__ = (
        "_accept_from_ms", "_closed", "_gather_until_ms", "_in_sync", "_min_in_sync", "_overload",
        "_permits_write",
        "accepts_all", "hold_or_forward", "lease", "remark", "wait", "writable",
    )  # fmt: skip

    def __init__(
        self,
        *,
        wait: bool,
        permits_write: bool,
        accept_from_ms: int,
        min_in_sync: int = 1,
        lease: Callable[[int], bool] | None = None,
        hold_or_forward: HoldOrForward | None = None,
    ) -> None:
        """Makes a gate that is closed for ROLE. permits_write, accept_from_ms: as in configure(). A broker
        without controller mode has neither lease nor hold_or_forward."""
        self._closed = {ROLE: "the broker is not master yet"}
        self._permits_write, self._accept_from_ms = permits_write, accept_from_ms
        self._in_sync, self._min_in_sync = 1, min_in_sync
        self._gather_until_ms = 0
        self._overload = 0
        self.wait = wait
        self.lease, self.hold_or_forward = lease, hold_or_forward
        self._update()

    # -- inputs ------------------------------------------------------------------------------------------

    def close(self, by: str, remark: str) -> None:
        """Closes the gate for the reason `by`, one of REASONS; remark: the text that clients get."""
        assert by in REASONS, by
        self._closed[by] = remark
        self._update()

    def open(self, by: str) -> None:
        """Withdraws the reason `by`. The gate is open when no reason is left."""
        if self._closed.pop(by, None) is not None and by == ROLE:
            self._gather_until_ms = now_ms() + GATHER_MS
        self._update()

    def configure(self, *, permits_write: bool, accept_from_ms: int) -> None:
        """Sets the write bit of brokerPermission, and startAcceptSendRequestTimeStamp (ms; 0: at once)."""
        self._permits_write, self._accept_from_ms = permits_write, accept_from_ms
        self._update()

    @property
    def in_sync(self) -> int:
        """Members of the confirmed SyncStateSet."""
        return self._in_sync

    @in_sync.setter
    def in_sync(self, count: int) -> None:
        self._in_sync = count
        self._update()

    @property
    def min_in_sync(self) -> int:
        """minInSyncReplicas."""
        return self._min_in_sync

    @min_in_sync.setter
    def min_in_sync(self, count: int) -> None:
        self._min_in_sync = count
        self._update()

    def set_overload(self, waiting: int) -> None:
        """waiting: the number of waiting replies if the limit is reached; 0: more may wait."""
        self._overload = waiting
        self._update()

    # -- rules -------------------------------------------------------------------------------------------

    def refuse_first(self) -> PutRefused | None:
        """Refuses by the rules that precede all checks of the message. None: accepted."""
        if self._closed:
            return PutRefused(ResponseCode.SERVICE_NOT_AVAILABLE, self.unavailable)
        if self._accept_from_ms and wall_ms() < self._accept_from_ms:
            remark = (
                f"broker unable to service, until {self._accept_from_ms} (startAcceptSendRequestTimeStamp)"
            )
            return PutRefused(ResponseCode.SYSTEM_ERROR, remark)
        return None

    def refuse_last(self, *, waits: bool = True) -> PutRefused | None:
        """Refuses by the rules that follow the checks of the message. None: accepted.

        waits: the message waits for its replicas. minInSyncReplicas does not apply to one with WAIT=false.
        """
        return (self.refuse_few_replicas() if waits else None) or self._refuse_overload()

    def refuse_all(self) -> PutRefused | None:
        """Refuses if every message that waits for replicas is refused now, for readiness and for tools.

        An overload is no reason: the next message may be accepted.
        """
        refused = self.refuse_first() or self.refuse_few_replicas()
        if refused is None and self.lease_is_over:
            return PutRefused(ResponseCode.SERVICE_NOT_AVAILABLE, CUT_OFF)
        return refused

    def require_durability(self) -> None:
        """Raises CommandError if a record that waits for its replicas is refused now.

        For requests beside sends that write records: 36, 37, acknowledgements of pop, recalls of timers.
        """
        if self.refuse_last() is not None:
            raise CommandError(
                ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough, or too many sends wait for them"
            )

    def refuse_few_replicas(self) -> PutRefused | None:
        """Refuses if the SyncStateSet has fewer members than minInSyncReplicas."""
        if self._in_sync >= self._min_in_sync:
            return None
        remark = f"in-sync replicas not enough: {self._in_sync} of at least {self._min_in_sync}"
        return PutRefused(ResponseCode.SYSTEM_ERROR, remark)

    def _refuse_overload(self) -> PutRefused | None:
        if not self._overload:
            return None
        remark = f"[OVERLOAD]broker busy: {self._overload} messages wait for replicas or the disk"
        return PutRefused(ResponseCode.SYSTEM_BUSY, remark)

    # -- state -------------------------------------------------------------------------------------------

    @property
    def permits_write(self) -> bool:
        """brokerPermission has the write bit. Without it, only topics with order=true refuse messages."""
        return self._permits_write

    def is_closed_by(self, by: str) -> bool:
        """Returns whether the gate is closed for the reason `by`."""
        return by in self._closed

    def remark_of(self, by: str) -> str:
        """Returns the remark of this reason; empty: it does not close the gate."""
        return self._closed.get(by, "")

    @property
    def role_is_settled(self) -> bool:
        """Whether no reason indicates that the role of this broker is about to change."""
        return all(REASONS[by].role_is_settled for by in self._closed)

    @property
    def unavailable(self) -> str:
        """The remark of code 14 while the gate is closed."""
        remark = self.remark or "this broker is not master"
        return remark if remark.startswith(NOT_AVAILABLE) else f"{NOT_AVAILABLE}: {remark}"

    @property
    def is_gathering(self) -> bool:
        """A new master has too few replicas in sync, but may have enough in a moment."""
        return self._in_sync < self._min_in_sync and now_ms() < self._gather_until_ms

    def decides(self, *, waits: bool = True) -> bool:
        """Whether a message can be stored or refused here and now; else hold_or_forward is called first.
        waits: as in refuse_last()."""
        return self.writable and not (waits and self.is_gathering)

    @property
    def lease_is_over(self) -> bool:
        """Reads the clock: after a pause of the process, a timer that was due meanwhile cannot be trusted."""
        return self.lease is not None and self.lease(now_ms())

    def _update(self) -> None:
        self.writable = not self._closed
        self.remark = next(iter(self._closed.values()), "")
        refused = self.refuse_first() or self.refuse_last()
        self.accepts_all = self._permits_write and refused is None
