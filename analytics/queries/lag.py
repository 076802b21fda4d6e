"""confirmOffset lag of a group per window: percentiles in bytes, milliseconds and microseconds.

Four units. "bytes" and "ms" are read once a second; "lag_us" and "confirm_us" are histograms that the broker
kept between two samples. All are counted into the buckets of keelmq.runtime.log_buckets, so a percentile is
at most 9.05 % above the exact one. Counts of minutes add up to those of an hour; percentiles are never
averaged.

Samples of a replaced master, and those whose confirmOffset is above their maxOffset (a defect of a
truncation), are left out of the lag and counted.

The percentile of rank q is the top of the first bucket up to which at least q of the values lie, and never
more than the worst value, where that is known. NULL: nothing was measured.

covered_ms, in whole seconds: a sample covers its second and the next one, also beyond the window's end if the
next window has samples; not beyond the hour's. Windows above a minute have the sum of their minutes.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.queries.histogram import bucket, bucket_top, shift_left
from analytics.queries.windows import (
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    all_rows,
    in_widths,
    last_order,
    window_of,
)
from analytics.tables import GROUP

UNITS = ("bytes", "ms", "lag_us", "confirm_us")
PERCENT = {"p50": 50, "p95": 95, "p99": 99}
LAG_COLUMNS = (
    "samples", *(f"{unit}_{name}" for unit in UNITS for name in (*PERCENT, "max")), "confirms", "covered_ms",
    "stale_master", "above_max", "max_offset", "confirm_offset",
)  # fmt: skip
_BASE = (*GROUP, "window_ts")
_WINDOW = (*GROUP, "window", "window_ts")
_SERIES = (*_WINDOW, "unit")
_COUNTED = ("samples", "stale_master", "above_max")


def lag(samples: DataFrame, windows: Sequence[int], cells: DataFrame | None = None) -> DataFrame:
    """Returns a row per group and window with a sample: GROUP, window (its width in ms), window_ts,
    LAG_COLUMNS.

    `samples`: rows of master_sample with is_stale. `windows`: widths in ms, ascending, which divide an hour;
    the first divides a minute or is one, the others are whole minutes. `cells`: lag_cells() of these samples
    and of the first width, if they are kept.
    """
    found = lag_cells(samples, windows[0]) if cells is None else cells
    totals = _totals(samples, windows)
    percentiles = _percentiles(_widened(found, windows))
    of_units: dict[str, Column] = {
        f"{unit}_{name}": F.max(F.when(F.col("unit") == place, F.col(name)))
        for place, unit in enumerate(UNITS)
        for name in (*PERCENT, "max")
    }
    of_units["confirms"] = F.max(F.when(F.col("unit") == UNITS.index("confirm_us"), F.col("total")))
    columns = {name: of_units.get(name, F.max(name)) for name in LAG_COLUMNS}
    return (
        all_rows([totals, percentiles])
        .groupBy(*_WINDOW)
        .agg(*(column.alias(name) for name, column in columns.items()))
    )


def lag_cells(samples: DataFrame, base_ms: int) -> DataFrame:
    """Returns what the samples of current masters measured, counted: GROUP, window_ts, unit (INT: its place
    in UNITS), bucket (INT), n, worst.

    They add up: windows become wider by the sum of n and the highest `worst`, the worst value in the bucket;
    NULL if it is not known.
    """
    behind = F.col("max_offset") - F.col("confirm_offset")
    lag_ms = F.greatest("lag_ms", F.lit(0))  # greatest() ignores NULL
    counted = samples.where("NOT is_stale AND confirm_offset <= max_offset").withColumn(
        "window_ts", window_of(F.col("ts"), base_ms)
    )
    # A scan per unit, each with only its columns: exploding all four from one scan costs both engines more.
    units = [_once(counted, behind, "lag_bytes_max"), _once(counted, lag_ms, "lag_ms_max")]
    units += [_listed(counted, name) for name in UNITS[2:]]
    found = (
        rows.select(*_BASE, F.lit(place).alias("unit"), "bucket", "n", "worst")
        for place, rows in enumerate(units)
    )
    return reduce(DataFrame.unionByName, found)


def lag_histogram(cells: DataFrame) -> DataFrame:
    """Returns the histograms of hours: GROUP, window_ts, unit (its name), bucket (SMALLINT), n, worst.

    `cells`: of lag_cells(), of any width.
    """
    names = reduce(
        lambda otherwise, place: F.when(F.col("unit") == place, UNITS[place]).otherwise(otherwise),
        range(len(UNITS)),
        F.lit(None).cast("string"),
    )
    return _added(cells.withColumn("window_ts", window_of(F.col("window_ts"), HOUR_MS)), *_BASE).select(
        *_BASE,
        names.alias("unit"),
        F.col("bucket").cast("smallint").alias("bucket"),
        "n",
        F.coalesce("worst", bucket_top(F.col("bucket"))).alias("worst"),
    )


def _once(samples: DataFrame, value: Column, worst: str) -> DataFrame:
    """Returns the cells of a value that is read once a second."""
    most = F.greatest(value, F.col(worst))
    found = samples.select(*_BASE, bucket(value).alias("bucket"), most.alias("worst"))
    return found.groupBy(*_BASE, "bucket").agg(F.count(F.lit(1)).alias("n"), F.max("worst").alias("worst"))


def _listed(samples: DataFrame, name: str) -> DataFrame:
    """Returns the cells of the histograms in samples."""
    cells = samples.select(*_BASE, F.explode(name).alias("cell"))
    found = cells.groupBy(*_BASE, F.col("cell.bucket").cast("int").alias("bucket")).agg(
        F.sum("cell.n").alias("n")
    )
    return found.withColumn("worst", F.lit(None).cast("bigint"))


def _added(cells: DataFrame, *window: str) -> DataFrame:
    return cells.groupBy(*window, "unit", "bucket").agg(F.sum("n").alias("n"), F.max("worst").alias("worst"))


def _widened(cells: DataFrame, windows: Sequence[int]) -> DataFrame:
    """Returns the cells of all widths. `cells`: of the first one."""
    if len(windows) == 1:
        return cells.withColumn("window", F.lit(windows[0]))
    wide = in_widths(cells, windows).withColumn("window_ts", window_of(F.col("window_ts"), F.col("window")))
    return _added(wide, *_WINDOW)


def _percentiles(cells: DataFrame) -> DataFrame:
    """Returns _SERIES, total (of n), max, and PERCENT."""
    series = Window.partitionBy(*_SERIES).orderBy("bucket")
    up_to = F.sum("n").over(series.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    # In the same order, so it needs no other sort.
    total = F.sum("n").over(series.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing))
    ranked = cells.withColumns({"up_to": up_to, "total": total})
    reached = {
        name: F.min(F.when(F.col("up_to") * 100 >= F.col("total") * percent, F.col("bucket")))
        for name, percent in PERCENT.items()
    }
    found = ranked.groupBy(*_SERIES).agg(
        F.max("total").alias("total"),
        F.coalesce(F.max("worst"), bucket_top(F.max("bucket"))).alias("max"),
        *(number.alias(name) for name, number in reached.items()),
    )
    return found.withColumns({name: F.least(bucket_top(F.col(name)), F.col("max")) for name in PERCENT})


def _totals(samples: DataFrame, windows: Sequence[int]) -> DataFrame:
    """Returns _WINDOW, _COUNTED, covered_ms, and max_offset and confirm_offset of the last sample that
    counts."""
    is_above = ~F.col("is_stale") & (F.col("confirm_offset") > F.col("max_offset"))
    counts = ~F.col("is_stale") & (F.col("confirm_offset") <= F.col("max_offset"))
    second = F.floor(F.pmod("ts", F.lit(MINUTE_MS)) / SECOND_MS)
    order = F.when(counts, last_order())
    base = samples.groupBy(*GROUP, window_of(F.col("ts"), windows[0]).alias("window_ts")).agg(
        *(
            F.sum(which.cast("bigint")).alias(name)
            for name, which in zip(_COUNTED, (counts, F.col("is_stale"), is_above), strict=True)
        ),
        F.bit_or(F.when(counts, shift_left(F.lit(1), second)).otherwise(F.lit(0).cast("bigint"))).alias(
            "seconds"
        ),
        F.max(order).alias("last"),
        *(F.max_by(name, order).alias(name) for name in ("max_offset", "confirm_offset")),
    )
    found = _covered(base, windows[0]).withColumn("window", F.lit(windows[0]))
    if windows[1:]:
        minutes = base.withColumn("window_ts", window_of(F.col("window_ts"), MINUTE_MS))
        minutes = _covered(_summed(minutes, *_BASE), MINUTE_MS)
        wider = in_widths(minutes, windows[1:]).withColumn(
            "window_ts", window_of(F.col("window_ts"), F.col("window"))
        )
        found = found.unionByName(_summed(wider, *_WINDOW))
    return found.drop("seconds", "last")


def _summed(rows: DataFrame, *window: str) -> DataFrame:
    """Returns the totals of wider windows."""
    sums = [name for name in (*_COUNTED, "covered_ms") if name in rows.columns]
    return rows.groupBy(*window).agg(
        *(F.sum(name).alias(name) for name in sums),
        F.bit_or("seconds").alias("seconds"),
        F.max("last").alias("last"),
        *(F.max_by(name, "last").alias(name) for name in ("max_offset", "confirm_offset")),
    )


def _covered(rows: DataFrame, window_ms: int) -> DataFrame:
    """Returns the rows with covered_ms. `window_ms`: their width, a minute at most; `seconds`: a bit for each
    second of the minute with a sample that counts."""
    width = window_ms // SECOND_MS
    first = F.floor(F.pmod("window_ts", F.lit(MINUTE_MS)) / SECOND_MS)  # the bit of the window's first second
    before = Window.partitionBy(*GROUP).orderBy("window_ts")
    follows = (F.lag("window_ts").over(before) == F.col("window_ts") - window_ms) & (
        F.pmod("window_ts", F.lit(HOUR_MS)) != 0
    )
    carried = F.when(follows, F.shiftrightunsigned(F.lag("own").over(before), width - 1)).otherwise(0)
    own = F.call_function("shiftrightunsigned", F.col("seconds"), first.cast("int"))
    covered = F.col("own").bitwiseOR(F.shiftleft("own", 1)).bitwiseOR(carried.bitwiseAND(1))
    ms = F.bit_count(covered.bitwiseAND((1 << width) - 1)).cast("bigint") * SECOND_MS
    return rows.withColumn("own", own).withColumn("covered_ms", ms).drop("own")
