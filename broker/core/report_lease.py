"""How long a slave's report proves to its master that no other master was elected, and which side ensures it.
Pure.

While no controller answers, a master acknowledges only if every broker that could be elected, each other
member of the SyncStateSet, has reported over its HA link lately (core/lease.py). A report states that its
sender was not master when it sent it; the sender may be elected a moment later. So two independent rules keep
it true, and neither compares the clocks of two machines:

1. The master counts a report for at most report_lease_ms(). Let the master be cut off at c, from controllers
   and slaves at once. The controllers had then heard a heartbeat that was sent at c - B or later
   (B: brokerHeartbeatInterval), and elect T after they heard it (T: controllerHeartBeatTimeoutMills), so not
   before c - B + T. A slave does not see the cut. It continues reporting for HEARD_MS, and its reports may
   still arrive if only the other direction is cut. So the last report arrives at c + HEARD_MS at the latest,
   and counts for T - T / MARGIN - B - HEARD_MS. T / MARGIN is for the rates of the clocks, and for the tick
   periods of both sides (100 ms each).

2. An elected KeelMQ slave begins its term only when no report that it sent can count any more. It ends the
   stream of its HA link, and a master that reads this end closes the link and counts none of its reports.
   Until the slave sees the link closed it waits, PROMISE_MS from its last report at the longest: the longest
   time that a report counts, and a tenth of it for the rates of the clocks. This covers what rule 1 cannot:
   the controllers lost the master long before the slave did (the last report was sent just before the slave
   was told of its election, and the end of the link did not arrive), a controller that elects earlier than T
   because a connection was reset, a new leader that never heard the master, an operator's electMaster, the
   keep-alive that a slave of a silent master sends every half haHousekeepingInterval.

The wait of rule 2 is over before the election in the cases that have a promised fail-over time. A dead
process closes its links. A master that hangs or is cut off sends nothing, so the reports ended
HEARD_MS (and a tick) after that, and PROMISE_MS later they do not count, which is T - B or less with the
default settings. With allAckInSyncStateSet the slave does not wait: without its acks its old master
acknowledges nothing. Nor does it with isolationLeaseEnable=false, which is a setting of the whole group.

A slave of RocketMQ keeps rule 1 only, and reports every 5 s (its haSendHeartbeatInterval) if it gets no
messages: with RocketMQ's default T, 10 s, its reports count longer than that.
"""

from typing import Final

from broker.core.lease import MARGIN

REPORT_MS: Final = 150
"""Master and KeelMQ slave send each other something after this idle time: with every second tick."""
HEARD_MS: Final = 400
"""A slave whose master is silent for longer than this stops its reports: they may still arrive."""
LEASE_MAX_MS: Final = 1_200
"""A report of a KeelMQ slave counts for at most this time. It may miss five in a row while the controllers
are down."""
LEASE_MIN_MS: Final = 400
"""Two reports. Reports that would count for less are not used: the master would be isolated between them."""
FOREIGN_MAX_MS: Final = 15_000
"""The same of a slave of RocketMQ: three of its reports."""
PROMISE_MS: Final = LEASE_MAX_MS + LEASE_MAX_MS // MARGIN
"""An elected slave begins its term this long after its last report, unless the link was closed before."""


def report_lease_ms(timeout_ms: int, heartbeat_interval_ms: int, *, is_keelmq: bool) -> int:
    """Returns for how many ms after its arrival a slave's report counts; 0: not at all.

    timeout_ms: controllerHeartBeatTimeoutMills. heartbeat_interval_ms: brokerHeartbeatInterval. is_keelmq:
    the slave reports every REPORT_MS, and keeps rule 2.
    """
    left_ms = timeout_ms - timeout_ms // MARGIN - heartbeat_interval_ms - HEARD_MS
    if left_ms < LEASE_MIN_MS:
        return 0
    return min(left_ms, LEASE_MAX_MS if is_keelmq else FOREIGN_MAX_MS)


def shortest_timeout_ms(heartbeat_interval_ms: int) -> int:
    """Returns the least controllerHeartBeatTimeoutMills with which reports count."""
    least = heartbeat_interval_ms + HEARD_MS + LEASE_MIN_MS
    timeout_ms = least + least // (MARGIN - 1)
    while report_lease_ms(timeout_ms, heartbeat_interval_ms, is_keelmq=True) == 0:
        timeout_ms += 1
    return timeout_ms


class ReportPromise:
    """The promise that this slave has given to its masters by its reports. Kept across links and masters.
    Times in ms of one monotonic clock."""

    def __init__(self) -> None:
        self._until_ms: int | None = None

    def reported(self, sent_ms: int) -> None:
        """A report was sent over a link that its master may still have open."""
        self._until_ms = max(self._until_ms or 0, sent_ms + PROMISE_MS)

    def left_ms(self, now_ms: int) -> int:
        """Returns how long the term of this broker must not begin yet; 0: it may begin."""
        return 0 if self._until_ms is None else max(0, self._until_ms - now_ms)
