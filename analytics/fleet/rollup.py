"""Roll-ups and run tables of a planned fleet, written directly: for benchmarks and tests of pages.

The shape is that of the real roll-ups; the numbers are those that samples of the fleet would give, except for
noise. It takes seconds where writing, compacting and rolling up the records of a large fleet takes an hour.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from analytics.fleet.plan import HOUR_MS, MINUTE_MS, REPLICAS, Fleet, Planted
from keelmq.runtime.log_buckets import bucket_of
from keelmq.web.page_files import series_file

GROUP = ("cluster_name", "broker_name")
UNITS = ("bytes", "ms", "lag_us", "confirm_us")
_LAG = [
    "samples", *(f"{unit}_{each}" for unit in UNITS for each in ("p50", "p95", "p99", "max")), "confirms",
    "covered_ms", "stale_master", "above_max", "max_offset", "confirm_offset",
]  # fmt: skip
_STATE = [
    "below_min_ms", "unknown_ms", "no_master_ms", "shrinks", "expands", "flaps", "elections",
    "unclean_elections",
]  # fmt: skip
_REPLICA = ["samples", "bytes_max", "ms_max", "samples_out", "last_ack_offset", "last_ts"]
RUN_TABLES = ("membership", "sync_state_set_changes", "failovers", "group_totals", "clock_skew")
_REPLICA_STATE = ["out_ms", "flaps"]
_FLAPS = _STATE.index("flaps")
BYTES_A_MS = 400
"""Bytes that a group's producers write."""


@dataclass(slots=True)
class _Rows:
    """Rows of one table, by column; None is unknown."""

    names: list[str]
    id: bool = False
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        head = [*GROUP, "window_ts", *(["broker_id"] if self.id else [])]
        self.columns = {name: [] for name in (*head, *self.names)}

    def add(self, head: tuple[Any, ...], values: list[int | None]) -> None:
        for column, value in zip(self.columns.values(), (*head, *values), strict=True):
            column.append(value)

    def table(self) -> Any:
        fields = [(name, pa.string() if name in GROUP else pa.int64()) for name in self.columns]
        return pa.table(self.columns, schema=pa.schema(fields))


def write_rollups(fleet: Fleet, out: Path) -> None:
    """Writes OUT/rollup (minutes, hours) and OUT/tables/run=<to_ts>."""
    groups = [_Group(fleet, i) for i in range(len(fleet.names))]
    for hour in range(fleet.from_ts, fleet.to_ts, HOUR_MS):
        for window_ms in (MINUTE_MS, HOUR_MS):
            lag, state, replica = _Rows(_LAG), _Rows(_STATE), _Rows(_REPLICA, id=True)
            histogram = _Rows(["unit", "bucket", "n", "worst"])
            replica_state = _Rows(_REPLICA_STATE, id=True)
            for group in groups:
                windows = list(group.minutes(hour))
                if window_ms == HOUR_MS:
                    windows = [_hour(hour, windows)]
                    _count(histogram, group.name, hour, windows[0].lag)
                for window in windows:
                    head = (*group.name, window.ts)
                    if window.lag is not None:
                        lag.add(head, window.lag)
                    state.add(head, window.state)
                    if flaps := window.state[_FLAPS]:
                        replica_state.add((*head, group.flapping), [20_000 * flaps, flaps])
                    for broker, values in window.replicas.items():
                        replica.add((*head, broker), values)
            written = {
                "lag": lag,
                "group_state": state,
                "replica_lag": replica,
                "replica_state": replica_state,
            }
            if window_ms == HOUR_MS:
                written["lag_histogram"] = histogram
            for name, rows in written.items():
                _write(rows.table(), _path(out / "rollup" / name / f"window={window_ms}", hour))
    for name, listed in _run_tables(fleet).items():
        path = out / "tables" / f"run={fleet.to_ts}" / name / "part.parquet"
        if listed:  # Spark does not read a file without columns
            _write(_typed(pa.Table.from_pylist(listed)), path)


def _typed(table: Any) -> Any:
    """Returns the table with a type for columns without any value."""
    for i, column in enumerate(table.schema):
        if pa.types.is_null(column.type):
            kind = pa.int64() if column.name.endswith("_ts") else pa.string()
            table = table.set_column(i, column.name, pa.nulls(len(table), kind))
    return table


def _path(root: Path, hour_ts: int) -> Path:
    day = series_file("minute", hour_ts).removeprefix("minute-").removesuffix(".json.gz")
    return root / f"dt={day}" / f"hour={hour_ts // HOUR_MS % 24:02d}" / "part.parquet"


