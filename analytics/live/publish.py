"""The tables and the pages of one output directory, batch by batch."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from analytics.live.minutes import STATE
from analytics.live.pages import LivePages
from analytics.live.positions import Range
from analytics.live.tables import LIVE_MS, LiveTables, Status
from keelmq.runtime.clock import now_ms, wall_ms


class LiveRun:
    """Processes batches; after each one the pages show what the tables have. `status`: see LiveTables."""

    def __init__(
        self,
        spark: SparkSession,
        telemetry: Path,
        out: Path,
        *,
        every_ms: int,
        status: Status | None = None,
        wall_clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._tables = LiveTables(spark, telemetry, out / "live", status=status, wall_clock=wall_clock)
        self._pages = LivePages(out, every_ms=every_ms)
        for minute, lag in self._tables.kept("lag"):
            self._pages.remember(minute, lag=lag)
        for minute, state in self._tables.kept(STATE):
            self._pages.remember(minute, state=state)

    def take(self, ranges: Sequence[Range], number: int) -> Status:
        """Processes a batch: writes tables, pages, and then status.json. Returns the content of
        status.json."""
        began_ms = now_ms()
        for minute, tables in self._tables.take(ranges, number).items():
            if "lag" in tables:
                self._pages.put(minute, tables["lag"], tables["replica_lag"])
            self._pages.remember(minute, state=tables.get(STATE))
        status = self._tables.status
        self._pages.forget(status.computed_ts - LIVE_MS)
        self._pages.publish(computed_ts=status.computed_ts, data_to_ts=status.data_to_ts)
        return self._tables.commit(now_ms() - began_ms)


def line_of(status: Status) -> str:
    """Returns the line that reports a batch."""
    late = f", {status.late} late" if status.late else ""
    bad = f", {status.bad} damaged lines" if status.bad else ""
    behind_s = (status.computed_ts - status.data_to_ts) / 1000
    took_s = status.took_ms / 1000
    return (
        f"batch {status.batch}: {status.rows} rows{bad}{late}; data was {behind_s:.1f} s old; {took_s:.1f} s"
    )
