"""How long groups were below minInSyncReplicas, without a master, unknown, and available; what happened then.

The minimum is a setting of brokers, in the samples of masters: a value counts from its first sample until a
sample has another value; before the first sample, the first value counts.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.queries.event_log import ALTER, CLEAN, ELECT, HOUR_MS, keys_of
from analytics.queries.sync_state_set import flaps, is_election, is_expand, is_shrink
from analytics.queries.windows import all_rows, clip, in_widths, one_of, window_of
from analytics.tables import GROUP

_EVER = 1 << 53
_REIGN = ("master_broker_id", "master_epoch")
_TIMES = ("known_ms", "unknown_ms", "no_master_ms", "with_minimum_ms", "below_ms")
_COUNTS = ("shrinks", "expands", "flaps", "elections", "unclean_elections")


def minimum_changes(samples: DataFrame, *, by_hour: bool = False) -> DataFrame:
    """Returns the first min_in_sync_replicas of each group (and hour, column hour_ts) and every change of it.

    `samples`: of masters whose epoch is the group's present one, or the changes of shorter times.
    """
    timed = samples.withColumn("hour_ts", window_of(F.col("ts"), HOUR_MS)) if by_hour else samples
    keys = [*GROUP, "hour_ts"] if by_hour else [*GROUP]
    before = F.lag("min_in_sync_replicas").over(Window.partitionBy(*keys).orderBy("ts", "broker_id"))
    return (
        timed.withColumn("_before", before)
        .where(~F.col("_before").eqNullSafe(F.col("min_in_sync_replicas")))
        .select(*keys, "ts", "min_in_sync_replicas")
    )


def group_state(
    history: DataFrame, spans: DataFrame, minimum: DataFrame, windows: Sequence[int]
) -> DataFrame:
    """Returns one row per group and window in which the group is there, or has an event. window: its width.

    unknown_ms: its state is not known. below_min_ms: its SyncStateSet is smaller than the minimum; NULL: the
    state or the minimum is not known in any of the window. no_master_ms: NULL if no state is known. shrinks,
    expands: changes that the master asked for (alterSyncStateSet); flaps; elections, unclean_elections.
    `minimum`: see minimum_changes(); by hours if `history` is.
    """
    keys = keys_of(spans)
    window = F.col("window")
    of_widths = in_widths(_with_minimum(spans, minimum), windows)
    times = clip(of_widths, window).select(*keys, "window", "window_ts", *_times(F.col("ms")))
    counted = in_widths(_counts_of(history), windows).withColumn("window_ts", window_of(F.col("ts"), window))
    return (
        all_rows([times, counted.drop("ts")])
        .groupBy(*GROUP, "window", "window_ts")
        .agg(*_sums(_TIMES), *_sums(_COUNTS))
        .withColumns(_unknown_is_null())
        .drop("known_ms", "with_minimum_ms", "below_ms")
    )


def group_totals(history: DataFrame, spans: DataFrame, minimum: DataFrame, ready: DataFrame) -> DataFrame:
    """Returns one row per group: the numbers of group_state() over the whole time, known_ms, and

    elections_by_reason: (reason, n), with brokers' ids as "#". replica_ms: known time times replicas.
    flaps_per_replica_hour. available_ms of judged_ms, and availability, their ratio: see available_spans().
    `ready`: see failover.elections().
    """
    ms = F.col("to_ts") - F.col("from_ts")
    with_minimum = _with_minimum(spans, minimum)
    replica_ms = F.when(F.col("view").isNotNull(), ms * F.size("view.replicas"))
    of_time = with_minimum.select(*GROUP, *_times(ms), replica_ms.alias("replica_ms"))
    totals = (
        all_rows([of_time, _counts_of(history).drop("ts")])
        .groupBy(*GROUP)
        .agg(*_sums((*_TIMES, *_COUNTS, "replica_ms")))
        .withColumns(_unknown_is_null())
        .drop("with_minimum_ms", "below_ms")
    )
    available = (
        available_spans(with_minimum, history, ready)
        .groupBy(*GROUP)
        .agg(
            F.sum(ms).alias("judged_ms"),
            F.sum(F.when(F.col("is_available"), ms).otherwise(0)).alias("available_ms"),
        )
    )
    hours = F.nullif(F.col("replica_ms"), F.lit(0)) / HOUR_MS
    share = F.col("available_ms") / F.nullif(F.col("judged_ms"), F.lit(0))
    return (
        totals.join(available, [*GROUP], "left")
        .join(elections_by_reason(history), [*GROUP], "left")
        .withColumns({"flaps_per_replica_hour": F.col("flaps") / hours, "availability": share})
    )


def elections_by_reason(history: DataFrame) -> DataFrame:
    """Returns per group the number of elections of each reason, as an array of (reason, n), by reason."""
    reason = F.regexp_replace("reason", r"\d+", "#")
    return (
        history.where(is_election())
        .groupBy(*GROUP, reason.alias("reason"))
        .agg(F.count("*").alias("n"))
        .groupBy(*GROUP)
        .agg(F.array_sort(F.collect_list(F.struct("reason", "n"))).alias("elections_by_reason"))
    )


def available_spans(spans: DataFrame, history: DataFrame, ready: DataFrame) -> DataFrame:
    """Returns the time that can be judged, as spans with is_available.

    A group is available while it has a master that is ready, and at least min_in_sync_replicas replicas are
    in its SyncStateSet. A master is ready from the ready_ts of its election on, or from the first change of
    the SyncStateSet that it asked for, if that is earlier; it is lost from the last heartbeat before its loss
    was detected. Time is not judged while the state, the minimum, or whether the master is ready is unknown.
    `spans`: with min_in_sync_replicas.
    """
    start, end = F.col("from_ts"), F.col("to_ts")
    reign = [F.col("view")[name].alias(name) for name in _REIGN]
    known = spans.where("view IS NOT NULL AND min_in_sync_replicas IS NOT NULL")
    with_reign = known.select(*GROUP, "log", *reign, "from_ts", "to_ts", _is_below().alias("is_below")).join(
        _reigns(history, ready), [*GROUP, "log", *_REIGN], "left"
    )
    has_master = F.col("master_broker_id").isNotNull()
    # a reign that began before the history is one of a master that was ready
    ready_at = F.when(F.col("elected_ts").isNull(), -_EVER).otherwise(F.least("ready_ts", "asked_ts"))
    ready_from = F.least(F.greatest(start, F.coalesce(ready_at, F.lit(_EVER))), end)
    lost_from = F.least(F.greatest(start, F.coalesce("lost_ts", F.lit(_EVER))), end)
    no = F.lit(False)
    lost_first = F.least(ready_from, lost_from)
    judged = (
        (start, lost_first, no, has_master & F.col("ready_ts").isNotNull()),
        (ready_from, lost_from, ~F.col("is_below"), has_master),
        (lost_from, end, no, has_master),
        (start, end, no, ~has_master),
    )
    columns = ("from_ts", "to_ts", "is_available", "is_judged")
    return (
        one_of(with_reign, [dict(zip(columns, each, strict=True)) for each in judged], keep=GROUP)
        .where("is_judged AND to_ts > from_ts")
        .drop("is_judged")
    )


def _reigns(history: DataFrame, ready: DataFrame) -> DataFrame:
    """Returns what is known of each master of each epoch: elected_ts, ready_ts, asked_ts (its first change of
    the set), lost_ts (the last heartbeat before its loss). NULL: not known, or never."""
    after, before = F.col("after"), F.col("before")
    lost = F.col("type").isin(ELECT, CLEAN) & F.col("last_heartbeat_ts").isNotNull()
    frames = [
        _moments(
            ready, F.struct("master_broker_id", "master_epoch"), elected_ts="from_ts", ready_ts="ready_ts"
        ),
        _moments(history.where(F.col("type") == ALTER), after, asked_ts="from_ts"),
        _moments(history.where(lost), before, lost_ts="last_heartbeat_ts"),
    ]
    moments = ("elected_ts", "ready_ts", "asked_ts", "lost_ts")
    return (
        all_rows(frames)
        .where("master_broker_id IS NOT NULL")
        .groupBy(*GROUP, "log", *_REIGN)
        .agg(*(F.min(name).alias(name) for name in moments))
    )


def _moments(rows: DataFrame, view: Column, **moments: str) -> DataFrame:
    return rows.select(
        *GROUP,
        "log",
        *(view[name].alias(name) for name in _REIGN),
        *(F.col(column).alias(name) for name, column in moments.items()),
    )


def _is_below() -> Column:
    return F.size("view.sync_state_set") < F.col("min_in_sync_replicas")


def _times(ms: Column) -> list[Column]:
    is_known, has_minimum = F.col("view").isNotNull(), F.col("min_in_sync_replicas").isNotNull()
    no_master = is_known & F.col("view.master_broker_id").isNull()
    columns = {
        "known_ms": is_known,
        "unknown_ms": ~is_known,
        "no_master_ms": no_master,
        "with_minimum_ms": is_known & has_minimum,
        "below_ms": is_known & has_minimum & _is_below(),
    }
    return [F.when(columns[name], ms).otherwise(0).alias(name) for name in _TIMES]


def _unknown_is_null() -> dict[str, Column]:
    return {
        "below_min_ms": F.when(F.col("with_minimum_ms") > 0, F.col("below_ms")),
        "no_master_ms": F.when(F.col("known_ms") > 0, F.col("no_master_ms")),
    }


def _counts_of(history: DataFrame) -> DataFrame:
    """Returns one row per event and per flap, with what it counts as."""
    keys = keys_of(history)
    conditions = {
        "shrinks": is_shrink(),
        "expands": is_expand(),
        "elections": is_election(),
        "unclean_elections": is_election() & F.col("unclean"),
    }
    of_events = history.where("type != 'snapshot'").select(
        *keys, "ts", *(each.cast("bigint").alias(name) for name, each in conditions.items())
    )
    of_flaps = flaps(history).select(*keys, "ts", F.lit(1).cast("bigint").alias("flaps"))
    return all_rows([of_events, of_flaps])


def _sums(names: Sequence[str]) -> list[Column]:
    return [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names]


def _with_minimum(spans: DataFrame, minimum: DataFrame) -> DataFrame:
    """Returns the spans, cut where the minimum changes, with min_in_sync_replicas; NULL: it is not known."""
    keys = keys_of(spans)
    in_order = Window.partitionBy(*keys).orderBy("ts")
    of_minimum = minimum.select(
        *keys,
        "min_in_sync_replicas",
        F.when(F.row_number().over(in_order) == 1, -_EVER).otherwise(F.col("ts")).alias("_from"),
        F.coalesce(F.lead("ts").over(in_order), F.lit(_EVER)).alias("_to"),
    )
    return (
        spans.join(of_minimum, keys, "left")
        .withColumn("from_ts", F.greatest("from_ts", "_from"))  # greatest and least skip NULL
        .withColumn("to_ts", F.least("to_ts", "_to"))
        .where("to_ts > from_ts")
        .drop("_from", "_to")
    )
