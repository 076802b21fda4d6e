"""What the durability settings guarantee: how many failures lose no message (RPO), how long a fail-over takes
(RTO).

Pure. A failure is a replica that is permanently lost, or whose machine loses data that was not on disk. Only
certain copies count: an election chooses any live member of the SyncStateSet, so copies help only if every
member has one.
"""

from collections.abc import Iterator

import msgspec

ROUTE_POLL_MS = 30_000
"""RocketMQ's clients read a route at this interval, and cannot be made to read it earlier."""
KILLED_MS = 300
"""Time from the death of a master to the first accepted message, p95 (`keelmq bench failover`)."""
HUNG_MS = 1_200
"""The same of a master with all-ack that hangs and is found by its replicas."""


class Durability(msgspec.Struct, frozen=True):
    """The relevant settings. copies: inSyncReplicas. min_in_sync: minInSyncReplicas. hands_over: at
    SIGTERM the mastership is handed over. forward_ms: how long a broker then serves clients that still use
    the old route. plain_role: brokerRole of a master with slaves, or of a slave, without controllers; empty:
    there are none."""

    controlled: bool
    all_ack: bool = False
    copies: int = 1
    min_in_sync: int = 1
    sync_flush: bool = False
    flush_interval_ms: int = 500
    heartbeat_timeout_ms: int = 3_000
    hands_over: bool = True
    forward_ms: int = 40_000
    plain_role: str = ""

    @property
    def failures(self) -> int:
        """The number of replicas that may be lost in any case without loss of an acknowledged message."""
        if not self.controlled or not self.all_ack:
            return 0
        return self.min_in_sync - 1


def guarantees(settings: Durability) -> Iterator[str]:
    """Returns the lines for the start banner."""
    yield f"RPO: {rpo(settings)}"
    yield f"RPO at a power cut: {power_lost(settings)}"
    yield f"RTO: {_fail_over(settings)}"


def rpo(settings: Durability) -> str:
    """Returns what a lost replica costs."""
    if not settings.controlled:
        return _rpo_without_controllers(settings)
    if settings.all_ack and settings.failures:
        several = "replica is" if settings.failures == 1 else "replicas are"
        return (
            f"no acknowledged message is lost while no more than {settings.failures} {several} lost: each is "
            f"on the whole SyncStateSet, {settings.min_in_sync} or more replicas"
        )
    if settings.all_ack:
        return (
            "an acknowledged message is on the whole SyncStateSet, which may be the master alone: if that is "
            "lost, messages are, too (minInSyncReplicas=2 refuses them instead)"
        )
    if settings.copies > 1:
        return (
            f"an acknowledged message is on {settings.copies} replicas, any of them: the one that is elected "
            "may lack the last ones (allAckInSyncStateSet=true does not allow that)"
        )
    return "replication is asynchronous: a lost master loses the last acknowledged messages"


def _rpo_without_controllers(settings: Durability) -> str:
    match settings.plain_role:
        case "":
            return "stand-alone master: a dead disk loses messages, nothing else does"
        case "SLAVE":
            return "slave without controllers: its master acknowledges messages, and this broker copies them"
        case "SYNC_MASTER" if settings.copies > 1:
            return (
                f"an acknowledged message is on {settings.copies} brokers, the master among them "
                "(with enableAutoInSyncReplicas on as many as are in sync)"
            )
        case _:
            return "replication is asynchronous: a lost master loses the last acknowledged messages"


def power_lost(settings: Durability) -> str:
    """Returns what a power cut costs."""
    interval = f"up to {settings.flush_interval_ms} ms of messages"
    if settings.sync_flush:
        text = "an acknowledged message is on the disk of this broker, and of slaves with SYNC_FLUSH"
        if settings.controlled and not settings.all_ack:
            text += ", and the broker that is elected may be another"
        return f"{text} (flushDiskType=SYNC_FLUSH)"
    if not settings.controlled:
        return f"{interval} are lost (flushDiskType=ASYNC_FLUSH, flushIntervalCommitLog)"
    return (
        f"{interval} are not on disk yet: replicas that keep their power have them, and a power cut of all "
        "loses them (flushDiskType=ASYNC_FLUSH, flushIntervalCommitLog)"
    )


def _fail_over(settings: Durability) -> str:
    if not settings.controlled:
        return "no fail-over without enableControllerMode"
    hung_ms = settings.heartbeat_timeout_ms + KILLED_MS
    found = ""
    if settings.all_ack and hung_ms > HUNG_MS:
        found = f"{HUNG_MS} ms when it hangs and its replicas report that, else "
    return (
        f"about {KILLED_MS} ms when the master's process dies, {found}{hung_ms} ms when it hangs or is cut "
        f"off (controllerHeartBeatTimeoutMills); {_planned(settings)}"
    )


def _planned(settings: Durability) -> str:
    """Returns what a stop by SIGTERM costs."""
    if not settings.hands_over:
        return "a planned stop is like a death of the process (shutdownHandOverTimeout=0)"
    if settings.forward_ms > ROUTE_POLL_MS:
        return (
            "a planned stop fails no send: after the hand-over the old master serves clients with the old "
            f"route for up to {settings.forward_ms} ms (shutdownForwardTimeout)"
        )
    return (
        "a planned stop fails no send of KeelMQ's clients; RocketMQ's read the route every "
        f"{ROUTE_POLL_MS} ms, and fail sends until then (shutdownForwardTimeout, forwardLateSends)"
    )
