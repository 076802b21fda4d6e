"""Incidents: what was planted in a fleet is found and named; rules at their edges."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.fleet.plan import KINDS, MINUTES, Fleet, plan
from analytics.fleet.rollup import write_rollups
from analytics.pages import write_pages
from analytics.pages.grid import Axis
from analytics.pages.incidents import RULES, Mark, find_incidents, severity
from analytics.pages.marks import incidents_of
from keelmq.web.page_files import Incident
from keelmq.web.page_reader import PageFiles

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
START = 20_000 * 24 * HOUR_MS
SLACK_MS = 10 * MINUTE_MS
"""A fail-over takes less than the minute that it was planted in."""


def mark(minute: int, n: int = 1, *, replica: int | None = None, broker: str = "b") -> Mark:
    return ("c", broker, replica, START + minute * MINUTE_MS, START + (minute + 1) * MINUTE_MS, n)


def spans(found: list[Incident]) -> list[tuple[int, int]]:
    return [((each.from_ts - START) // MINUTE_MS, (each.to_ts - START) // MINUTE_MS) for each in found]


def test_windows_near_each_other_are_one_incident() -> None:
    assert spans(find_incidents("lag", [mark(1), mark(2), mark(5), mark(9)])) == [(1, 6), (9, 10)]
    assert spans(find_incidents("gap", [mark(1), mark(2), mark(4), mark(5)])) == [(1, 3), (4, 6)]


def test_groups_and_replicas_are_told_apart() -> None:
    marks = [mark(1), mark(2, broker="a"), mark(2, replica=2), mark(1, replica=3), mark(2)]
    found = find_incidents("lag", marks)
    assert [(each.broker_name, each.replica) for each in found] == [
        ("a", None),
        ("b", None),
        ("b", 2),
        ("b", 3),
    ]
    assert spans(found)[1] == (1, 3)


def test_short_or_few_is_no_incident() -> None:
    assert find_incidents("dead-replica", [mark(1)]) == [] and find_incidents("gap", [mark(1)]) == []
    assert find_incidents("flap", [mark(1, 2)]) == []
    (flaps,) = find_incidents("flap", [mark(1, 2), mark(11, 1)])
    assert flaps.worst == 3


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=30))
def test_no_window_is_lost_or_counted_twice(windows: list[tuple[int, int]]) -> None:
    marks = [mark(minute, n) for minute, n in dict(windows).items()]
    found = find_incidents("below-min", marks)
    assert sum(each.worst for each in found) == sum(each[5] for each in marks)
    assert all(sum(a <= (each[3] - START) // MINUTE_MS < b for a, b in spans(found)) == 1 for each in marks)
    assert found == find_incidents("below-min", marks[::-1])
    assert all(right[0] - left[1] > 2 for left, right in zip(spans(found), spans(found)[1:], strict=False))


def test_a_clock_is_skewed_for_the_pieces_of_time_that_are_known() -> None:
    axis = Axis(START, HOUR_MS, 4)
    rows = [
        {"cluster_name": "c", "broker_name": "b", "broker_id": 2, "offset_ms": offset, **times}
        for offset, times in (
            (-5_000, {"from_ts": START - HOUR_MS, "to_ts": START + HOUR_MS}),
            (999, {"from_ts": START + HOUR_MS, "to_ts": START + 2 * HOUR_MS}),
            (None, {"from_ts": START + 2 * HOUR_MS, "to_ts": START + 3 * HOUR_MS}),
            (7_000, {"from_ts": START - 9 * HOUR_MS, "to_ts": START - HOUR_MS}),
        )
    ]
    (found,) = [each for each in incidents_of({}, axis, [("c", "b")], [], rows) if each.kind == "skew"]
    assert (found.from_ts, found.to_ts, found.worst) == (START, START + HOUR_MS, 5_000)


def test_a_master_is_not_a_replica_that_is_down() -> None:
    group = {"cluster_name": "c", "broker_name": "b"}
    rows = [
        {**group, "window_ts": START + i * MINUTE_MS, "broker_id": broker, "samples": 0, "bytes_max": 9}
        for i in range(10)
        for broker in (1, 2)
    ]
    spans = [{**group, "broker_id": 1, "from_ts": START, "to_ts": START + HOUR_MS, "state": "master"}]
    tables = {"replica_lag": pa.Table.from_pylist(rows)}
    found = incidents_of(tables, Axis(START, MINUTE_MS, 10), [("c", "b")], [], [], spans)
    assert [each.replica for each in found if each.kind == "dead-replica"] == [2]


def test_a_replica_that_was_removed_is_not_down() -> None:
    """The roll-up goes on with its lag, as for one that is down."""
    group = {"cluster_name": "c", "broker_name": "b"}
    rows = [
        {**group, "window_ts": START + i * MINUTE_MS, "broker_id": broker, "samples": 0, "bytes_max": 9}
        for i in range(10)
        for broker in (2, 3)
    ]
    minutes = {1: ("master", 10), 2: ("out", 10), 3: ("out", 4)}
    members = [
        {**group, "broker_id": broker, "from_ts": START, "to_ts": START + to * MINUTE_MS, "state": state}
        for broker, (state, to) in minutes.items()
    ]
    tables = {"replica_lag": pa.Table.from_pylist(rows)}
    axis = Axis(START, MINUTE_MS, 10)
    found = incidents_of(tables, axis, [("c", "b")], [], [], members)
    dead = [each for each in found if each.kind == "dead-replica"]
    assert [each.replica for each in dead] == [2, 3] and spans(dead) == [(0, 10), (0, 4)]
    unknown = [{**each, "to_ts": START + 4 * MINUTE_MS} for each in members]
    found = incidents_of(tables, axis, [("c", "b")], [], [], unknown)
    assert spans([each for each in found if each.replica == 3]) == [(0, 10)], "the group is not known, either"


def test_every_kind_has_a_rule_and_a_weight() -> None:
    for kind in KINDS:
        assert kind in RULES and kind in MINUTES
        (found,) = find_incidents(kind, [mark(i, 3) for i in range(10)])[:1]
        assert severity(found) > 0


def found_in(fleet: Fleet, out: Path) -> list[Incident]:
    write_rollups(fleet, out)
    write_pages(out)
    return PageFiles(out).generation().index.incidents


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_was_planted_is_found_and_named(seed: int, tmp_path: Path) -> None:
    fleet = plan(seed, groups=30, hours=6, kinds=KINDS, from_ts=START)
    found = found_in(fleet, tmp_path)
    left = {(each.kind, each.cluster_name, each.broker_name): each for each in found}
    assert len(left) == len(found), "one incident is named once"
    for planted in fleet.incidents():
        got = left.pop((planted.kind, planted.cluster_name, planted.broker_name), None)
        assert got is not None, f"{planted} was not found"
        if planted.kind == "failover":
            assert abs(got.from_ts - planted.from_ts) < SLACK_MS
            continue
        assert (got.from_ts, got.to_ts) == (planted.from_ts, planted.to_ts), planted
        if planted.replica is not None:
            assert got.replica == planted.replica, planted
    assert not left, "nothing was found that was not planted"


def test_a_quiet_fleet_has_none(tmp_path: Path) -> None:
    assert found_in(plan(1, groups=20, hours=2, kinds=(), from_ts=START), tmp_path) == []


def test_the_worst_groups_stand_first(tmp_path: Path) -> None:
    fleet = plan(5, groups=40, hours=3, kinds=KINDS, from_ts=START)
    found_in(fleet, tmp_path)
    groups = PageFiles(tmp_path).generation().index.groups
    planted = {(each.cluster_name, each.broker_name) for each in fleet.incidents()}
    first = groups[: len(planted)]
    assert {(each.cluster_name, each.broker_name) for each in first} == planted
    (unclean,) = [each for each in fleet.incidents() if each.kind == "unclean"]
    assert groups[0].broker_name == unclean.broker_name and groups[0].unclean_elections == 1
    assert [each.score for each in groups] == sorted((each.score for each in groups), reverse=True)


@pytest.mark.parametrize(
    ("groups", "hours", "kinds", "says"),
    [
        (10, 1, ("lag", "fire"), "unknown incidents: fire; known are lag, flap"),
        (0, 1, (), "1 to 100000 groups"),
        (10, 0, (), "1 to 8784 hours"),
        (2, 1, KINDS, "9 kinds of incidents need as many groups; there are 2"),
    ],
)
def test_a_plan_that_cannot_be(groups: int, hours: int, kinds: tuple[str, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        plan(1, groups=groups, hours=hours, kinds=kinds, from_ts=START)


def test_the_same_seed_is_the_same_fleet() -> None:
    one, same, other = (plan(seed, groups=50, hours=9, kinds=KINDS, from_ts=START) for seed in (4, 4, 5))
    assert one == same and one != other