def _write(table: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unit = table.column_names.index("unit") if "unit" in table.column_names else None
    if unit is not None:
        names = pa.array([UNITS[each] for each in table["unit"].to_pylist()], pa.string())
        table = table.set_column(unit, "unit", names)
    pq.write_table(table, path, compression="zstd")


@dataclass(slots=True)
class _Window:
    ts: int
    lag: list[int | None] | None
    state: list[int | None]
    replicas: dict[int, list[int | None]]


class _Group:
    def __init__(self, fleet: Fleet, number: int) -> None:
        self.name = fleet.names[number]
        self._fleet, self._number = fleet, number
        self._incidents = fleet.by_group.get(number, ())
        self.flapping = self._incidents[0].replica if self._incidents else 0
        self._base_ms = 1 + fleet.random_of(number, "base").expovariate(0.4)

    def minutes(self, hour_ts: int) -> Iterator[_Window]:
        """Yields the windows of an hour; the same ones each time."""
        dice = self._fleet.random_of(self._number, str(hour_ts))
        for ts in range(hour_ts, hour_ts + HOUR_MS, MINUTE_MS):
            active = next((each for each in self._incidents if each.from_ts <= ts < each.to_ts), None)
            yield self._minute(ts, dice, active)

    def _minute(self, ts: int, dice: random.Random, active: Planted | None) -> _Window:
        kind = active.kind if active else ""
        noise = 0.7 + 0.6 * dice.random()
        p50 = self._base_ms * noise
        if active and kind == "lag":
            p50 = 4_000 + 26_000 * active.size * noise
        p99 = p50 * (2 + 2 * dice.random())
        most = p99 * (1.1 + dice.random()) + (8_000 if kind in ("failover", "unclean") else 0)
        offset = (ts - self._fleet.from_ts) * BYTES_A_MS
        lag: list[int | None] = [60]
        for each in (BYTES_A_MS, 1, 1_000):
            lag += [int(p50 * each), int(p50 * 1.6 * each), int(p99 * each), int(most * each)]
        lag += [int(p50 * 700), int(p50 * 1_100), int(p99 * 900), int(most * 1_000)]
        stale = 30 if kind == "stale-master" else 0
        lag += [int(900 * noise), 60_000, stale, 0, offset, offset - int(p50 * BYTES_A_MS)]
        state: list[int | None] = [0] * len(_STATE)
        for name, value in _state_of(active, ts).items():
            state[_STATE.index(name)] = value
        replicas = {}
        for broker in REPLICAS[1:]:
            if active and kind == "dead-replica" and broker == active.replica:
                behind = (ts - active.from_ts + MINUTE_MS) * BYTES_A_MS
                replicas[broker] = [0, behind, None, None, offset - behind, active.from_ts]
            else:
                out = 20 if active and kind == "flap" and broker == active.replica else 0
                replicas[broker] = [60, int(most * BYTES_A_MS), int(most), out, offset, ts + 59_000]
        if kind == "gap":
            return _Window(ts, None, state, {})
        return _Window(ts, lag, state, replicas)


def _state_of(active: Planted | None, ts: int) -> dict[str, int]:
    if active is None:
        return {}
    first, last = ts == active.from_ts, ts + MINUTE_MS == active.to_ts
    known = {
        "flap": {"shrinks": 2, "expands": 2, "flaps": 2},
        "failover": {"elections": 1, "no_master_ms": 8_000},
        "unclean": {"elections": 1, "unclean_elections": 1, "no_master_ms": 8_000},
        "below-min": {"below_min_ms": MINUTE_MS, "shrinks": 2 * first, "expands": 2 * last},
        "stale-master": {"elections": 1 * first},
        "dead-replica": {"shrinks": 1 * first, "expands": 1 * last},
        "gap": {"unknown_ms": MINUTE_MS},
    }
    return known.get(active.kind, {})


def _hour(ts: int, minutes: list[_Window]) -> _Window:
    """Approximates an hour's roll-up: the 99th percentile of minutes, not of samples."""
    with_lag = [each.lag for each in minutes if each.lag is not None]
    lag: list[int | None] | None = None
    if with_lag:
        lag = [_summary(name, [row[i] for row in with_lag]) for i, name in enumerate(_LAG)]
    state = [sum(each.state[i] or 0 for each in minutes) for i in range(len(_STATE))]
    replicas: dict[int, list[int | None]] = {}
    for broker in REPLICAS[1:]:
        rows = [each.replicas[broker] for each in minutes if broker in each.replicas]
        if rows:
            replicas[broker] = [_summary(name, [row[i] for row in rows]) for i, name in enumerate(_REPLICA)]
    return _Window(ts, lag, list(state), replicas)


def _summary(name: str, values: list[int | None]) -> int | None:
    known = sorted(each for each in values if each is not None)
    if not known:
        return None
    if name in ("samples", "confirms", "covered_ms", "stale_master", "above_max", "samples_out"):
        return sum(known)
    return known[len(known) // 2] if name.endswith("p50") else known[-1]


def _count(histogram: _Rows, name: tuple[str, str], ts: int, lag: list[int | None] | None) -> None:
    if lag is None:
        return
    of = dict(zip(_LAG, lag, strict=True))
    for i, unit in enumerate(UNITS):
        worst = of[f"{unit}_max"] or 0
        counts: dict[int, int] = {}
        for each, n in (("p50", 2_000), ("p95", 1_400), ("p99", 200)):
            bucket = bucket_of(of[f"{unit}_{each}"] or 0)
            counts[bucket] = counts.get(bucket, 0) + n
        for bucket, n in sorted(counts.items()):
            histogram.add((*name, ts), [i, bucket, n, worst])


def _run_tables(fleet: Fleet) -> dict[str, list[dict[str, Any]]]:
    tables: dict[str, list[dict[str, Any]]] = {
        name: []
        for name in ("membership", "sync_state_set_changes", "failovers", "group_totals", "clock_skew")
    }
    for number, (cluster, broker) in enumerate(fleet.names):
        head = {"cluster_name": cluster, "broker_name": broker}
        (one,) = fleet.by_group.get(number, (None,))
        master = 2 if one and one.kind in ("failover", "unclean", "stale-master") else 1
        for replica in REPLICAS:
            tables["membership"] += [head | span for span in _spans(fleet, one, replica, master)]
        minutes = 0 if one is None else (one.to_ts - one.from_ts) // MINUTE_MS
        state = [_state_of(one, one.from_ts + i * MINUTE_MS) for i in range(minutes)] if one else []
        sums = {name: sum(each.get(name, 0) for each in state) for name in _STATE}
        below, unknown = sums["below_min_ms"], sums.pop("unknown_ms")
        known = fleet.to_ts - fleet.from_ts - unknown
        tables["group_totals"].append(
            head | sums | {"availability": 1 - (below + sums["no_master_ms"]) / known}
        )
        if one and sums["elections"]:
            tables["failovers"].append(head | _failover(one, sums["unclean_elections"] > 0))
        if one and one.kind == "skew":
            offset = int(5_000 + 85_000 * one.size)
            row = {"broker_id": one.replica, "offset_ms": offset, "samples": 60, "source": "controller"}
            tables["clock_skew"].append(head | row)
    return tables


def _spans(fleet: Fleet, one: Planted | None, replica: int, master: int) -> list[dict[str, Any]]:
    normal = "master" if replica == 1 else "in_sync"
    if one is None or one.kind in ("lag", "skew"):
        parts = [(fleet.from_ts, fleet.to_ts, normal)]
    elif master == 2:
        after = "master" if replica == 2 else "in_sync"
        parts = [(fleet.from_ts, one.from_ts, normal), (one.from_ts, fleet.to_ts, after)]
    elif one.kind == "gap":
        parts = [(fleet.from_ts, one.from_ts, normal), (one.to_ts, fleet.to_ts, normal)]
    elif replica == one.replica or (one.kind == "below-min" and replica != 1):
        parts = [
            (fleet.from_ts, one.from_ts, normal),
            (one.from_ts, one.to_ts, "out"),
            (one.to_ts, fleet.to_ts, normal),
        ]
    else:
        parts = [(fleet.from_ts, fleet.to_ts, normal)]
    return [
        {"broker_id": replica, "from_ts": start, "to_ts": end, "state": state}
        for start, end, state in parts
        if end > start
    ]


def _failover(one: Planted, unclean: bool) -> dict[str, Any]:
    lost = one.from_ts + 2_000
    times = {"last_heartbeat_ts": lost, "detected_ts": lost + 6_000, "elected_ts": lost + 6_050}
    return {
        "event_id": 1, "ts": lost + 6_050, "old_master": 1, "new_master": 2, "master_epoch": 2,
        "reason": "broker 1 is not active", "unclean": unclean, "fault_ts": None, **times,
        "ready_ts": lost + 6_090, "detect_ms": 6_000, "elect_ms": 50, "ready_ms": 40,
        "killed_program": None, "gap_ms": 6_200,
    }  # fmt: skip
