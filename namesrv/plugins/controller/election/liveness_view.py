"""LivenessView: which brokers are alive, from the heartbeats and connections of this controller.

Not replicated: every broker sends heartbeats to every controller, so a new active controller has heartbeats
already. If it has none from a broker, or the last one is older than the broker's timeout, it still counts the
broker as alive for one grace window: the previous leader may have received a heartbeat, and a master relies
on that (broker/core/lease.py). A broker whose connection has closed is dead at once.
"""

import sys
from collections.abc import Callable

import msgspec

from keelmq.health.silence import Silence
from keelmq.remoting.operation import Peer
from keelmq.runtime.clock import wall_ms
from namesrv.core.liveness import BrokerKey, LastSeen
from namesrv.plugins import Liveness
from namesrv.plugins.controller.core.elect import LiveInfo, LiveView, Loss, LossReason
from namesrv.plugins.controller.core.state import BrokerSet, State

RECENT_MS = 1_000
"""A closed connection proves to a new leader that the master is dead only if the leader was elected within
this time after it: the old leader may have been on the master's machine and died with it. If more time
passed, the old leader was still receiving heartbeats from the master, or has replaced it."""


class Heartbeat(msgspec.Struct, frozen=True):
    """Stored with each heartbeat: its content and the connection that it arrived on.

    hands_over: a master drains on request before another broker is elected. min_in_sync_replicas: with fewer
    members in the SyncStateSet it refuses messages; None: an older broker. all_ack_heartbeats: of a master
    with allAckInSyncStateSet: the gaps between its heartbeats. asked_often: they began when this controller,
    as the active one, asked for heartbeats often; else they come as seldom as from every broker.
    silent_master_epoch: of a slave whose link to its master is silent: the masterEpoch of that master.
    """

    live: LiveInfo
    peer: Peer
    hands_over: bool = False
    min_in_sync_replicas: int | None = None
    all_ack_heartbeats: Silence | None = None
    silent_master_epoch: int | None = None
    asked_often: bool = False

    @property
    def takes_pushes(self) -> bool:
        """Whether the broker accepts a 1008 on the connection of its heartbeats: KeelMQ's brokers do,
        RocketMQ's client refuses it. Only KeelMQ's brokers send their minInSyncReplicas."""
        return self.min_in_sync_replicas is not None


class LivenessView:
    """`clock`: monotonic ms, also of the heartbeats. `wall_clock`: ms since 1970, for recorded times."""

    def __init__(
        self, liveness: Liveness, clock: Callable[[], int], wall_clock: Callable[[], int] = wall_ms
    ) -> None:
        self._liveness, self._clock, self._wall_clock = liveness, clock, wall_clock
        self._active_since_ms = self._grace_end_ms = -sys.maxsize

    def became_active(self, grace_ms: int) -> None:
        """Starts the grace window of a new active controller."""
        self._active_since_ms = self._clock()
        self._grace_end_ms = self._active_since_ms + grace_ms

    def grace_left_ms(self) -> int:
        """Returns the ms that remain of the grace window; 0: it is over."""
        return max(0, self._grace_end_ms - self._clock())

    def last_heartbeat(self, key: BrokerKey) -> Heartbeat | None:
        """Returns the last heartbeat of an active broker; None: it is not active."""
        if not self._liveness.is_active(key, self._clock()):
            return None
        info = self._liveness.info(key)
        return info if isinstance(info, Heartbeat) else None

    def view(self, broker_set: BrokerSet) -> LiveView:
        """Returns the current liveness of the group's replicas."""
        live: dict[int, LiveInfo] = {}
        presumed: set[int] = set()
        doubtful: set[int] = set()
        lost: dict[int, Loss] = {}
        is_young = self.grace_left_ms() > 0
        for broker_id in broker_set.replicas:
            key = broker_set.key(broker_id)
            heartbeat = self.last_heartbeat(key)
            if heartbeat is not None:
                live[broker_id] = heartbeat.live
                if self._liveness.is_doubtful(key, self._clock()):
                    doubtful.add(broker_id)
            elif is_young and self._may_have_been_heard(
                key, is_master=broker_id == broker_set.master_broker_id
            ):
                presumed.add(broker_id)
            else:
                lost[broker_id] = self._loss(key)
        return LiveView(live, frozenset(presumed), lost, frozenset(doubtful))

    def _may_have_been_heard(self, key: BrokerKey, *, is_master: bool) -> bool:
        """Returns whether the previous leader may have received a heartbeat that this controller lacks.

        True while no scan has found the key inactive, unless it was found hung early: such a master needs no
        lease (core/hang.py). For a slave a closed connection is always proof of
        death: it acknowledges nothing, and elections would wait for a slave that is presumed alive.
        """
        last = self._liveness.last_seen(key)
        if last is None:
            return True
        if last.found_early:
            return False
        if last.hung or last.inactive_ms is None:
            return True
        return is_master and last.inactive_ms < self._active_since_ms - RECENT_MS

    def view_of(self, state: State, broker_name: str) -> LiveView:
        """Returns view() of the group with this name; an unknown group has no replicas."""
        broker_set = state.brokers.get(broker_name)
        return LiveView() if broker_set is None else self.view(broker_set)

    def _loss(self, key: BrokerKey) -> Loss:
        now_ms, last_seen = self._clock(), self._liveness.last_seen(key)
        wall_of_clock_ms = self._wall_clock() - now_ms
        if last_seen is None:
            return Loss(None, wall_of_clock_ms + now_ms)
        found_ms = now_ms if last_seen.inactive_ms is None else last_seen.inactive_ms
        return Loss(
            wall_of_clock_ms + last_seen.last_heartbeat_ms, wall_of_clock_ms + found_ms, _reason(last_seen)
        )


def _reason(last_seen: LastSeen) -> LossReason:
    if last_seen.proved:
        return LossReason.CONNECTION_REFUSED
    if last_seen.found_early:
        return LossReason.HUNG
    if last_seen.hung or last_seen.inactive_ms is None:
        return LossReason.HEARTBEAT_TIMEOUT
    return LossReason.CONNECTION_CLOSED
