"""What a name server does per request does not grow with what others registered. Counted, not timed."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from namesrv.core.liveness import HeartbeatTable, route_key
from namesrv.core.routes import RouteTable
from tests.unit.namesrv.test_routes import registration


def work(act: Callable[[], object]) -> int:
    """Lines of Python that `act` runs."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    # A collection within `act` would run, and count, the finalizers of what earlier tests left.
    gc.collect()
    gc.disable()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
        gc.enable()
    return lines


def fleet(groups: int) -> RouteTable:
    table = RouteTable()
    for number in range(groups):
        for broker_id in (0, 1):
            table.register(
                registration(f"h{broker_id}-{number}:1", broker_id, name=f"b{number}", topics=(f"T{number}",))
            )
    return table


def test_a_broker_costs_its_own_topics_whoever_else_is_there() -> None:
    small, large, first = fleet(3), fleet(600), fleet(3)
    for act in (
        lambda table: table.register(registration("h0-1:1", 0, name="b1", topics=("T1",))),
        lambda table: table.register(registration("h0-1:1", 0, name="b1", topics=("T1", "T2"), counter=9)),
        lambda table: table.pick_up_route("T1"),
        lambda table: table.member_group("C1", "b1"),
        lambda table: table.wipe_write_perm("b1"),
        lambda table: table.delete_topic("T1"),
        lambda table: table.unregister("C1", "b1", "h0-1:1"),
        lambda table: table.unregister("C1", "b1", "h1-1:1"),
    ):
        act(first)  # the validator of a model is built at its first use
        assert work(lambda act=act: act(large)) == work(lambda act=act: act(small))


def heartbeats(count: int) -> HeartbeatTable:
    table = HeartbeatTable()
    for number in range(count):
        table.record_heartbeat(
            route_key("C1", f"h{number}:1"),
            connection_id=number + 1,
            incarnation="",
            timeout_ms=10_000,
            now_ms=0,
            info=None,
            grace_ms=0,
        )
    return table


def test_a_lost_connection_costs_no_walk_over_all_heartbeats() -> None:
    small, large = heartbeats(3), heartbeats(3_000)

    def lose(table: HeartbeatTable) -> Callable[[], object]:
        return lambda: (table.connection_closed(2, 5), table.next_deadline_ms(), table.scan_not_active(5))

    assert work(lose(large)) == work(lose(small))
    assert large.scan_not_active(10_000) == [] and len(large.scan_not_active(10_001)) == 2_999
