"""The isolation lease of a master: if it hears neither the controllers nor all in-sync replicas, it stops
acknowledging, because another master may have been elected. The rules are in core/lease.py and
core/report_lease.py.
"""

import asyncio
import logging
from collections.abc import Callable

from broker.core.lease import Lease, ReplicaLeases
from broker.core.report_lease import report_lease_ms
from broker.ha.service import HaService
from keelmq.runtime.clock import now_ms

logger = logging.getLogger(__name__)

LOOK_MS = 100


class IsolationLease:
    """The lease of this broker, renewed by answers of controllers and by the links of slaves."""

    def __init__(self, ha: HaService, *, timeout_ms: int, heartbeat_interval_ms: int) -> None:
        """timeout_ms: controllerHeartBeatTimeoutMills. heartbeat_interval_ms: brokerHeartbeatInterval."""
        self._ha = ha
        self._timeout_ms, self._heartbeat_interval_ms = timeout_ms, heartbeat_interval_ms
        self._later: tuple[int, int, int] | None = None  # timeout, since when it is sent, when it counts
        self._lease = Lease(timeout_ms=timeout_ms, replica_leases=self._replica_leases())
        self.heartbeat_answered = self._lease.heartbeat_answered
        self.confirmed = self._lease.confirmed
        self.connection_lost = self._lease.connection_lost

    def configure(self, *, timeout_ms: int, heartbeat_interval_ms: int) -> None:
        """Changes the settings. From now on heartbeats have this timeout_ms. A longer one counts for the
        lease when no controller can go by the old one any more."""
        now, before_ms = now_ms(), self._timeout_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._later = (timeout_ms, now, now + before_ms) if timeout_ms > before_ms else None
        self._set(min(timeout_ms, before_ms), now)

    def _set(self, timeout_ms: int, since_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._lease.configure(timeout_ms=timeout_ms, replica_leases=self._replica_leases(), since_ms=since_ms)

    def _replica_leases(self) -> ReplicaLeases:
        terms = self._timeout_ms, self._heartbeat_interval_ms
        return ReplicaLeases(
            report_lease_ms(*terms, is_keelmq=True), report_lease_ms(*terms, is_keelmq=False)
        )

    def _set_later(self, now_ms: int) -> None:
        if self._later is not None and now_ms >= self._later[2]:
            timeout_ms, since_ms, _ = self._later
            self._later = None
            self._set(timeout_ms, since_ms)

    def is_over(self, now_ms: int) -> bool:
        """Returns whether nothing may be acknowledged now."""
        return self._lease.is_over(now_ms, self._ha.transfer_targets, self._ha.links)

    async def watch(self, is_isolated: Callable[[], bool]) -> None:
        """Logs each change of is_isolated; the gate calls is_over() itself. Runs until it is cancelled."""
        was_isolated = False
        while True:
            await asyncio.sleep(LOOK_MS / 1000)
            self._set_later(now_ms())
            isolated = is_isolated()
            if isolated and not was_isolated:
                logger.error(
                    "isolated: neither the active controller nor every in-sync replica (%s) answers; no "
                    "message is acknowledged, because another master may have been elected",
                    sorted(self._ha.transfer_targets),
                )
            elif was_isolated and not isolated:
                logger.warning("no longer isolated")
            was_isolated = isolated
