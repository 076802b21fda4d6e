"""Incidents: times in which a group breaks a rule, named after what an operator would call them.

Rules look at windows of a minute (WINDOW_MS), and at spans that run tables have. Windows near each other are
one incident, unless there is unknown time between them. Unknown time is never an incident, except of the kind
"gap". A rule with `least_ms` needs at least that much time in the state: a clean fail-over leaves a group
below minInSyncReplicas for seconds, and a new group begins with its first master alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.queries.event_log import ELECT
from analytics.queries.kept import kept
from analytics.tables import GROUP

WINDOW_MS = 60_000
LAG_MS = 2_000
"""A p99 lag of a window from here on is a lag incident."""
SKEW_MS = 1_000
FLAPS = 3
BIRTH_MS = 300_000
"""So long after its first election a group may be below minInSyncReplicas: its other replicas are joining."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`weight`: incidents of a kind with a higher one are more serious. `merge_ms`: spans at most so far
    apart are one. `least_ms`: less time in the state is no incident, if that time is known. `least_sum`: of
    what `worst` counts. `is_summed`: `worst` is the sum of all windows, else that of the worst one."""

    weight: int
    merge_ms: int = 120_000
    least_ms: int = 0
    least_sum: int = 0
    is_summed: bool = False


RULES: Mapping[str, Rule] = {
    "unclean": Rule(900, is_summed=True),
    "below-min": Rule(700, least_ms=30_000, is_summed=True),
    "lag": Rule(600),
    "stale-master": Rule(500, is_summed=True),
    "flap": Rule(400, merge_ms=600_000, least_sum=FLAPS, is_summed=True),
    "dead-replica": Rule(350, least_ms=120_000),
    "gap": Rule(300, merge_ms=0, least_ms=120_000, is_summed=True),
    "failover": Rule(200, merge_ms=0, least_ms=1_000),
    "skew": Rule(100),
}
MINUTES_MAX = 90
"""More minutes do not make an incident more serious than the next kind."""

_MARK = ("kind", *GROUP, "replica", "from_ts", "to_ts", "amount", "state_ms", "known_run")


@dataclass(frozen=True)
class FleetFrames:
    """What incidents and the fleet's numbers are made of. Roll-ups: rows of windows of a minute within
    [from_ts, to_ts). `replica_lag`: with the lag of replicas that are down filled in."""

    lag: DataFrame
    group_state: DataFrame
    replica_lag: DataFrame
    replica_state: DataFrame
    failovers: DataFrame
    clock_skew: DataFrame
    membership: DataFrame
    sync_state_set_changes: DataFrame
    group_totals: DataFrame


def p99_ms() -> Column:
    """Returns the 99th percentile of a window's lag in ms, rounded up: of the broker's own histogram
    (lag_us, 600 readings in a minute), else of its samples, 60 in a minute."""
    return F.coalesce(_ms_of("lag_us_p99"), F.col("ms_p99"))


def max_ms() -> Column:
    """Returns a window's highest lag in ms, rounded up, by samples and by the broker's histogram."""
    return F.greatest(_ms_of("lag_us_max"), F.col("ms_max"))


def incidents(
    frames: FleetFrames,
    groups: DataFrame,
    *,
    from_ts: int,
    to_ts: int,
    kept: Callable[[DataFrame], DataFrame] = kept,
) -> DataFrame:
    """Returns one row per incident of these groups that touches [from_ts, to_ts): kind, group, replica (NULL:
    the whole group), from_ts, to_ts (exclusive), worst (ms, bytes or a count, by kind), state_ms (how long
    the rule held; NULL: a moment, or not known), severity."""
    makers: Mapping[str, Callable[[], DataFrame]] = {
        "lag": lambda: _windows(frames.lag, p99_ms() >= LAG_MS, max_ms(), known=_has_samples()),
        "stale-master": lambda: _windows(frames.lag, F.col("stale_master") > 0, F.col("stale_master")),
        "below-min": lambda: _after_births(_below(frames.group_state), frames.sync_state_set_changes),
        "unclean": lambda: _counted(frames.group_state, "unclean_elections"),
        "flap": lambda: _flaps(frames),
        "dead-replica": lambda: _expected(_unseen(frames.replica_lag), frames.membership),
        "gap": lambda: _gaps(frames.lag, groups, from_ts, to_ts),
        "failover": lambda: _failovers(frames.failovers, from_ts),
        "skew": lambda: _skews(frames.clock_skew, from_ts, to_ts),
    }
    marks = [
        make().withColumn("kind", F.lit(kind)).select(*_MARK).join(groups, [*GROUP], "left_semi")
        for kind, make in makers.items()
    ]
    found = kept(_spans(kept(reduce(DataFrame.unionByName, marks))))
    return found.join(_explained(found), ["kind", *GROUP, "from_ts"], "left_anti")


def births(changes: DataFrame) -> DataFrame:
    """Returns the moments of groups' first elections; controllers that were built anew begin again."""
    return changes.where((F.col("type") == ELECT) & (F.col("master_epoch") == 1)).select(
        *GROUP, F.col("ts").alias("birth_ts")
    )


