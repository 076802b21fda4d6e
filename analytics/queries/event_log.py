"""The controllers' events in the order of their log: what each changed, from when on, and what is missing.

Order is event_id within one log, never ts: controllers' clocks differ. So that time never runs backwards, an
event counts from `from_ts`, the latest ts up to and including it. Controllers that are built anew begin
another log, whose event ids start again; logs are ordered by the time of their first event, and a record of a
log that another replaced RESTART_MS before is left out. Lines of older writers have no log_id: logs_of()
finds where their ids start again.

A "snapshot" has the state of a group. It begins a history whose older files are gone, shows that events are
missing, and proves that nothing had changed by then.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from analytics.queries.windows import window_of
from analytics.tables import GROUP

ALTER = "alterSyncStateSet"
ELECT = "electMaster"
CLEAN = "cleanBrokerData"
SNAPSHOT = "snapshot"
CHANGES = (ALTER, ELECT, CLEAN)
"""Events that may change a SyncStateSet or a master."""
HOUR_MS = 3_600_000
RESTART_MS = 30_000
"""Controllers' clocks differ by less: smaller event ids this much later belong to another log."""

_EPOCHS = ("master_epoch", "sync_state_set_epoch")
_NOT_KEPT = (
    "refused", "controller_id", "log_id", "log_ts", "_is_snapshot", "_known_ts", "_is_new_log", "_ids_go_on",
)  # fmt: skip


def group_history(
    events: DataFrame, *, from_ts: int | None = None, to_ts: int | None = None, by_hour: bool = False
) -> DataFrame:
    """Returns one row per applied event and per snapshot with from_ts <= ts < to_ts, numbered by `n` from 1.

    log, from_ts, found (the group before it; for a snapshot: as it is), after, previous (the state after the
    record in front of it), left and joined (brokerIds), is_gap (events are missing in front of it),
    is_restart (another log begins, which does not continue the one before).

    `by_hour`: each hour of ts has a history of its own, made from its records alone; column hour_ts.
    """
    of_time = events
    if from_ts is not None:
        of_time = of_time.where(F.col("ts") >= from_ts)
    if to_ts is not None:
        of_time = of_time.where(F.col("ts") < to_ts)
    applied = _applied(of_time)
    if by_hour:
        applied = applied.withColumn("hour_ts", window_of(F.col("ts"), HOUR_MS))
    keys = keys_of(applied)
    return _in_order(_once(logs_of(applied), keys), keys)


def events_once(events: DataFrame) -> DataFrame:
    """Returns each applied event of each log once, and each snapshot of a moment, of all controllers' copies:
    the columns of controller_event without `refused`, and `log`."""
    return _once(logs_of(_applied(events)), GROUP).drop("log_ts", "refused")


def keys_of(history: DataFrame) -> list[str]:
    """Returns the columns that separate histories: the group, and hour_ts if each hour has its own."""
    return [*GROUP, "hour_ts"] if "hour_ts" in history.columns else [*GROUP]


def _applied(events: DataFrame) -> DataFrame:
    """Returns the events that changed a group, and snapshots: those with a state after it."""
    after = F.coalesce("after", F.when(F.col("type") == CLEAN, _removed()))
    return events.withColumn("after", after).where("refused IS NULL AND after IS NOT NULL")


def logs_of(events: DataFrame) -> DataFrame:
    """Returns the events with `log`: their log_id; for lines of older writers the log they belong to.

    A log without a name begins where a record has a smaller id than the record RESTART_MS or more before it,
    if the records by id are not one history (an id has two times, or a group's state before an event is not
    the one after the event in front), or if its state never changed. Without names, a part that shares an
    event with a log with a name is of that log.
    """
    keys = keys_of(events)
    is_old, is_event = F.col("log_id") == "", ~_is_snapshot()
    unnamed = Window.partitionBy(*keys, is_old)
    by_time = unnamed.orderBy("ts", "event_id")
    by_id = unnamed.orderBy("event_id", "_is_snapshot", "ts")
    moment = F.when(_is_snapshot(), F.col("ts"))
    times = Window.partitionBy(*keys, is_old, "event_id", "type", moment)
    same = Window.partitionBy(*keys, "event_id", "type", "ts")
    seen = events.withColumns(
        {
            "_is_snapshot": _is_snapshot(),
            "_found": F.when(is_event, F.col("before")).otherwise(F.col("after")),
        }
    ).withColumns(
        {
            "_earlier": F.lag(F.struct("event_id", "ts")).over(by_time),
            "_smaller": F.lag(F.struct("event_id", "after")).over(by_id),
            "_spread_ms": F.max("ts").over(times) - F.min("ts").over(times),
            "_name": F.when(is_event, F.max("log_id").over(same)),
        }
    )
    is_break = (F.col("_smaller.event_id") < F.col("event_id")) & _differs("_found", "_smaller.after")
    is_later = F.col("ts") - F.col("_earlier.ts") >= RESTART_MS
    begins = F.coalesce(is_later & (F.col("event_id") < F.col("_earlier.event_id")), F.lit(False))
    is_other = F.coalesce(is_break, F.lit(False)) | (F.col("_spread_ms") >= RESTART_MS)
    epochs = F.struct(*(F.col("after")[name] for name in _EPOCHS))
    never_changed = F.min(epochs).over(unnamed) == F.max(epochs).over(unnamed)
    # copies of an event from several controllers are peers in this order: the sum is the same for all of them
    may_begin = F.max(is_other).over(unnamed) | never_changed
    part = F.when(may_begin, F.sum(begins.cast("int")).over(by_time)).otherwise(0)
    of_part = Window.partitionBy(*keys, is_old, "_part")
    name = F.max(F.nullif("_name", F.lit(""))).over(of_part)
    log = F.when(is_old, F.coalesce(name, F.concat(F.lit("#"), "_part"))).otherwise(F.col("log_id"))
    return (
        seen.withColumn("_part", part)
        .withColumn("log", log)
        .drop("_is_snapshot", "_found", "_earlier", "_smaller", "_spread_ms", "_name", "_part")
    )


