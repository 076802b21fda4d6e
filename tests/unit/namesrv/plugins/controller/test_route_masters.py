"""RouteMasters: which masters the name server of its process is told, and which it is told to forget."""

from collections.abc import Callable

from namesrv.plugins.controller.core.state import BrokerSet, Replica, State
from namesrv.plugins.controller.election.route_masters import RouteMasters


class Routes:
    """Implements Masters: what the routes would show."""

    def __init__(self) -> None:
        self.shown: dict[tuple[str, str], tuple[str, int]] = {}

    def elect(self, cluster_name: str, broker_name: str, master_addr: str, master_epoch: int) -> bool:
        self.shown[cluster_name, broker_name] = master_addr, master_epoch
        return True

    def forget(self, cluster_name: str, broker_name: str) -> None:
        self.shown.pop((cluster_name, broker_name), None)


def group(broker_name: str, master: int | None, epoch: int = 1, cluster_name: str = "c") -> BrokerSet:
    replicas = {number: Replica(f"10.0.0.{number}:10911", "r") for number in (1, 2)}
    return BrokerSet(cluster_name, broker_name, 3, replicas, master, epoch, frozenset({1, 2}), epoch)


def at_once(call: Callable[[], object]) -> None:
    call()


def test_a_restored_state_is_told_whole_and_what_it_lacks_is_forgotten() -> None:
    """In a snapshot a group may be cleaned, in another cluster, or without a master."""
    routes = Routes()
    states = [
        State(brokers={each.broker_name: each for each in (group("a", 1), group("b", 1), group("d", 2))})
    ]
    told = RouteMasters(routes, lambda: states[-1], at_once)
    told.tell_all()
    assert routes.shown == {
        ("c", "a"): ("10.0.0.1:10911", 1),
        ("c", "b"): ("10.0.0.1:10911", 1),
        ("c", "d"): ("10.0.0.2:10911", 1),
    }
    later = [group("a", 2, 5), group("b", None, 6), group("e", 1), group("d", 1, 7, "other")]
    states.append(State(brokers={each.broker_name: each for each in later[:3]}))
    told.restored(states[-1])
    assert routes.shown == {("c", "a"): ("10.0.0.2:10911", 5), ("c", "e"): ("10.0.0.1:10911", 1)}
    states.append(State(brokers={each.broker_name: each for each in later[2:]}))
    told.restored(states[-1])
    assert routes.shown == {("c", "e"): ("10.0.0.1:10911", 1), ("other", "d"): ("10.0.0.1:10911", 7)}


def test_a_process_without_routes_is_told_nothing() -> None:
    calls = list[object]()
    RouteMasters(None, State, calls.append).restored(State())
    assert not calls