def _spans(marks: DataFrame) -> DataFrame:
    """Returns marks of one kind, group and replica that belong together as one incident."""
    of_rule = Window.partitionBy("kind", *GROUP, "replica", "known_run").orderBy("from_ts", "to_ts")
    before = of_rule.rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)
    begins = F.col("from_ts") - F.col("_end_ts") > _of_rule("merge_ms")
    numbered = (
        marks.withColumn("_end_ts", F.max("to_ts").over(before))
        .withColumn("_begins", F.coalesce(begins, F.lit(False)).cast("bigint"))
        .withColumn("_span", F.sum("_begins").over(of_rule))
    )
    total = F.sum("amount")
    return (
        numbered.groupBy("kind", *GROUP, "replica", "known_run", "_span")
        .agg(
            F.min("from_ts").alias("from_ts"),
            F.max("to_ts").alias("to_ts"),
            total.alias("_total"),
            F.max("amount").alias("_most"),
            F.when(F.count("state_ms") == F.count("*"), F.sum("state_ms")).alias("state_ms"),
        )
        .where(F.col("state_ms").isNull() | (F.col("state_ms") >= _of_rule("least_ms")))
        .where(F.col("_total") >= _of_rule("least_sum"))
        .select(
            "kind", *GROUP, "replica", "from_ts", "to_ts",
            F.when(_of_rule("is_summed"), F.col("_total")).otherwise(F.col("_most")).alias("worst"),
            "state_ms",
            (_of_rule("weight") + F.least(F.lit(MINUTES_MAX), _minutes())).alias("severity"),
        )
    )  # fmt: skip


def _minutes() -> Column:
    ms = F.coalesce(F.col("state_ms"), F.col("to_ts") - F.col("from_ts"))
    return F.floor(ms / 60_000).cast("bigint")


def _of_rule(name: str) -> Column:
    """Returns this number of the rule of the row's kind."""
    values = [F.when(F.col("kind") == kind, F.lit(getattr(rule, name))) for kind, rule in RULES.items()]
    return F.coalesce(*values)


def _explained(found: DataFrame) -> DataFrame:
    """Returns fail-overs that are unclean elections as well, which are reported instead."""
    minute = F.floor(F.col("from_ts") / 60_000)
    unclean = found.where("kind = 'unclean'").select(*GROUP, minute.alias("_unclean"))
    return (
        found.where("kind = 'failover'")
        .select("kind", *GROUP, "from_ts", minute.alias("_minute"))
        .join(unclean, [*GROUP])
        .where(F.abs(F.col("_minute") - F.col("_unclean")) <= 1)
        .select("kind", *GROUP, "from_ts")
    )


