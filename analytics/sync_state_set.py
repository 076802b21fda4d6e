"""SyncStateSet over time: from the controllers' events to changes, membership spans and totals.

group_history() puts the events in order once; everything else starts from it.

Order is event_id, never ts: controllers' clocks differ. So that time never runs backwards, an event counts
from `from_ts`, the latest ts up to and including it. A "snapshot" only says how a group is: it begins a
history whose older files are gone, and otherwise counts only when it shows that events are missing.

A group has a history from its first master on: before that nobody could be in sync. It ends when all of its
replicas were cleaned.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.schema import GROUP
from analytics.windows import clip

ALTER = "alterSyncStateSet"
ELECT = "electMaster"
CLEAN = "cleanBrokerData"
SNAPSHOT = "snapshot"
CHANGES = (ALTER, ELECT, CLEAN)
"""Events that may change a SyncStateSet or a master."""
FLAP_MS = 300_000

_EPOCHS = ("master_epoch", "sync_state_set_epoch")


def group_history(events: DataFrame) -> DataFrame:
    """Returns one row per applied event, in order: what changed, and how long that state lasted.

    from_ts, to_ts (NULL: until now), before, after, previous (what the event in front of it left behind),
    left and joined (brokerIds), is_gap (events are missing in front of it).
    """
    copies = Window.partitionBy(*GROUP, "event_id", "type")
    # all controllers write an event; should one of them know more, or an older moment, that one is taken
    best = copies.orderBy(F.col("detected_ts").isNull(), "ts", "controller_id")
    once = (
        events.withColumn("after", F.coalesce("after", F.when(F.col("type") == CLEAN, _nobody())))
        .where("refused IS NULL AND after IS NOT NULL")
        .withColumn("copy", F.row_number().over(best))
        .where("copy = 1")
    )
    in_order = Window.partitionBy(*GROUP).orderBy("event_id", _is_snapshot())
    changes = once.withColumn("previous", F.lag("after").over(in_order)).where(
        ~_is_snapshot() | ~F.col("previous").eqNullSafe(F.col("after"))
    )
    # a controller that was behind writes its snapshot late: what follows it is older, and right
    ts = F.when(_is_snapshot(), F.least("ts", F.lead("ts").over(in_order))).otherwise(F.col("ts"))
    until_here = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return (
        changes.withColumn("known_ts", ts)
        .withColumn("from_ts", F.max("known_ts").over(until_here))
        .withColumn("to_ts", F.lead("from_ts").over(in_order))
        .withColumns(_changed())
        .drop("copy", "known_ts", "record", "v", "refused", "controller_id")
    )


def sync_state_set_changes(history: DataFrame) -> DataFrame:
    """Returns one row per event that changed a SyncStateSet or a master."""
    after, before = F.col("after"), F.col("before")
    master_changed = ~after.master_broker_id.eqNullSafe(before.master_broker_id)
    return history.where(
        F.col("type").isin(*CHANGES) & (master_changed | (F.size("left") > 0) | (F.size("joined") > 0))
    ).select(
        *GROUP,
        "ts",
        "event_id",
        "type",
        "reason",
        "left",
        "joined",
        _is_shrink().alias("is_shrink"),
        _is_expand().alias("is_expand"),
        "after.sync_state_set",
        "after.sync_state_set_epoch",
        "after.master_broker_id",
        "after.master_epoch",
        "unclean",
    )


def intervals(history: DataFrame, until_ts: Column) -> DataFrame:
    """Returns the group's state from one event to the next, the last one until `until_ts`."""
    end = F.coalesce("to_ts", F.greatest(until_ts, F.col("from_ts")))
    is_there = (F.col("after.master_epoch") > 0) & (F.size("after.replicas") > 0)
    return history.withColumn("to_ts", end).where((F.col("to_ts") > F.col("from_ts")) & is_there)


def membership(intervals: DataFrame) -> DataFrame:
    """Returns the spans [from_ts, to_ts) in which a replica was `master`, `in_sync` or `out`, as controllers
    saw it."""
    replica = Window.partitionBy(*GROUP, "broker_id").orderBy("from_ts")
    goes_on = (F.lag("state").over(replica) == F.col("state")) & (
        F.lag("to_ts").over(replica) == F.col("from_ts")
    )
    state = (
        F.when(F.col("broker_id").eqNullSafe(F.col("after.master_broker_id")), "master")
        .when(F.array_contains("after.sync_state_set", F.col("broker_id")), "in_sync")
        .otherwise("out")
    )
    return (
        intervals.select(*GROUP, "from_ts", "to_ts", "after", F.explode("after.replicas").alias("broker_id"))
        .select(*GROUP, "broker_id", "from_ts", "to_ts", state.alias("state"))
        .withColumn("starts", F.when(goes_on, 0).otherwise(1))
        .withColumn("span", F.sum("starts").over(replica))
        .groupBy(*GROUP, "broker_id", "span", "state")
        .agg(F.min("from_ts").alias("from_ts"), F.max("to_ts").alias("to_ts"))
        .drop("span")
    )


