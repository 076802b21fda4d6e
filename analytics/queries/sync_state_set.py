"""SyncStateSet over time: from a history (event_log.py) to changes, spans, membership and counts.

A group exists from its first master on, because no replica could be in sync before that, until all of its
replicas were cleaned. Unknown is not 0:

* an hour (UTC) without a record of the group is unknown: controllers write a snapshot at the start of each;
* in front of a gap (events are missing) the group is unknown from the record before it on;
* otherwise a state lasts until the next record, or to the end of its hour.

An event counts in the window of its ts, and a state from the event's from_ts on.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.queries.event_log import ALTER, CHANGES, ELECT, HOUR_MS, keys_of
from analytics.queries.windows import clip, in_widths, one_of, window_of
from analytics.tables import GROUP

FLAP_MS = 300_000

REPLICA_STATES = ("master", "in_sync", "out")


def sync_state_set_changes(history: DataFrame) -> DataFrame:
    """Returns one row per event that changed a SyncStateSet or a master."""
    after, before = F.col("after"), F.col("before")
    master_changed = ~after.master_broker_id.eqNullSafe(before.master_broker_id)
    return history.where(
        F.col("type").isin(*CHANGES) & (master_changed | (F.size("left") > 0) | (F.size("joined") > 0))
    ).select(
        *GROUP,
        "n",
        "ts",
        "log",
        "event_id",
        "type",
        "reason",
        "left",
        "joined",
        is_shrink().alias("is_shrink"),
        is_expand().alias("is_expand"),
        "after.sync_state_set",
        "after.sync_state_set_epoch",
        "after.master_broker_id",
        "after.master_epoch",
        "unclean",
        "is_gap",
    )


def group_spans(history: DataFrame, *, from_ts: int, to_ts: int | Column) -> DataFrame:
    """Returns the time of each group in [from_ts, to_ts) as spans [from_ts, to_ts) without holes.

    view: the group's state; NULL: unknown. log: of the record that says so. Of a history by hours, each hour
    has its own spans, and `to_ts` may be a column made of hour_ts.
    """
    keys = keys_of(history)
    in_order = Window.partitionBy(*keys).orderBy("n")
    start = F.col("from_ts")
    following = F.struct("from_ts", "log", "found", "is_gap", "is_restart")
    rows = history.withColumn("next", F.lead(following).over(in_order)).select(
        *keys, "n", "log", "from_ts", "found", "after", "next"
    )
    hour_end = window_of(start, HOUR_MS) + HOUR_MS
    until = F.least(F.col("hour_ts") + HOUR_MS, F.lit(to_ts)) if "hour_ts" in keys else F.lit(to_ts)
    end = F.coalesce("next.from_ts", until)
    end_hour = window_of(end, HOUR_MS)
    is_last = F.col("next").isNull()
    goes_on = ~is_last & (end_hour <= hour_end) & ~F.col("next.is_gap")
    goes_on &= (end_hour < hour_end) | ~F.col("next.is_restart")
    is_hole = ~is_last & (end_hour <= hour_end) & F.col("next.is_gap")
    nobody = F.lit(None).cast(history.schema["after"].dataType)
    known_to = F.when(goes_on, end).when(is_hole, start).otherwise(F.least(hour_end, end))
    found_next = F.col("next.found")
    known_again = F.when(is_last | goes_on | is_hole | found_next.isNull(), end).otherwise(
        F.greatest(known_to, end_hour)
    )
    head = F.when(F.col("n") == 1, F.greatest(window_of(start, HOUR_MS), F.lit(from_ts))).otherwise(start)
    is_unknown = _is_there("after") | _is_there("next.found")
    log = F.col("log")
    spans = (
        (head, start, log, F.col("found"), _is_there("found")),
        (start, known_to, log, F.col("after"), _is_there("after")),
        (known_to, known_again, log, nobody, is_unknown),
        (known_again, end, F.col("next.log"), found_next, _is_there("next.found")),
    )
    columns = ("from_ts", "to_ts", "log", "view", "is_there")
    return (
        one_of(rows, [dict(zip(columns, each, strict=True)) for each in spans], keep=keys)
        .where("is_there")
        .select(
            *keys,
            "log",
            F.greatest("from_ts", F.lit(from_ts)).alias("from_ts"),
            F.least("to_ts", F.lit(to_ts)).alias("to_ts"),
            "view",
        )
        .where("to_ts > from_ts")
    )


def _is_there(view: str) -> Column:
    return F.coalesce((F.col(view).master_epoch > 0) & (F.size(F.col(view).replicas) > 0), F.lit(False))


def membership(spans: DataFrame) -> DataFrame:
    """Returns the spans [from_ts, to_ts) in which a replica was `master`, `in_sync` or `out`, as controllers
    saw it. Unknown time is in none of them."""
    keys = keys_of(spans)
    replica = Window.partitionBy(*keys, "broker_id").orderBy("from_ts")
    goes_on = (F.lag("state").over(replica) == F.col("state")) & (
        F.lag("to_ts").over(replica) == F.col("from_ts")
    )
    return (
        _replicas(spans)
        .withColumn("starts", F.when(goes_on, 0).otherwise(1))
        .withColumn("span", F.sum("starts").over(replica))
        .groupBy(*keys, "broker_id", "span", "state")
        .agg(F.min("from_ts").alias("from_ts"), F.max("to_ts").alias("to_ts"))
        .drop("span")
    )


def _replicas(spans: DataFrame) -> DataFrame:
    broker_id, view = F.col("broker_id"), F.col("view")
    state = (
        F.when(broker_id.eqNullSafe(view.master_broker_id), "master")
        .when(F.array_contains(view.sync_state_set, broker_id), "in_sync")
        .otherwise("out")
    )
    return spans.withColumn("broker_id", F.explode("view.replicas")).select(
        *keys_of(spans), "broker_id", "from_ts", "to_ts", state.alias("state")
    )


def replica_state(history: DataFrame, spans: DataFrame, windows: Sequence[int]) -> DataFrame:
    """Returns one row per group, replica and window in which its state is known, or in which it flapped.

    window: its width. master_ms, in_sync_ms, out_ms. flaps: how often it left and came back within FLAP_MS.
    """
    keys = keys_of(spans)
    times = {f"{state}_ms": F.when(F.col("state") == state, F.col("ms")) for state in REPLICA_STATES}
    window = F.col("window")
    of_time = clip(in_widths(_replicas(spans), windows), window).select(
        *keys,
        "broker_id",
        "window",
        "window_ts",
        *(ms.alias(name) for name, ms in times.items()),
        F.lit(0).alias("flaps"),
    )
    of_flaps = in_widths(flaps(history), windows).select(
        *keys,
        "broker_id",
        "window",
        window_of(F.col("ts"), window).alias("window_ts"),
        *(F.lit(0).cast("bigint").alias(name) for name in times),
        F.lit(1).alias("flaps"),
    )
    return (
        of_time.unionByName(of_flaps)
        .groupBy(*GROUP, "broker_id", "window", "window_ts")
        .agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in (*times, "flaps")))
    )


def flaps(history: DataFrame) -> DataFrame:
    """Returns one row per return of a replica that had left at most FLAP_MS before: broker_id, ts.

    Only what the master asked for (alterSyncStateSet) counts: every election empties the set, which is no
    fault of a replica, and an unclean one may bring a replica in. Of a history by hours, leaving and
    returning are in the same hour.
    """
    keys = keys_of(history)
    moves = F.concat(_moves("left", "left"), _moves("joined", "joined"))
    replica = Window.partitionBy(*keys, "broker_id").orderBy("n")
    came_back = (
        (F.col("move") == "joined")
        & (F.col("type") == ALTER)
        & (F.lag("move").over(replica) == "left")
        & (F.lag("type").over(replica) == ALTER)
        & (F.col("from_ts") - F.lag("from_ts").over(replica) <= FLAP_MS)
    )
    return (
        history.select(*keys, "n", "type", "ts", "from_ts", F.explode(moves).alias("moved"))
        .select(*keys, "n", "type", "ts", "from_ts", "moved.broker_id", "moved.move")
        .withColumn("is_flap", came_back)
        .where("is_flap")
        .select(*keys, "broker_id", "ts")
    )


def _moves(brokers: str, move: str) -> Column:
    return F.transform(brokers, lambda each: F.struct(each.alias("broker_id"), F.lit(move).alias("move")))


def is_shrink() -> Column:
    """Returns whether the master took a replica out of the SyncStateSet."""
    return (F.col("type") == ALTER) & (F.size("left") > 0)


def is_expand() -> Column:
    """Returns whether the master brought replicas in, and took none out."""
    return (F.col("type") == ALTER) & (F.size("joined") > 0) & (F.size("left") == 0)


def is_election() -> Column:
    """Returns whether a broker became master. Clearing the master does not count."""
    master = F.col("after.master_broker_id")
    return (
        (F.col("type") == ELECT) & master.isNotNull() & ~master.eqNullSafe(F.col("before.master_broker_id"))
    )