def _windows(
    rows: DataFrame,
    holds: Column,
    amount: Column,
    *,
    state_ms: Column | None = None,
    known: Column | None = None,
    replica: str | None = None,
) -> DataFrame:
    """Returns the windows in which a rule holds, as marks. known_run: equal for windows without a missing or
    unknown one between them; of rows without `known` all are."""
    keys = [*GROUP, replica] if replica else [*GROUP]
    in_order = Window.partitionBy(*keys).orderBy("window_ts")
    run = F.col("window_ts") - WINDOW_MS * F.row_number().over(in_order)
    return (
        (rows if known is None else rows.where(known))
        .withColumn("known_run", run)
        .where(holds)
        .select(
            *GROUP,
            (F.col(replica) if replica else F.lit(None)).cast("bigint").alias("replica"),
            F.col("window_ts").alias("from_ts"),
            (F.col("window_ts") + WINDOW_MS).alias("to_ts"),
            F.coalesce(amount, F.lit(0)).cast("bigint").alias("amount"),
            (F.lit(WINDOW_MS) if state_ms is None else state_ms).cast("bigint").alias("state_ms"),
            "known_run",
        )
    )


def _has_samples() -> Column:
    return F.coalesce(F.col("samples") > 0, F.lit(False))


def _is_known() -> Column:
    return F.coalesce(F.col("unknown_ms"), F.lit(0)) < WINDOW_MS


def _below(state: DataFrame) -> DataFrame:
    ms = F.col("below_min_ms")
    return _windows(state, ms > 0, ms, state_ms=ms, known=_is_known())


def _counted(rows: DataFrame, name: str, replica: str | None = None) -> DataFrame:
    no_time = F.lit(None).cast("bigint")
    return _windows(rows, F.col(name) > 0, F.col(name), state_ms=no_time, replica=replica)


def _flaps(frames: FleetFrames) -> DataFrame:
    """Returns the windows in which a replica flapped; of groups whose replicas are not known, the group."""
    of_replicas = _counted(frames.replica_state, "flaps", "broker_id")
    of_groups = _counted(frames.group_state, "flaps").join(
        of_replicas.select(*GROUP).distinct(), [*GROUP], "left_anti"
    )
    return of_replicas.unionByName(of_groups)


def _after_births(marks: DataFrame, changes: DataFrame) -> DataFrame:
    """Returns the marks without those of groups that have just begun."""
    born = births(changes)
    young = (F.col("m.from_ts") < F.col("b.birth_ts") + BIRTH_MS) & (F.col("m.to_ts") > F.col("b.birth_ts"))
    return marks.alias("m").join(born.alias("b"), _same_group("m", "b") & young, "left_anti")


def _unseen(replicas: DataFrame) -> DataFrame:
    """Returns windows of replicas without a sample, whose lag is how far behind their last one is."""
    return _windows(replicas, ~_has_samples(), F.col("bytes_max"), replica="broker_id")


def _expected(marks: DataFrame, membership: DataFrame) -> DataFrame:
    """Returns the marks of replicas that a master should see: that are not master themselves, and were not
    removed (`cleanBrokerData`), after which the group is known and goes on without them."""
    masters = membership.where("state = 'master'").alias("s")
    is_same = _same_group("m", "s") & (F.col("m.replica") == F.col("s.broker_id"))
    is_master = (F.col("s.from_ts") < F.col("m.to_ts")) & (F.col("m.from_ts") < F.col("s.to_ts"))
    of_replica = membership.groupBy(*GROUP, F.col("broker_id").cast("bigint").alias("replica")).agg(
        F.max("to_ts").alias("_replica_to")
    )
    of_group = membership.groupBy(*GROUP).agg(F.max("to_ts").alias("_group_to"))
    is_removed = (F.col("_replica_to") <= F.col("from_ts")) & (F.col("from_ts") < F.col("_group_to"))
    return (
        marks.alias("m")
        .join(masters, is_same & is_master, "left_anti")
        .join(of_replica, [*GROUP, "replica"], "left")
        .join(of_group, [*GROUP], "left")
        .where(~F.coalesce(is_removed, F.lit(False)))
        .drop("_replica_to", "_group_to")
    )


