"""Rolls up the hours that are new or changed: the queries of their tables run on Spark, and each hour's rows
become a file.

An hour of minutes has a sixtieth of its samples' rows, so the driver collects them and writes the files
itself: equal rows give equal files, to the byte, on every engine.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from analytics.compaction.manifest import HOUR_MS, HourManifest
from analytics.errors import AnalyticsError
from analytics.queries.kept import keeping
from analytics.rollup.hours import Hours
from analytics.rollup.inputs import Inputs, inputs_of
from analytics.rollup.store import ROLLUP, RollupStore
from analytics.rollup.tables import TABLES, RollUp

MINUTE_MS = 60_000
BATCH_ROWS_MAX = 5_000_000
"""Compacted rows of one batch of hours, which bounds memory, and what an interrupted run computes again. On
the embedded engine a batch of four times as many rows takes six times the CPU time."""

Progress = Callable[[str], None]


def windows_of(base_ms: int | None) -> tuple[int, ...]:
    """Returns the widths of windows, ascending: minutes, hours, and `base_ms` if it is another.

    Raises AnalyticsError if windows of `base_ms` do not fill minutes or are not filled by minutes.
    """
    if base_ms is None or base_ms >= HOUR_MS:
        return MINUTE_MS, HOUR_MS
    fine, coarse = min(base_ms, MINUTE_MS), max(base_ms, MINUTE_MS)
    if base_ms <= 0 or base_ms % 1_000 or coarse % fine or HOUR_MS % base_ms:
        raise AnalyticsError(
            f"a window of {base_ms} ms: it must be whole seconds, divide an hour, and divide a minute or be "
            "whole minutes; for example 5000, 10000, 300000"
        )
    return tuple(sorted({base_ms, MINUTE_MS, HOUR_MS}))


def roll_up(
    spark: SparkSession,
    out: str,
    manifests: Sequence[HourManifest],
    *,
    base_ms: int | None = None,
    tables: Collection[str] = TABLES.keys(),
    inputs: Mapping[int, Inputs] | None = None,
    ends: Mapping[int, int] | None = None,
    progress: Progress = lambda _: None,
) -> list[int]:
    """Computes the hours that are not up to date; returns them. A second run does nothing.

    `manifests`: of the compacted hours to look at. `base_ms`: a window besides minutes and hours. `tables`:
    names from TABLES; those made of events need `minimum`. `inputs`: inputs_of() all compacted hours, by
    hour_ts; None: of `manifests`. `ends`: up to when an hour has rows.
    """
    windows, store = windows_of(base_ms), RollupStore(out)
    inputs = inputs or inputs_of(manifests)
    stale = store.stale(manifests, windows, inputs)
    for batch in _batches(stale):
        progress(f"rolling up {len(batch)} hours, {sum(each.rows for each in batch):,} rows")
        of_batch = [inputs[each.hour_ts] for each in batch]
        files: dict[int, list[str]] = {each.hour_ts: [] for each in batch}
        with keeping() as keep:
            hours = Hours(spark, store.url, of_batch, batch, windows, ends or {}, keep)
            store.check_parts(hours.manifests)
            for table in TABLES.values():
                if table.name in tables and hours.has_any(table.sources):
                    folder = f"{ROLLUP}/{table.name}"
                    for hour_ts, name in write_hours(store, folder, table, table.rows(hours)):
                        files[hour_ts].append(name)
        store.place(batch, files, windows, inputs)
    return [each.hour_ts for each in stale]


def write_hours(store: RollupStore, folder: str, table: RollUp, rows: pa.Table) -> Iterator[tuple[int, str]]:
    """Writes a file per window and hour below the folder, in the order of the key; yields (hour_ts, its
    name).

    `rows`: the columns of the table, and `window`, the width, in any order.
    """
    if not len(rows):
        return
    order = [(name, "ascending") for name in ("window", "window_ts", *table.columns[: table.key])]
    rows = rows.combine_chunks().sort_by(order)
    widths, hours = rows["window"].to_numpy(), rows["window_ts"].to_numpy() // HOUR_MS
    starts = np.flatnonzero(np.append(True, (np.diff(widths) != 0) | (np.diff(hours) != 0)))
    plain = rows.select(table.columns).cast(table.schema)
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
        hour_ts = int(hours[start]) * HOUR_MS
        of_hour = plain.slice(start, end - start).sort_by(order[2:])
        yield hour_ts, store.put(folder, int(widths[start]), hour_ts, of_hour)


def _batches(manifests: Sequence[HourManifest]) -> list[list[HourManifest]]:
    batches: list[list[HourManifest]] = []
    rows = 0
    for each in manifests:
        if not batches or rows + each.rows > BATCH_ROWS_MAX:
            batches.append([])
            rows = 0
        batches[-1].append(each)
        rows += each.rows
    return batches
