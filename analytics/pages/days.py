"""Days as the sum of their hours: counts and times are added, percentiles come from the added histograms.

    OUT/pages/days/dt=YYYY-MM-DD     the rows of a day, and a digest of the roll-ups that they are of

The file of a year is written anew with each new hour, so the rows of all other days are read from there.
"""

import contextlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from analytics.pages.grid import GROUP, Resolution, Rollups, read_rows
from analytics.pages.reuse import digest_of
from keelmq.runtime.durable_file import replace_file
from keelmq.runtime.log_buckets import bucket_top
from keelmq.web.page_files import STEP_MS

HOUR_MS, DAY_MS = STEP_MS["hour"], STEP_MS["day"]
DAYS = "days"
"""The folder of kept days, beside the generations."""
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


class Kept(msgspec.Struct, frozen=True):
    """The rows of a day: Arrow streams, by table."""

    digest: str
    tables: dict[str, bytes]


class Days:
    """The rows of the tables lag, group_state and replica_lag, one per group or replica and day.

    `hours`: their roll-ups. `kept`: the folder of the days that are computed already.
    """

    def __init__(self, rollups: Rollups, hours: Resolution, kept: Path) -> None:
        self._hours, self._kept = hours, kept
        self._histogram = rollups.files("lag_histogram", HOUR_MS)

    @cache  # noqa: B019 - one object per run
    def digest(self, day: str) -> str:
        """Returns a digest of a day's roll-ups."""
        paths = [path for name in _SUMS for path in self._hours.paths(name, [day])]
        return digest_of([*paths, *self._histogram.get(day, [])], "day")

    def rows(self, days: Sequence[str]) -> dict[str, Any]:
        """Returns the rows of these days. Raises OSError.

        One day after another is read: the histograms of a fleet's year do not fit into the memory.
        """
        found: dict[str, list[Any]] = {}
        for day in days:
            for name, table in self._of_day(day).items():
                found.setdefault(name, []).append(table)
        return {
            name: _encoded(pa.concat_tables(each, promote_options="permissive"))
            for name, each in found.items()
        }

    def _of_day(self, day: str) -> dict[str, Any]:
        path, digest = self._kept / f"dt={day}", self.digest(day)
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError, pa.ArrowInvalid):
            kept = msgspec.msgpack.decode(path.read_bytes(), type=Kept)
            if kept.digest == digest:
                return {name: pa.ipc.open_stream(data).read_all() for name, data in kept.tables.items()}
        rows = _rows_of_day(self._hours, day, self._histogram.get(day, []))
        kept = Kept(digest, {name: _stream(table) for name, table in rows.items()})
        replace_file(path, msgspec.msgpack.encode(kept), keep_backup=False, durable=False)
        return rows


def _stream(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


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