def _gaps(lag: DataFrame, groups: DataFrame, from_ts: int, to_ts: int) -> DataFrame:
    """Returns the time without samples of the current master, after the first one that a group has."""
    seen = lag.where(_has_samples())
    in_order = Window.partitionBy(*GROUP).orderBy("window_ts")
    following = F.coalesce(F.lead("window_ts").over(in_order), F.lit(to_ts))
    between = seen.select(
        *GROUP, (F.col("window_ts") + WINDOW_MS).alias("from_ts"), following.alias("to_ts")
    ).where("to_ts > from_ts")
    never = (
        groups.select(*GROUP)
        .join(seen.select(*GROUP).distinct(), [*GROUP], "left_anti")
        .select(
            *GROUP,
            F.lit(from_ts).cast("bigint").alias("from_ts"),
            F.lit(to_ts).cast("bigint").alias("to_ts"),
        )
    )
    ms = F.col("to_ts") - F.col("from_ts")
    return _spanned(between.unionByName(never), amount=ms, state_ms=ms)


def _failovers(failovers: DataFrame, from_ts: int) -> DataFrame:
    """Returns the fail-overs from the fault, or the time that is used for it, until the new master was ready.
    The duration is not known without ready_ts and without a producer's gap."""
    end = F.coalesce("ready_ts", "elected_ts")
    start = F.least(F.coalesce("fault_ts", "last_heartbeat_ts", "elected_ts"), F.col("elected_ts"))
    took = F.greatest(F.when(F.col("ready_ts").isNotNull(), end - start), F.col("gap_ms"))
    spans = failovers.where(end >= from_ts).select(
        *GROUP,
        F.col("old_master").alias("replica"),
        start.alias("from_ts"),
        (end + 1).alias("to_ts"),
        F.coalesce("gap_ms", end - start).alias("_amount"),
        took.alias("_took"),
    )
    return _spanned(spans, amount=F.col("_amount"), state_ms=F.col("_took"), replica=F.col("replica"))


def _skews(skew: DataFrame, from_ts: int, to_ts: int) -> DataFrame:
    """Returns pieces of time in which a broker's clock is off; a row without times is of all the time."""
    begins = F.greatest(F.coalesce("from_ts", F.lit(from_ts)), F.lit(from_ts))
    ends = F.least(F.coalesce("to_ts", F.lit(to_ts)), F.lit(to_ts))
    pieces = (
        skew.where(F.abs("offset_ms") >= SKEW_MS)
        .select(*GROUP, "broker_id", "offset_ms", begins.alias("from_ts"), ends.alias("to_ts"))
        .where("to_ts > from_ts")
    )
    ms = F.col("to_ts") - F.col("from_ts")
    return _spanned(pieces, amount=F.abs("offset_ms"), state_ms=ms, replica=F.col("broker_id"))


def _spanned(
    spans: DataFrame, *, amount: Column, state_ms: Column, replica: Column | None = None
) -> DataFrame:
    """Returns spans of known time as marks."""
    return spans.select(
        *GROUP,
        (F.lit(None) if replica is None else replica).cast("bigint").alias("replica"),
        "from_ts",
        "to_ts",
        amount.cast("bigint").alias("amount"),
        state_ms.cast("bigint").alias("state_ms"),
        F.lit(0).cast("bigint").alias("known_run"),
    )


def _same_group(one: str, other: str) -> Column:
    same = [F.col(f"{one}.{name}") == F.col(f"{other}.{name}") for name in GROUP]
    return same[0] & same[1]


def _ms_of(name: str) -> Column:
    """Returns microseconds as ms, rounded up."""
    return F.ceil(F.col(name) / 1_000).cast("bigint")
