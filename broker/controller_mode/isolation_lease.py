"""The isolation lease of a master: if it hears neither the controllers nor all in-sync replicas, it
acknowledges nothing, because another master may have been elected. The rule is in core/lease.py.
"""

import asyncio
import logging
from collections.abc import Callable

from broker.core.lease import Lease
from broker.ha.service import HaService

logger = logging.getLogger(__name__)

WITNESS_BEATS = 3
"""A slave that missed this many of its reports does not confirm the lease: it may follow another master."""
LOOK_MS = 100


class IsolationLease:
    """The lease of this broker, renewed by answers of controllers and by the links of slaves."""

    def __init__(self, ha: HaService, *, timeout_ms: int, send_heartbeat_interval_ms: int) -> None:
        """timeout_ms: controllerHeartBeatTimeoutMills. send_heartbeat_interval_ms:
        haSendHeartbeatInterval."""
        self._ha = ha
        self._lease = Lease(
            timeout_ms=timeout_ms, replica_timeout_ms=WITNESS_BEATS * send_heartbeat_interval_ms
        )
        self.heartbeat_answered = self._lease.heartbeat_answered
        self.confirmed = self._lease.confirmed
        self.connection_lost = self._lease.connection_lost

    def is_over(self, now_ms: int) -> bool:
        """Returns whether nothing may be acknowledged now."""
        return self._lease.is_over(now_ms, self._ha.transfer_targets, self._ha.links)

    async def watch(self, is_isolated: Callable[[], bool]) -> None:
        """Logs each change of is_isolated; the gate calls is_over() itself. Runs until it is cancelled."""
        was_isolated = False
        while True:
            await asyncio.sleep(LOOK_MS / 1000)
            isolated = is_isolated()
            if isolated and not was_isolated:
                logger.error(
                    "isolated: no answer from the active controller, nor from every in-sync replica (%s); "
                    "nothing is acknowledged, because another master may have been elected",
                    sorted(self._ha.transfer_targets),
                )
            elif was_isolated and not isolated:
                logger.warning("no longer isolated")
            was_isolated = isolated