def _once(events: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Returns each event of each log once, and without the records of a log that was replaced.

    All controllers write an event; should one of them know more, or an older moment, that one is taken.
    """
    moment = F.when(_is_snapshot(), F.col("ts"))
    copies = Window.partitionBy(*keys, "log", "event_id", "type", moment)
    best = copies.orderBy(F.col("detected_ts").isNull(), "ts", "controller_id")
    log = Window.partitionBy(*keys, "log")
    first_ts = F.coalesce(F.min(F.when(~_is_snapshot(), F.col("ts"))).over(log), F.min("ts").over(log))
    later_logs = (
        Window.partitionBy(*keys).orderBy(F.desc("log_ts")).rangeBetween(Window.unboundedPreceding, -1)
    )
    return (
        events.withColumn("_copy", F.row_number().over(best))
        .where("_copy = 1")
        .withColumn("log_ts", first_ts)
        .withColumn("next_log_ts", F.min("log_ts").over(later_logs))
        .where(F.col("next_log_ts").isNull() | (F.col("ts") < F.col("next_log_ts") + RESTART_MS))
        .drop("next_log_ts", "_copy")
    )


def _in_order(once: DataFrame, keys: Sequence[str]) -> DataFrame:
    order = ("log_ts", "log", "event_id", "_is_snapshot", "ts", "type")
    in_order = Window.partitionBy(*keys).orderBy(*order)
    backwards = Window.partitionBy(*keys).orderBy(*(F.desc(each) for each in order))
    next_event_ts = F.last(F.when(~_is_snapshot(), F.col("ts")), ignorenulls=True).over(_before(backwards))
    # a controller that was behind writes its snapshot late: what follows it is older, and right
    known_ts = F.when(_is_snapshot(), F.least("ts", next_event_ts)).otherwise(F.col("ts"))
    numbered = (
        once.withColumn("_is_snapshot", _is_snapshot())
        .withColumn("_known_ts", known_ts)
        .withColumns(
            {
                "found": F.when(_is_snapshot(), F.col("after")).otherwise(F.col("before")),
                "n": F.row_number().over(in_order),
                "previous": F.lag("after").over(in_order),
                "from_ts": F.max("_known_ts").over(_until(in_order)),
                "_is_new_log": F.coalesce(F.lag("log").over(in_order) != F.col("log"), F.lit(False)),
                "_ids_go_on": F.lag("event_id").over(in_order) < F.col("event_id"),
            }
        )
    )
    differs, was_there = _differs("found", "previous"), F.size("previous.replicas") > 0
    is_gap = F.col("previous").isNotNull() & was_there & differs & ~F.col("_is_new_log")
    is_restart = F.col("_is_new_log") & (differs | ~F.col("_ids_go_on"))
    return numbered.withColumns({"is_gap": is_gap, "is_restart": is_restart, **_moves()}).drop(*_NOT_KEPT)


def _moves() -> dict[str, Column]:
    """Returns left and joined: the brokers that this event took out of the SyncStateSet or brought in."""
    none = F.array().cast("array<bigint>")
    old = F.coalesce(F.col("before.sync_state_set"), none)
    new = F.col("after.sync_state_set")
    is_change = F.col("type").isin(*CHANGES)
    return {
        "left": F.when(is_change, F.array_except(old, new)).otherwise(none),
        "joined": F.when(is_change, F.array_except(new, old)).otherwise(none),
    }


def _differs(one: str, other: str) -> Column:
    """Returns whether two states have different epochs; no state differs from every state."""
    same = [F.col(one)[name].eqNullSafe(F.col(other)[name]) for name in _EPOCHS]
    return ~(same[0] & same[1])


def _removed() -> Column:
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


def _before(order: WindowSpec) -> WindowSpec:
    return order.rowsBetween(Window.unboundedPreceding, Window.currentRow - 1)


def _until(order: WindowSpec) -> WindowSpec:
    return order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
