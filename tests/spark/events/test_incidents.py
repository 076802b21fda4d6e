"""Incidents and the fleet's numbers: rules at their edges, by hand; what was planted in a fleet is found."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from analytics.fleet.plan import KINDS, MINUTES, Fleet, plan
from analytics.fleet.rollup import write_rollups
from analytics.fleet.tables import write_fleet_tables
from analytics.live.pages import lag_ms
from analytics.pages import write_pages
from analytics.queries.fleet import fleet_tables, groups_of, shown
from analytics.queries.incidents import BIRTH_MS, RULES, WINDOW_MS, FleetFrames
from keelmq.web.page_files import Incident, Index
from keelmq.web.page_reader import PageFiles

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
START = 20_000 * 24 * HOUR_MS
MINUTES_SHOWN = 60
SLACK_MS = 10 * MINUTE_MS
"""A fail-over takes less than the minute that it was planted in."""
_LAG = ("samples", "ms_p99", "ms_max", "lag_us_p99", "lag_us_max", "stale_master")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "lag": ("window_ts", *_LAG),
    "group_state": ("window_ts", "below_min_ms", "unknown_ms", "unclean_elections", "flaps"),
    "replica_lag": ("window_ts", "broker_id", "samples", "bytes_max"),
    "replica_state": ("window_ts", "broker_id", "flaps"),
    "failovers": ("old_master", "fault_ts", "last_heartbeat_ts", "elected_ts", "ready_ts", "gap_ms"),
    "clock_skew": ("broker_id", "from_ts", "to_ts", "offset_ms"),
    "membership": ("broker_id", "state", "from_ts", "to_ts"),
    "sync_state_set_changes": ("ts", "type", "master_epoch"),
    "group_totals": (
        "below_min_ms",
        "availability",
        "elections",
        "unclean_elections",
        "shrinks",
        "flaps",
    ),
}
TYPES = {"state": pa.string(), "type": pa.string(), "availability": pa.float64()}


def minute(n: int, **values: Any) -> dict[str, Any]:
    return {"window_ts": START + n * MINUTE_MS, **values}


def sampled(minutes: Iterable[int], **values: Any) -> list[dict[str, Any]]:
    return [minute(n, **{"samples": 60, "ms_p99": 1, "ms_max": 2} | values) for n in minutes]


def states(minutes: Iterable[int], **values: Any) -> list[dict[str, Any]]:
    return [minute(n, **{"below_min_ms": 0, "unknown_ms": 0} | values) for n in minutes]


def switch(ms: int, **more: Any) -> dict[str, Any]:
    times = {"last_heartbeat_ts": START + 600_000, "elected_ts": START + 600_000 + ms}
    return {"old_master": 1, **times, "ready_ts": START + 600_000 + ms, "gap_ms": None} | more


ALL = range(MINUTES_SHOWN)
QUIET = {"lag": sampled(ALL), "group_state": states(ALL)}
Case = Mapping[str, list[dict[str, Any]]]


def lag_at(*minutes: int, without: Iterable[int] = (), **values: Any) -> Case:
    """A group with a high lag in these minutes, and no sample in those of `without`."""
    bad = {"ms_p99": 5_000, "ms_max": 9_000} | values
    quiet = [n for n in ALL if n not in minutes and n not in {*without}]
    return {**QUIET, "lag": sampled(quiet) + sampled(minutes, **bad)}


def below_at(*minutes: int, ms: int = MINUTE_MS, unknown: Iterable[int] = (), **more: Any) -> Case:
    rows = states(n for n in ALL if n not in minutes and n not in {*unknown})
    rows += states(minutes, below_min_ms=ms)
    return {**QUIET, "group_state": rows + states(unknown, below_min_ms=None, unknown_ms=MINUTE_MS), **more}


def down(*brokers: int, minutes: Iterable[int] = range(10)) -> list[dict[str, Any]]:
    return [minute(n, broker_id=broker, samples=0, bytes_max=9) for n in minutes for broker in brokers]


def member(broker: int, state: str, first: int, last: int) -> dict[str, Any]:
    return {
        "broker_id": broker, "state": state, "from_ts": START + first * MINUTE_MS,
        "to_ts": START + last * MINUTE_MS,
    }  # fmt: skip


def flapping(minutes: Iterable[int], flaps: Mapping[int, int]) -> list[dict[str, Any]]:
    return [minute(n, broker_id=2, flaps=flaps.get(n, 0)) for n in minutes]


REMOVED = [member(1, "master", 0, 60), member(2, "out", 0, 60), member(3, "out", 0, 4)]
ELECTED = {"type": "electMaster", "master_epoch": 1}

CASES: dict[str, Case] = {
    "quiet": QUIET,
    "near": lag_at(1, 2, 5, 9),
    "unknown between": lag_at(1, 3, without=[2]),
    "short spike": lag_at(7, ms_p99=90, ms_max=90, lag_us_p99=2_000_001, lag_us_max=7_000_100),
    "by samples only": lag_at(7, ms_p99=2_000, lag_us_p99=1_999_000, lag_us_max=2_500_000),
    "a clean fail-over": {**below_at(10, ms=8_000), "failovers": [switch(40)]},
    "below 30 s": below_at(10, 11, ms=15_000),
    "below less": below_at(10, 11, ms=14_999),
    "below, unknown between": below_at(10, 12, unknown=[11]),
    "a birth": below_at(*range(5), sync_state_set_changes=[{"ts": START, **ELECTED}]),
    "a birth that never ends": below_at(*ALL, sync_state_set_changes=[{"ts": START, **ELECTED}]),
    "a later election": below_at(
        *range(5), sync_state_set_changes=[{"ts": START, "type": "electMaster", "master_epoch": 2}]
    ),
    "a slow fail-over": {**QUIET, "failovers": [switch(1_000)]},
    "a producer waited": {**QUIET, "failovers": [switch(40, gap_ms=1_500)]},
    "never ready": {**QUIET, "failovers": [switch(40, ready_ts=None)]},
    "from the fault": {**QUIET, "failovers": [switch(2_000, fault_ts=START + 601_100)]},
    "unclean": {
        "lag": sampled(ALL),
        "group_state": states(n for n in ALL if n != 10) + states([10], unclean_elections=1),
        "failovers": [switch(3_000)],
    },
    "flaps": {**QUIET, "replica_state": flapping(ALL, {1: 2, 11: 1})},
    "flaps, unknown between": {**QUIET, "replica_state": flapping(set(ALL) - {5}, {1: 2, 11: 1})},
    "flaps of two": {**QUIET, "replica_state": [minute(1, broker_id=b, flaps=2) for b in (2, 3)]},
    "a gap": {**QUIET, "lag": sampled(n for n in ALL if n not in (20, 21))},
    "a short gap": {**QUIET, "lag": sampled(n for n in ALL if n != 20)},
    "gone": {**QUIET, "lag": sampled(range(50))},
    "begun late": {**QUIET, "lag": sampled(range(30, 60))},
    "no samples": {"group_state": states(ALL)},
    "a master": {**QUIET, "replica_lag": down(1, 2), "membership": [member(1, "master", 0, 60)]},
    "removed": {**QUIET, "replica_lag": down(2, 3), "membership": REMOVED},
    "unknown as well": {
        **QUIET,
        "replica_lag": down(3),
        "membership": [{**each, "to_ts": START + 240_000} for each in REMOVED],
    },
    "down for a minute": {**QUIET, "replica_lag": down(2, minutes=[5])},
    "an old master": {**QUIET, "lag": [*sampled(ALL[:-1]), minute(59, samples=0, stale_master=30)]},
    "skewed": {
        **QUIET,
        "clock_skew": [
            {"broker_id": 2, "offset_ms": -5_000, "from_ts": START - HOUR_MS, "to_ts": START + 600_000},
            {"broker_id": 2, "offset_ms": 999, "from_ts": START + 600_000, "to_ts": START + 900_000},
            {"broker_id": 2, "offset_ms": None, "from_ts": START, "to_ts": START + 900_000},
            {"broker_id": 2, "offset_ms": 7_000, "from_ts": START - 9 * HOUR_MS, "to_ts": START - HOUR_MS},
        ],
    },
}  # fmt: skip
TOTALS = {
    "below_min_ms": 7, "availability": 0.5, "elections": 3, "unclean_elections": 1, "shrinks": 2, "flaps": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataFrame]:
    """The tables of all cases, each a group of its own."""
    folder = tmp_path_factory.mktemp("cases")
    frames = {}
    for table, names in COLUMNS.items():
        schema = pa.schema(
            [("cluster_name", pa.string()), ("broker_name", pa.string())]
            + [(name, TYPES.get(name, pa.int64())) for name in names]
        )
        rows = [
            {"cluster_name": "c", "broker_name": case} | dict.fromkeys(names) | row
            for case, of_table in CASES.items()
            for row in of_table.get(table, [TOTALS] if table == "group_totals" else [])
        ]
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / f"{table}.parquet")
        frames[table] = spark.read.parquet(f"file://{folder}/{table}.parquet")
    return fleet_tables(
        FleetFrames(**frames), groups_of(frames["group_totals"]), from_ts=START,
        to_ts=START + MINUTES_SHOWN * MINUTE_MS, cell_ms=HOUR_MS,
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(tables: dict[str, DataFrame]) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES}
    for row in tables["incidents"].orderBy("from_ts", "replica").collect():
        rows[row["broker_name"]].append(row.asDict())
    return rows


@pytest.fixture(scope="module")
def groups(tables: dict[str, DataFrame]) -> dict[str, dict[str, Any]]:
    return {row["broker_name"]: row.asDict() for row in tables["fleet"].collect()}


def spans(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    """Kind, from and to, in minutes."""
    return [
        (row["kind"], (row["from_ts"] - START) // MINUTE_MS, (row["to_ts"] - START) // MINUTE_MS)
        for row in rows
    ]


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        ("quiet", []),
        ("near", [("lag", 1, 6), ("lag", 9, 10)]),
        ("unknown between", [("lag", 1, 2), ("lag", 3, 4)]),
        ("short spike", [("lag", 7, 8)]),
        ("by samples only", []),
        ("a clean fail-over", []),
        ("below 30 s", [("below-min", 10, 12)]),
        ("below less", []),
        ("below, unknown between", [("below-min", 10, 11), ("below-min", 12, 13)]),
        ("a birth", []),
        ("a birth that never ends", [("below-min", BIRTH_MS // MINUTE_MS, 60)]),
        ("a later election", [("below-min", 0, 5)]),
        ("unclean", [("unclean", 10, 11)]),
        ("flaps", [("flap", 1, 12)]),
        ("flaps, unknown between", []),
        ("flaps of two", []),
        ("a gap", [("gap", 20, 22)]),
        ("a short gap", []),
        ("gone", [("gap", 50, 60)]),
        ("begun late", []),
        ("no samples", [("gap", 0, 60)]),
        ("a master", [("dead-replica", 0, 10)]),
        ("removed", [("dead-replica", 0, 10), ("dead-replica", 0, 4)]),
        ("unknown as well", [("dead-replica", 0, 10)]),
        ("down for a minute", []),
        ("an old master", [("stale-master", 59, 60)]),
        ("skewed", [("skew", 0, 10)]),
    ],
)
def test_a_rule_at_its_edge(
    found: dict[str, list[dict[str, Any]]], case: str, wanted: list[tuple[str, int, int]]
) -> None:
    assert spans(found[case]) == wanted


def test_how_long_and_how_bad(found: dict[str, list[dict[str, Any]]]) -> None:
    """Time in the state is not the time from the first window to the last."""

    def of(case: str) -> list[tuple[int, int | None, int]]:
        return [(row["worst"], row["state_ms"], row["severity"]) for row in found[case]]

    assert of("near") == [(9_000, 3 * MINUTE_MS, 603), (9_000, MINUTE_MS, 601)]
    assert of("short spike") == [(7_001, MINUTE_MS, 601)]
    assert of("below 30 s") == [(30_000, 30_000, 700)]
    assert of("a birth that never ends") == [(55 * MINUTE_MS, 55 * MINUTE_MS, 755)]
    assert of("flaps") == [(3, None, 411)]
    assert of("a gap") == [(2 * MINUTE_MS, 2 * MINUTE_MS, 302)]
    assert of("skewed") == [(5_000, 600_000, 110)]
    assert of("unclean") == [(1, None, 901)]


def test_fail_overs_of_a_second_or_of_unknown_length(found: dict[str, list[dict[str, Any]]]) -> None:
    def of(case: str) -> list[tuple[str, int, int | None]]:
        return [(row["kind"], row["to_ts"] - row["from_ts"] - 1, row["state_ms"]) for row in found[case]]

    assert of("a slow fail-over") == [("failover", 1_000, 1_000)]
    assert of("a producer waited") == [("failover", 40, 1_500)]
    assert of("never ready") == [("failover", 40, None)], "not known is not short"
    assert of("from the fault") == [], "0.9 s since the fault, 2 s since the last heartbeat"


def test_replicas_are_named(found: dict[str, list[dict[str, Any]]]) -> None:
    assert [row["replica"] for row in found["a master"]] == [2]
    assert [row["replica"] for row in found["removed"]] == [2, 3]
    assert [row["replica"] for row in found["flaps"]] == [2]


def test_a_groups_numbers(groups: dict[str, dict[str, Any]], tables: dict[str, DataFrame]) -> None:
    """One worst p99: of a minute, from the broker's histogram; the cell of an hour has the same."""
    assert (groups["quiet"]["worst_p99_ms"], groups["quiet"]["worst_ms"]) == (1, 2)
    assert (groups["short spike"]["worst_p99_ms"], groups["short spike"]["worst_ms"]) == (2_001, 7_001)
    assert (groups["by samples only"]["worst_p99_ms"], groups["by samples only"]["worst_ms"]) == (
        1_999,
        9_000,
    )
    cells = {row["broker_name"]: row for row in tables["heat"].collect()}
    for case, row in groups.items():
        cell = cells[case]
        assert (cell["ms_p99"], cell["ms_max"]) == (row["worst_p99_ms"], row["worst_ms"]), case
        assert (cell["window_ts"], cell["cell_ms"]) == (START, HOUR_MS)
    assert groups["no samples"]["worst_p99_ms"] is None
    for case in ("quiet", "short spike", "by samples only", "near"):
        minutes = [lag_ms(dict.fromkeys(_LAG) | row) for row in CASES[case]["lag"]]
        for name, worst in (("ms_p99", "worst_p99_ms"), ("ms_max", "worst_ms")):
            known = [each[name] for each in minutes if each[name] is not None]
            assert max(known) == groups[case][worst], "the live page says the same"
    quiet = groups["quiet"]
    assert (quiet["below_ms"], quiet["availability"], quiet["elections"], quiet["flaps"]) == (7, 0.5, 3, 4)


