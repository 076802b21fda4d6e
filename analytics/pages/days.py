"""Days as the sum of their hours: counts and times are added, percentiles come from the added histograms."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from analytics.pages.grid import GROUP, Resolution, Rollups, read_rows
from keelmq.runtime.log_buckets import bucket_top
from keelmq.web.page_files import STEP_MS

HOUR_MS, DAY_MS = STEP_MS["hour"], STEP_MS["day"]
UNITS = ("bytes", "ms", "lag_us", "confirm_us")
PERCENT = {"p50": 50, "p95": 95, "p99": 99}
_SUMS = {
    "lag": ("samples", "confirms", "covered_ms", "stale_master", "above_max"),
    "group_state": (
        "below_min_ms", "unknown_ms", "no_master_ms", "shrinks", "expands", "flaps", "elections",
        "unclean_elections",
    ),
    "replica_lag": ("samples",),
}  # fmt: skip
_MOST = {
    "lag": ("bytes_max", "ms_max", "lag_us_max", "confirm_us_max"),
    "group_state": (),
    "replica_lag": ("bytes_max", "ms_max"),
}


def day_rows(rollups: Rollups, hours: Resolution, days: Sequence[str]) -> dict[str, Any]:
    """Returns the tables lag, group_state and replica_lag with one row per day.

    One day after another is read: the histograms of a fleet's year do not fit into the memory.
    """
    histogram = rollups.files("lag_histogram", HOUR_MS)
    found: dict[str, list[Any]] = {}
    for day in days:
        for name, table in _rows_of_day(hours, day, histogram.get(day, [])).items():
            found.setdefault(name, []).append(table)
    return {
        name: _encoded(pa.concat_tables(each, promote_options="permissive")) for name, each in found.items()
    }


def _rows_of_day(hours: Resolution, day: str, histogram_files: Sequence[Path]) -> dict[str, Any]:
    found = {}
    for name, sums in _SUMS.items():
        keys = [*GROUP, *(["broker_id"] if name == "replica_lag" else [])]
        most = _MOST[name]
        rows = read_rows(hours.paths(name, [day]), ("window_ts", *keys, *sums, *most))
        if rows is None:
            continue
        wanted = [(each, "sum") for each in sums if each in rows.column_names]
        wanted += [(each, "max") for each in most if each in rows.column_names]
        added = _by_day(rows).group_by(["window_ts", *keys]).aggregate(wanted)
        names = {f"{each}_{how}": each for each, how in wanted}
        found[name] = added.rename_columns([names.get(each, each) for each in added.column_names])
    histogram = read_rows(histogram_files, ("window_ts", *GROUP, "unit", "bucket", "n", "worst"))
    if "lag" in found and histogram is not None:
        found["lag"] = found["lag"].join(
            _percentiles(histogram), ["window_ts", *GROUP], join_type="left outer"
        )
    return found


def _encoded(rows: Any) -> Any:
    for name in GROUP:
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].dictionary_encode())
    return rows.combine_chunks()


def _by_day(rows: Any) -> Any:
    ts = rows["window_ts"]
    day = pc.multiply(pc.divide(ts, DAY_MS), DAY_MS)
    for name in GROUP:  # grouping does not take dictionaries
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(pa.string()))
    return rows.set_column(rows.column_names.index("window_ts"), "window_ts", day)


def _percentiles(histogram: Any) -> Any:
    """Returns one row per group and day with UNIT_p50 and so on. Shared buckets add up; see log_buckets."""
    keys = ["window_ts", *GROUP, "unit"]
    added = (
        _by_day(histogram)
        .filter(pc.greater_equal(histogram["bucket"], 0))
        .group_by([*keys, "bucket"])
        .aggregate([("n", "sum"), ("worst", "max")])
        .sort_by([(each, "ascending") for each in [*keys, "bucket"]])
    )
    rows: dict[tuple[Any, ...], dict[str, int]] = {}
    counts: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    worst: dict[tuple[Any, ...], int] = {}
    for row in added.to_pylist():
        key = tuple(row[each] for each in keys)
        counts.setdefault(key, []).append((row["bucket"], row["n_sum"]))
        worst[key] = max(worst.get(key, 0), row["worst_max"] or 0)
    for key, buckets in counts.items():
        *group, unit = key
        found = rows.setdefault(tuple(group), {})
        for name, value in percentiles(buckets).items():
            found[f"{unit}_{name}"] = min(value, worst[key]) if worst[key] else value
    names = ["window_ts", *GROUP]
    return pa.Table.from_pylist(
        [dict(zip(names, group, strict=True)) | found for group, found in rows.items()],
        schema=pa.schema(
            [("window_ts", pa.int64()), *((each, pa.string()) for each in GROUP)]
            + [
                (f"{unit}_{name}", pa.int64())
                for unit in ("bytes", "ms", "lag_us", "confirm_us")
                for name in PERCENT
            ]
        ),
    )


def percentiles(buckets: Sequence[tuple[int, int]]) -> dict[str, int]:
    """Returns p50, p95 and p99 of (bucket, count) pairs in order, as the largest number of a bucket."""
    total = sum(n for _, n in buckets)
    found: dict[str, int] = {}
    for name, percent in PERCENT.items():
        rank, passed = -(-total * percent // 100), 0
        for bucket, n in buckets:
            passed += n
            if passed >= rank:
                found[name] = bucket_top(bucket)
                break
    return found