def replica_out_of_sync(membership: DataFrame, window_ms: int) -> DataFrame:
    """Returns ms out of the SyncStateSet per replica and window; windows without any are left out."""
    return (
        clip(membership.where("state = 'out'"), window_ms)
        .groupBy(*GROUP, "broker_id", "window_ts")
        .agg(F.sum("ms").alias("out_ms"))
    )


def group_totals(history: DataFrame, intervals: DataFrame, minimum: DataFrame) -> DataFrame:
    """One row per group. `minimum`: min_in_sync_replicas per group; 1 for a group that it lacks.

    shrinks, expands: changes that the master asked for (alterSyncStateSet); an election is counted as such.
    flaps: replicas that left so and were back within FLAP_MS.
    """
    elected = _is_election()
    counts = history.groupBy(*GROUP).agg(
        F.count_if(_is_shrink()).alias("shrinks"),
        F.count_if(_is_expand()).alias("expands"),
        F.count_if(elected).alias("elections"),
        F.count_if(elected & F.col("unclean")).alias("unclean_elections"),
    )
    needed = F.coalesce("min_in_sync_replicas", F.lit(1))
    below = (
        intervals.join(F.broadcast(minimum), [*GROUP], "left")
        .where(F.size("after.sync_state_set") < needed)
        .groupBy(*GROUP)
        .agg(F.sum(F.col("to_ts") - F.col("from_ts")).alias("below_min_ms"))
    )
    joined = counts.join(below, [*GROUP], "left").join(flaps(history), [*GROUP], "left")
    return joined.fillna(0, ["below_min_ms", "flaps"])


def flaps(history: DataFrame) -> DataFrame:
    """Returns per group how often a replica left and then soon joined again.

    Only what the master asked for (alterSyncStateSet) counts: every election empties the set, which is no
    fault of a replica, and an unclean one may bring a replica in.
    """
    moves = F.concat(_moves("left", "left"), _moves("joined", "joined"))
    replica = Window.partitionBy(*GROUP, "broker_id").orderBy("event_id")
    came_back = (
        (F.col("move") == "joined")
        & (F.col("type") == ALTER)
        & (F.lag("move").over(replica) == "left")
        & (F.lag("type").over(replica) == ALTER)
        & (F.col("from_ts") - F.lag("from_ts").over(replica) <= FLAP_MS)
    )
    return (
        history.select(*GROUP, "event_id", "type", "from_ts", F.explode(moves).alias("moved"))
        .select(*GROUP, "event_id", "type", "from_ts", "moved.broker_id", "moved.move")
        .withColumn("is_flap", came_back)
        .groupBy(*GROUP)
        .agg(F.count_if("is_flap").alias("flaps"))
    )


def _moves(brokers: str, move: str) -> Column:
    return F.transform(brokers, lambda each: F.struct(each.alias("broker_id"), F.lit(move).alias("move")))


def _changed() -> dict[str, Column]:
    """left, joined: by this event. is_gap: its `before` differs from the state after the previous event."""
    old = F.coalesce(F.col("before.sync_state_set"), F.array().cast("array<bigint>"))
    found = F.when(_is_snapshot(), F.col("after")).otherwise(F.col("before"))
    same = [found[name].eqNullSafe(F.col("previous")[name]) for name in _EPOCHS]
    is_change = F.col("type").isin(*CHANGES)
    was_there = F.size("previous.replicas") > 0
    none = F.array().cast("array<bigint>")
    return {
        "left": F.when(is_change, F.array_except(old, F.col("after.sync_state_set"))).otherwise(none),
        "joined": F.when(is_change, F.array_except(F.col("after.sync_state_set"), old)).otherwise(none),
        "is_gap": F.col("previous").isNotNull() & was_there & ~(same[0] & same[1]),
    }


def _nobody() -> Column:
    """Returns the state of a group that was cleaned as a whole, whose record has no `after`."""
    none = F.array().cast("array<bigint>")
    return (
        F.col("before")
        .withField("master_broker_id", F.lit(None).cast("bigint"))
        .withField("sync_state_set", none)
        .withField("replicas", none)
    )


def _is_snapshot() -> Column:
    return F.col("type") == SNAPSHOT


def _is_shrink() -> Column:
    return (F.col("type") == ALTER) & (F.size("left") > 0)


def _is_expand() -> Column:
    return (F.col("type") == ALTER) & (F.size("joined") > 0) & (F.size("left") == 0)


def _is_election() -> Column:
    """Returns whether a broker became master. Clearing the master does not count."""
    master = F.col("after.master_broker_id")
    return (
        (F.col("type") == ELECT) & master.isNotNull() & ~master.eqNullSafe(F.col("before.master_broker_id"))
    )