def test_what_a_group_counts(groups: dict[str, dict[str, Any]]) -> None:
    near = groups["near"]
    assert (near["incidents"], near["score"]) == (2, 603 + 601)
    waited = groups["a producer waited"]
    assert (waited["failovers"], waited["longest_gap_ms"], waited["incidents"]) == (1, 1_500, 1)
    assert (groups["quiet"]["failovers"], groups["quiet"]["longest_gap_ms"]) == (0, None)
    assert groups["quiet"]["unknown_total_ms"] == 0
    assert groups["below, unknown between"]["unknown_total_ms"] == MINUTE_MS


@pytest.mark.parametrize(
    ("minutes", "wanted"),
    [((0, 48), (0, 48, 1)), ((0, 49), (0, 49, 60)), ((70, 48 * 60 + 70), (120, 48 * 60 + 70, 60))],
)
def test_what_is_shown(minutes: tuple[int, int], wanted: tuple[int, int, int]) -> None:
    """Minutes or hours; at most 48 of them, the last ones."""
    start, end, cell = (each * MINUTE_MS for each in wanted)
    from_ts, to_ts = (START + each * MINUTE_MS for each in minutes)
    assert shown(from_ts + 5, to_ts - 5) == (START + start, START + end, cell)


def test_every_kind_has_a_rule() -> None:
    assert {*KINDS} <= RULES.keys() and {*KINDS} <= MINUTES.keys()
    assert len({rule.weight for rule in RULES.values()}) == len(RULES)


