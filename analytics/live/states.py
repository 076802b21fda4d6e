"""The groups' states by the controllers in the last hours, by minute: below the minimum, without a master,
unknown.

These are the rows of the batch job's group_state, by the same queries. Histories and their spans are made
anew when events come; the minutes that have ended since are cut from the spans.
"""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.live.batches import HOUR_MS, Batches
from analytics.live.rows import MINUTE_MS
from analytics.queries.availability import group_state
from analytics.queries.event_log import group_history
from analytics.queries.reading import local_rows, no_rows, read_table, spark_schema
from analytics.queries.sync_state_set import group_spans
from analytics.queries.windows import window_of
from analytics.rollup.hours import end_of_hours
from analytics.rollup.tables import GROUP_STATE, MINIMUM
from analytics.span import end_of_hour
from analytics.tables import CONTROLLER_EVENT, GROUP

COLUMNS = GROUP_STATE.columns


class GroupStates:
    """The state of all groups in the kept hours."""

    def __init__(self, spark: SparkSession, batches: Batches) -> None:
        self._spark, self._batches = spark, batches
        self._history: pa.Table | None = None
        self._spans: pa.Table | None = None
        self._known: dict[int, pa.Table] = {}
        self._from_ts = 0
        self.look()

    def look(self) -> None:
        """Reads the events of all batches."""
        paths = self._batches.paths(CONTROLLER_EVENT)
        if not paths:
            return
        events = read_table(self._spark, paths, CONTROLLER_EVENT)
        history = group_history(events, by_hour=True).toArrow()
        self._history = history if len(history) else None
        if self._history is not None:
            rows = local_rows(self._spark, self._history)
            whole = F.col("hour_ts") + HOUR_MS
            self._spans = group_spans(rows, from_ts=0, to_ts=whole).toArrow()
        self._from_ts = 0

    def minutes(
        self, minimum: Mapping[int, pa.Table], live: range, until_ts: int, *, changed_ts: int
    ) -> dict[int, pa.Table]:
        """Returns the rows of the live minutes in which they differ from those that were returned before.

        `minimum`: by minute. `until_ts`: the time of the newest record. `changed_ts`: the first minute whose
        `minimum` may be another.
        """
        first = max(live.start, min(self._from_ts, changed_ts))
        self._from_ts = until_ts // MINUTE_MS * MINUTE_MS
        if self._history is None or self._spans is None:
            return {}
        hour_ts, first_hour = F.col("hour_ts"), first // HOUR_MS * HOUR_MS
        history = local_rows(self._spark, self._history).where(hour_ts >= first_hour)
        end = end_of_hours(self._ends(until_ts))
        spans = local_rows(self._spark, self._spans).where(F.col("to_ts") > first)
        spans = spans.withColumns(
            {"from_ts": F.greatest("from_ts", F.lit(first)), "to_ts": F.least("to_ts", end)}
        )
        state = group_state(history, spans, self._minimum(minimum, first_hour), [MINUTE_MS])
        rows = state.where(F.col("window_ts") >= first).select(*COLUMNS).toArrow()
        return self._different(rows, range(first, live.stop, MINUTE_MS))

    def _different(self, rows: pa.Table, minutes: range) -> dict[int, pa.Table]:
        rows = rows.sort_by([(name, "ascending") for name in COLUMNS])
        for old in [each for each in self._known if each < minutes.start - HOUR_MS * 2]:
            del self._known[old]
        found = {}
        for minute in minutes:
            of_minute = rows.filter(pc.equal(rows["window_ts"], minute))
            before = self._known.get(minute)
            if (before is None and len(of_minute)) or (before is not None and not before.equals(of_minute)):
                self._known[minute] = found[minute] = of_minute
        return found

    def _ends(self, until_ts: int) -> dict[int, int]:
        """Returns up to when each hour has records, as the batch job sees it."""
        last: dict[int, int] = {}
        for batch in self._batches:
            for hour, ts in batch.hours.items():
                last[hour] = max(ts, last.get(hour, 0))
        return {hour * HOUR_MS: end_of_hour(hour * HOUR_MS, min(ts, until_ts)) for hour, ts in last.items()}

    def _minimum(self, by_minute: Mapping[int, pa.Table], from_ts: int) -> DataFrame:
        tables = [rows for minute, rows in by_minute.items() if minute >= from_ts and len(rows)]
        if not tables:
            return no_rows(self._spark, spark_schema(MINIMUM.schema)).withColumns(
                {"ts": F.col("window_ts"), "hour_ts": F.col("window_ts")}
            )
        rows = local_rows(self._spark, pa.concat_tables(tables))
        ts = F.col("window_ts")
        return rows.select(
            *GROUP, ts.alias("ts"), window_of(ts, HOUR_MS).alias("hour_ts"), "min_in_sync_replicas"
        )
