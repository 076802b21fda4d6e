"""HungMasters: makes a master inactive before its heartbeat timeout if it hangs (core/hang.py).

Only the active controller does it. A new one may be active because the machine of the master and of the
leading controller is lost. It judges by the heartbeats that it got before, once a second, which takes longer,
and by the replicas that have reported a silent link meanwhile. Its grace window does not matter: that
protects the lease, and a master with all-ack needs none. A master that was found hung by mistake is active
again with its next heartbeat.
"""

import asyncio
import logging
from collections.abc import Callable

from namesrv.plugins import Liveness
from namesrv.plugins.controller.core.hang import MasterHeartbeat, hung_from_ms
from namesrv.plugins.controller.core.state import BrokerSet
from namesrv.plugins.controller.election.liveness_view import LivenessView
from namesrv.plugins.controller.proposer import Proposer
from namesrv.plugins.controller.settings import LiveConfig

logger = logging.getLogger(__name__)

CONFIRM_MS = 10
"""A found master stays active this long: if this process was stopped, heartbeats may wait in its sockets."""


class HungMasters:
    """Event loop only. `clock`: monotonic ms, as in `liveness`. `on_found()`: called when a master was found,
    so that the table is scanned when CONFIRM_MS are over."""

    def __init__(
        self,
        liveness: Liveness,
        liveness_view: LivenessView,
        proposer: Proposer,
        config: LiveConfig,
        clock: Callable[[], int],
        on_found: Callable[[], None],
    ) -> None:
        self._liveness, self._liveness_view = liveness, liveness_view
        self._proposer, self._config, self._clock, self._on_found = proposer, config, clock, on_found
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by group
        self._reported: set[str] = set()
        """Groups of which a silent master was reported while this controller was not active."""
        self.found = 0  # masters found hung since the start

    @property
    def finds_any(self) -> bool:
        """Whether this controller looks for hung masters now."""
        return self._proposer.is_active and self._config.current.controller_hung_master_detection_enable

    def check(self, broker_name: str) -> None:
        """Checks the master of a group, one of whose slaves reports that it is silent."""
        if (timer := self._timers.pop(broker_name, None)) is not None:
            timer.cancel()
        broker_set = self._proposer.state.brokers.get(broker_name)
        if broker_set is not None and not self._proposer.is_active:
            self._reported.add(broker_name)
        from_ms = None if broker_set is None or not self.finds_any else self._hung_from_ms(broker_set)
        if broker_set is None or from_ms is None:
            return
        now_ms = self._clock()
        wait_ms = from_ms - now_ms
        if wait_ms <= 0:
            self._found(broker_set, now_ms)
            return
        loop = asyncio.get_running_loop()
        self._timers[broker_name] = loop.call_later(wait_ms / 1_000, self.check, broker_name)

    def active_changed(self, is_active: bool) -> None:
        """Called when this controller becomes active, and when it no longer is."""
        reported, self._reported = self._reported, set()
        if is_active:
            for broker_name in sorted(reported):
                self.check(broker_name)

    async def stop(self) -> None:
        """Cancels the checks that are due later."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _hung_from_ms(self, broker_set: BrokerSet) -> int | None:
        master = broker_set.master_broker_id
        if master is None:
            return None
        heartbeat = self._liveness_view.last_heartbeat(broker_set.key(master))
        if heartbeat is None or heartbeat.all_ack_heartbeats is None:
            return None
        heartbeats = heartbeat.all_ack_heartbeats
        if not heartbeat.asked_often and not heartbeats.has_past:
            return None  # nothing is known of how often it sends them
        others = [
            self._liveness_view.last_heartbeat(broker_set.key(each))
            for each in sorted(broker_set.sync_state_set - {master})
        ]
        return hung_from_ms(
            MasterHeartbeat(heartbeat.live.epoch, heartbeats.heard_ms + heartbeats.threshold_ms),
            [each.silent_master_epoch for each in others if each is not None],
            master_epoch=broker_set.master_epoch,
        )

    def _found(self, broker_set: BrokerSet, now_ms: int) -> None:
        assert broker_set.master_broker_id is not None
        key = broker_set.key(broker_set.master_broker_id)
        seen = self._liveness.last_seen(key)
        if seen is None or not self._liveness.found_hung(key, now_ms + CONFIRM_MS):
            return
        self.found += 1
        logger.warning(
            "%s: master %d hangs: no heartbeat for %d ms, and its in-sync replicas report a silent link",
            broker_set.broker_name,
            key.broker_id,
            now_ms - seen.last_heartbeat_ms,
        )
        self._on_found()