def found_in(spark: SparkSession, fleet: Fleet, out: Path) -> Index:
    write_rollups(fleet, out)
    write_fleet_tables(spark, fleet, out)
    write_pages(out)
    return PageFiles(out).generation().index


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_was_planted_is_found_and_named(spark: SparkSession, seed: int, tmp_path: Path) -> None:
    fleet = plan(seed, groups=30, hours=6, kinds=KINDS, from_ts=START)
    index = found_in(spark, fleet, tmp_path)
    left: dict[tuple[str, str, str], Incident] = {
        (each.kind, each.cluster_name, each.broker_name): each for each in index.incidents
    }
    assert len(left) == len(index.incidents), "one incident is named once"
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
    planted_groups = {(each.cluster_name, each.broker_name) for each in fleet.incidents()}
    first = index.groups[: len(planted_groups)]
    assert {(each.cluster_name, each.broker_name) for each in first} == planted_groups
    (unclean,) = [each for each in fleet.incidents() if each.kind == "unclean"]
    assert index.groups[0].broker_name == unclean.broker_name and index.groups[0].unclean_elections == 1
    assert [each.score for each in index.groups] == sorted(
        (each.score for each in index.groups), reverse=True
    )


def test_a_quiet_fleet_has_none(spark: SparkSession, tmp_path: Path) -> None:
    index = found_in(spark, plan(1, groups=20, hours=2, kinds=(), from_ts=START), tmp_path)
    assert index.incidents == [] and (index.step_ms, index.columns) == (HOUR_MS, 2)
    assert WINDOW_MS == MINUTE_MS and all(len(each.ms_p99) == 2 for each in index.groups)
