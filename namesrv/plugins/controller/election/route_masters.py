"""RouteMasters: tells the name server of this process which master each group has, as soon as it is applied.

Every controller tells its own name server, active or not: clients ask any of them.
"""

import functools
from collections.abc import Callable

from namesrv.plugins import Masters
from namesrv.plugins.controller.core.apply import Applied
from namesrv.plugins.controller.core.events import AnyEvent
from namesrv.plugins.controller.core.state import BrokerSet, State


class RouteMasters:
    """`masters` None: this process serves no routes. `call_in_loop`: Replicator.call_in_loop."""

    def __init__(
        self,
        masters: Masters | None,
        state: Callable[[], State],
        call_in_loop: Callable[[Callable[[], object]], None],
    ) -> None:
        self._masters, self._state, self._call_in_loop = masters, state, call_in_loop
        self._reported: set[tuple[str, str]] = set()  # cluster and broker name of each group with a master

    def applied(self, event: AnyEvent, applied: Applied) -> None:
        """Implements EventHook: raft thread, also during replay."""
        if self._masters is None or applied.refused is not None:
            return
        before, after = applied.before, applied.after
        if before is None and after is None:  # an event that concerns many groups
            self._call_in_loop(self.tell_all)
        elif _master(before) != _master(after):
            group = after or before
            assert group is not None
            self._call_in_loop(functools.partial(self._tell, group.cluster_name, group.broker_name))

    def restored(self, state: State) -> None:
        """Implements RestoreHook: raft thread."""
        if self._masters is not None:
            self._call_in_loop(self.tell_all)

    def tell_all(self) -> None:
        """Tells the masters of all groups; forgets groups that a restored state lacks. Event loop only."""
        groups = {(group.cluster_name, group.broker_name) for group in self._state().brokers.values()}
        for cluster_name, broker_name in groups | self._reported:
            self._tell(cluster_name, broker_name)

    def _tell(self, cluster_name: str, broker_name: str) -> None:
        """Reports what the state contains now: events may have been applied since the one that led here."""
        if self._masters is None:
            return
        group = self._state().brokers.get(broker_name)
        if group is None or group.cluster_name != cluster_name or group.master_address is None:
            self._masters.forget(cluster_name, broker_name)
            self._reported.discard((cluster_name, broker_name))
        else:
            self._reported.add((cluster_name, broker_name))
            self._masters.elect(cluster_name, broker_name, group.master_address, group.master_epoch)


def _master(group: BrokerSet | None) -> tuple[str | None, int] | None:
    return None if group is None else (group.master_address, group.master_epoch)
