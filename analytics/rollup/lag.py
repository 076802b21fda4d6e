"""confirmOffset lag of a group per window: percentiles in bytes, milliseconds and microseconds.

Four units. "bytes" and "ms" are read once a second; "lag_us" and "confirm_us" are histograms that the
broker kept between two samples. All are counted into the buckets of keelmq.runtime.log_buckets, so a
percentile is at most 9.05 % above the exact one. Counts of minutes add up to those of an hour; percentiles
are never averaged.

Samples of a replaced master, and those whose confirmOffset is above their maxOffset (a defect of a
truncation), are left out of the lag and counted.

Frames here have `gid` for a group's hour (see masters.terms) and `at`, the number of the window in it.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.rollup.buckets import bucket, bucket_top
from analytics.rollup.masters import HOUR_MS
from analytics.windows import at_of

UNITS = ("bytes", "ms", "lag_us", "confirm_us")
PERCENT = {"p50": 50, "p95": 95, "p99": 99}
SECOND_MS = 1_000

_BUCKET_BITS, _UNIT_BITS, _AT_BITS = 10, 2, 12
_SERIES_BITS = _UNIT_BITS + _BUCKET_BITS
_GID_BITS = _AT_BITS + _SERIES_BITS
"""A key is one whole number, gid | at | unit | bucket: its aggregate and sort take half the time of those
over columns."""


def counts(samples: DataFrame, base_ms: int) -> DataFrame:
    """Returns `n` by `key`, which names gid, at, unit (its place in UNITS) and bucket; `worst` of the units
    that have one.

    `samples`: rows of master_sample by in_terms(). `base_ms`: width of a window; a minute at most.
    """
    lag_bytes, lag_ms = _lag_bytes(), _lag_ms()
    lists = F.array(_one(lag_bytes), _one(lag_ms), F.col("lag_us"), F.col("confirm_us"))
    window = F.shiftleft(F.shiftleft("gid", _AT_BITS) + at_of(F.col("ts"), base_ms), _SERIES_BITS)
    worst = F.when(F.col("unit") == 0, F.col("worst_bytes")).when(F.col("unit") == 1, F.col("worst_ms"))
    key = F.col("window") + F.shiftleft("unit", _BUCKET_BITS) + F.col("each.bucket")
    return (
        samples.where(~_is_left_out())
        .select(
            window.alias("window"),
            F.greatest(lag_bytes, "lag_bytes_max").alias("worst_bytes"),
            F.greatest(lag_ms, "lag_ms_max").alias("worst_ms"),
            F.posexplode(lists).alias("unit", "list"),
        )
        .select("*", F.explode("list").alias("each"))
        .select(key.alias("key"), F.col("each.n").alias("n"), worst.alias("worst"))
        .groupBy("key")
        .agg(F.sum("n").alias("n"), F.max("worst").alias("worst"))
    )


def _bits(key: Column, low: int, width: int) -> Column:
    return F.shiftright(key, low).bitwiseAND(F.lit((1 << width) - 1).cast("long"))


def _gid(key: Column) -> Column:
    return F.shiftright(key, _GID_BITS)


def _one(value: Column) -> Column:
    return F.array(F.struct(bucket(value).alias("bucket"), F.lit(1).cast("int").alias("n")))


def _lag_bytes() -> Column:
    return F.col("max_offset") - F.col("confirm_offset")


def _lag_ms() -> Column:
    return F.greatest("lag_ms", F.lit(0))


def _is_left_out() -> Column:
    return F.col("is_stale") | _is_above_max()


def _is_above_max() -> Column:
    return F.col("confirm_offset") > F.col("max_offset")


def totals(samples: DataFrame, base_ms: int) -> DataFrame:
    """Returns gid, at, and what is not a percentile: samples, stale_master, above_max, covered_ms, and the
    offsets of the last sample, with its order `last`.

    covered_ms, in whole seconds: a sample covers its second and the next one, also beyond the window's end if
    the next window has samples; not beyond the hour's.
    """
    kept = ~_is_left_out()
    bit = F.expr(f"shiftleft(1L, cast(pmod(ts, {base_ms}) div {SECOND_MS} as int))")
    # brokers never share an instant and an epoch, but damaged files must not make two runs differ
    last = F.when(kept, F.col("ts") * 1024 + F.pmod("broker_id", F.lit(1024)))
    found = samples.groupBy("gid", at_of(F.col("ts"), base_ms).alias("at")).agg(
        F.count_if(kept).alias("samples"),
        F.count_if("is_stale").alias("stale_master"),
        F.count_if(~F.col("is_stale") & _is_above_max()).alias("above_max"),
        F.bit_or(F.when(kept, bit).otherwise(F.lit(0).cast("long"))).alias("seconds"),
        F.max(last).alias("last"),
        F.max_by("max_offset", last).alias("max_offset"),
        F.max_by("confirm_offset", last).alias("confirm_offset"),
    )
    return found.withColumn("covered_ms", _covered_ms(base_ms // SECOND_MS)).drop("seconds")


def _covered_ms(seconds: int) -> Column:
    in_order = Window.partitionBy("gid").orderBy("at")
    is_next = F.lag("at").over(in_order) == F.col("at") - 1
    last_bit = F.shiftrightunsigned(F.lag("seconds").over(in_order), seconds - 1)
    carried = F.when(is_next, last_bit).otherwise(F.lit(0).cast("long"))
    covered = F.col("seconds").bitwiseOR(F.shiftleft("seconds", 1)).bitwiseOR(carried)
    return F.bit_count(covered.bitwiseAND(F.lit((1 << seconds) - 1).cast("long"))).cast("long") * SECOND_MS


def widened_counts(base: DataFrame, factor: int) -> DataFrame:
    """Returns the counts of windows that are `factor` times as wide."""
    if factor == 1:
        return base
    key = F.col("key")
    at = F.floor(_bits(key, _SERIES_BITS, _AT_BITS) / factor)
    wide = F.shiftleft(F.shiftleft(_gid(key), _AT_BITS) + at, _SERIES_BITS) + _bits(key, 0, _SERIES_BITS)
    return base.groupBy(wide.alias("key")).agg(F.sum("n").alias("n"), F.max("worst").alias("worst"))


def widened_totals(base: DataFrame, factor: int) -> DataFrame:
    """Returns the totals of windows that are `factor` times as wide."""
    if factor == 1:
        return base
    sums = ("samples", "stale_master", "above_max", "covered_ms")
    return base.groupBy("gid", F.expr(f"at div {factor}").alias("at")).agg(
        *(F.sum(name).alias(name) for name in sums),
        F.max("last").alias("last"),
        *(F.max_by(name, "last").alias(name) for name in ("max_offset", "confirm_offset")),
    )


def percentiles(counted: DataFrame) -> DataFrame:
    """Returns gid, at, and per unit p50, p95, p99 and max; `confirms`. NULL: nothing was measured.

    The percentile of rank q is the top of the first bucket up to which at least q of the values lie, and
    never more than the worst value, where that is known.
    """
    series, bucket_number = F.col("series"), _bits(F.col("key"), 0, _BUCKET_BITS).cast("smallint")
    by_series = Window.partitionBy("series")
    up_to, total = F.sum("n").over(by_series.orderBy("key")), F.sum("n").over(by_series)
    reached = {
        name: F.min(F.when(F.col("up_to") * 100 >= F.col("total") * percent, F.col("key")))
        for name, percent in PERCENT.items()
    }
    tops = {name: bucket_top(_bits(F.col(name), 0, _BUCKET_BITS)) for name in PERCENT}
    ranked = (
        counted.withColumn("series", F.shiftright("key", _BUCKET_BITS))
        .withColumns({"up_to": up_to, "total": total})
        .groupBy("series")
        .agg(
            *(column.alias(name) for name, column in reached.items()),
            F.max("total").alias("total"),
            F.coalesce(F.max("worst"), bucket_top(F.max(bucket_number))).alias("max"),
        )
        .withColumns({name: F.least(top, "max") for name, top in tops.items()})
        .withColumns(
            {
                "gid": F.shiftright(series, _GID_BITS - _BUCKET_BITS),
                "at": _bits(series, _UNIT_BITS, _AT_BITS),
                "unit": _bits(series, 0, _UNIT_BITS),
            }
        )
    )
    columns = [
        F.max(F.when(F.col("unit") == place, F.col(name))).alias(f"{unit}_{name}")
        for place, unit in enumerate(UNITS)
        for name in (*PERCENT, "max")
    ]
    confirms = F.max(F.when(F.col("unit") == UNITS.index("confirm_us"), F.col("total"))).alias("confirms")
    return ranked.groupBy("gid", "at").agg(*columns, confirms)


def lag(counted: DataFrame, totalled: DataFrame, window_ms: int) -> DataFrame:
    """Returns gid, window, at and the columns of the table, from the counts and totals of these windows."""
    found = totalled.join(percentiles(counted), ["gid", "at"], "left")
    return found.withColumn("window", F.lit(window_ms)).drop("last")


def hour_histogram(counted: DataFrame, base_ms: int) -> DataFrame:
    """Returns gid, unit (its name), bucket, n and worst of the hour."""
    key = F.col("key")
    number = _bits(key, 0, _BUCKET_BITS).cast("smallint")
    unit = F.array(*(F.lit(unit) for unit in UNITS))[_bits(key, _BUCKET_BITS, _UNIT_BITS).cast("int")]
    worst = F.coalesce("worst", bucket_top(number))
    return widened_counts(counted, HOUR_MS // base_ms).select(
        _gid(key).alias("gid"), unit.alias("unit"), number.alias("bucket"), "n", worst.alias("worst")
    )
