"""What this controller knows of the brokers' liveness, and the way back to them: their own connections.

Not replicated: every controller hears every broker, so a new active one has a warm table. It waits one grace
window before it takes a broker for dead that it never heard, or that was silent for its timeout: the leader
before it may have heard that one, and a master relies on that (broker/core/lease.py). One whose connection
closed is dead at once.
"""

import sys
from collections.abc import Callable

import msgspec

from namesrv.core.liveness import BrokerKey
from namesrv.plugins import Liveness
from namesrv.plugins.controller.core.elect import LiveInfo, LiveView, Loss
from namesrv.plugins.controller.core.state import BrokerSet, State
from remoting.clock import wall_ms
from remoting.operation import Peer

RECENT_MS = 1_000
"""A close is proof for a leader that was elected within this time after it: leader and master may have been
on one machine. After a longer time the leader before it heard the master, or had replaced it."""


class Heard(msgspec.Struct, frozen=True):
    """Stored with each heartbeat: what it said and the connection that carried it. hands_over: as master it
    drains, if it is asked to, before another one is elected."""

    live: LiveInfo
    peer: Peer
    hands_over: bool = False
    min_in_sync_replicas: int | None = None


class Watch:
    def __init__(
        self, liveness: Liveness, clock: Callable[[], int], wall_clock: Callable[[], int] = wall_ms
    ) -> None:
        """clock: monotonic, of the heartbeats; wall_clock: for what is written down."""
        self._liveness, self._clock, self._wall_clock = liveness, clock, wall_clock
        self._active_since_ms = self._judge_from_ms = -sys.maxsize

    def became_active(self, grace_ms: int) -> None:
        self._active_since_ms = self._clock()
        self._judge_from_ms = self._active_since_ms + grace_ms

    def judges_in_ms(self) -> int:
        """ms until unheard brokers count as dead; 0: they do."""
        return max(0, self._judge_from_ms - self._clock())

    def heard(self, key: BrokerKey) -> Heard | None:
        """The last heartbeat of a broker that is active now."""
        if not self._liveness.is_active(key, self._clock()):
            return None
        info = self._liveness.info(key)
        return info if isinstance(info, Heard) else None

    def view(self, broker_set: BrokerSet) -> LiveView:
        live: dict[int, LiveInfo] = {}
        presumed: set[int] = set()
        doubted: set[int] = set()
        lost: dict[int, Loss] = {}
        is_young = self.judges_in_ms() > 0
        for broker_id in broker_set.replicas:
            key = broker_set.key(broker_id)
            heard = self.heard(key)
            if heard is not None:
                live[broker_id] = heard.live
                if self._liveness.is_doubtful(key, self._clock()):
                    doubted.add(broker_id)
            elif is_young and self._may_have_been_heard(
                key, is_master=broker_id == broker_set.master_broker_id
            ):
                presumed.add(broker_id)
            else:
                lost[broker_id] = self._loss(key)
        return LiveView(live, frozenset(presumed), lost, frozenset(doubted))

    def _may_have_been_heard(self, key: BrokerKey, *, is_master: bool) -> bool:
        """By the leader before us. What no scan has looked at yet is judged a moment later. For the others a
        close is proof whenever it was: they acknowledge nothing, and elections wait for who is presumed."""
        seen = self._liveness.last_seen(key)
        if seen is None or seen.hung or seen.inactive_ms is None:
            return True
        return is_master and seen.inactive_ms < self._active_since_ms - RECENT_MS

    def view_of(self, state: State, broker_name: str) -> LiveView:
        """Of a group that is not there: nobody."""
        broker_set = state.brokers.get(broker_name)
        return LiveView() if broker_set is None else self.view(broker_set)

    def _loss(self, key: BrokerKey) -> Loss:
        now_ms, seen = self._clock(), self._liveness.last_seen(key)
        wall_of_clock_ms = self._wall_clock() - now_ms
        if seen is None:
            return Loss(None, wall_of_clock_ms + now_ms)
        found_ms = now_ms if seen.inactive_ms is None else seen.inactive_ms
        return Loss(wall_of_clock_ms + seen.last_beat_ms, wall_of_clock_ms + found_ms)
