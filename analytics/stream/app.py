"""keelmq analytics stream: follows growing telemetry, and keeps the tables and pages of the last minutes.

The checkpoint (OUT/live/checkpoint) says which bytes each batch has read. A process that is killed goes on
from there: a batch that was not finished is read again and gives the same tables.
"""

import shutil
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from analytics.engine_errors import SPARK_ERRORS, spark_in_one_line
from analytics.engines import SPARK, spark_engine
from analytics.errors import AnalyticsError
from analytics.stream.live import KEPT_MS, LiveTables, Status
from analytics.stream.minutes import minutes_of
from analytics.stream.pages import LivePages
from analytics.stream.positions import HOURS_KEPT
from analytics.stream.source import HOUR_MS, NAME, TelemetrySource
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.program import stopped_by_signal

TRIGGER_S = 5
POLL_S = 1
LAST_BATCH_S = 30
"""How long a stop waits for the batch that is being taken; it is read again otherwise."""

ROWS_OF_OLDER_RELEASES = "rows"

STREAMING = {
    "spark.sql.shuffle.partitions": "2",
    # a batch is small: what costs is the number of tasks, and planning each query again while it runs
    "spark.sql.adaptive.enabled": "false",
}

Progress = Callable[[str], None]


def run_stream(
    input: str,
    output: str,
    *,
    trigger_s: float = TRIGGER_S,
    progress: Progress = lambda _: None,
    engine: str | None = None,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> None:
    """Runs until SIGTERM or SIGINT. Raises AnalyticsError. `input`, `output`: local directories."""
    for each in (input, output):
        if "://" in each:
            raise AnalyticsError(f"{each}: the stream follows files of a local or mounted directory")
    directory, out = Path(input).absolute(), Path(output).absolute()
    if not directory.is_dir():
        raise AnalyticsError(f"{directory} is not a directory; give one with telemetry folders in it")
    live = out / "live"
    make_directory(live)
    stopped = threading.Event()
    with (
        spark_in_one_line(),
        stopped_by_signal(stopped),
        spark_engine(
            engine or SPARK, master, remote, {**STREAMING, **(conf or {})}, progress=progress
        ) as spark,
        stopped_by_signal(stopped),  # again: Spark has put its own handler of SIGINT in place of ours
    ):
        tables = LiveTables(spark, directory, live, minutes_of)
        if left_out := line_of_stop(tables.status, wall_ms()):
            progress(left_out)
        batches = _Batches(tables, out, trigger_s, stopped, progress)
        spark.dataSource.register(TelemetrySource)
        query = (
            spark.readStream.format(NAME)
            .option("directory", str(directory))
            .load()
            .writeStream.foreachBatch(batches.take)
            .option("checkpointLocation", f"file://{live / 'checkpoint'}")
            .trigger(processingTime=f"{round(trigger_s * 1000)} milliseconds")
            .start()
        )
        batches.follow(query)


class _Batches:
    """Takes the batches, in Spark's thread, and waits for the end, in that of the caller."""

    def __init__(
        self, tables: LiveTables, out: Path, trigger_s: float, stopped: threading.Event, progress: Progress
    ) -> None:
        self._tables, self._stopped, self._progress = tables, stopped, progress
        self._pages = LivePages(out, every_ms=round(trigger_s * 1000))
        for minute, lag in tables.kept("lag"):
            self._pages.remember(minute, lag)
        self._taking = threading.Lock()
        self._error: AnalyticsError | None = None

    def take(self, frame: DataFrame, number: int) -> None:
        with self._taking:
            if self._stopped.is_set():
                raise AnalyticsError("the stream is being stopped")
            try:
                with spark_in_one_line():
                    self._take(frame, number)
            except OSError as error:
                self._error = AnalyticsError(f"{error.filename or 'telemetry'}: {error.strerror}")
            except AnalyticsError as error:
                self._error = error
            if self._error is not None:
                # without its cause: Spark's thread ends with a StackOverflowError when it searches a long one
                raise AnalyticsError(str(self._error))

    def _take(self, frame: DataFrame, number: int) -> None:
        began_ms = now_ms()
        for minute, rolled in self._tables.add(frame, number).items():
            self._pages.put(minute, rolled.get("lag"), rolled.get("replica_lag"))
        status = self._tables.status
        self._pages.forget(status.computed_ts - KEPT_MS)
        self._pages.publish(self._tables.states, computed_ts=status.computed_ts, data_to_ts=status.data_to_ts)
        self._progress(_line(self._tables.commit(now_ms() - began_ms)))

    def follow(self, query: StreamingQuery) -> None:
        """Waits until the query fails, which raises its error, or the stream is stopped. A batch that is
        being taken is finished first."""
        try:
            while not self._stopped.is_set():
                if query.awaitTermination(POLL_S):  # its thread is gone without an error
                    raise self._error or AnalyticsError("the query has ended by itself")
            if self._taking.acquire(timeout=LAST_BATCH_S):
                self._taking.release()
            query.stop()
        except SPARK_ERRORS:
            if self._stopped.is_set():
                return  # the checkpoint knows where the stream was
            if self._error is not None:
                raise self._error from None
            raise


def make_directory(live: Path) -> None:
    """Makes the stream's directory. One of an older release, whose rows cannot be read, is made anew: the
    stream then begins with the current hour."""
    if (live / ROWS_OF_OLDER_RELEASES).exists():
        shutil.rmtree(live)
    live.mkdir(parents=True, exist_ok=True)


def line_of_stop(status: Status, now: int) -> str:
    """Returns what to say of the time without batches before this start; "": all of it will be read."""
    from_ts = (now // HOUR_MS - HOURS_KEPT) * HOUR_MS
    if not 0 < status.computed_ts < from_ts:
        return ""
    last, first = (datetime.fromtimestamp(ts / 1000, UTC) for ts in (status.computed_ts, from_ts))
    return (
        f"the last batch was at {last:%Y-%m-%d %H:%M} UTC; what was written since in hours before "
        f"{first:%Y-%m-%d %H:%M} is left to keelmq analytics run"
    )


def _line(status: Status) -> str:
    late = f", {status.late} late" if status.late else ""
    bad = f", {status.bad} damaged lines" if status.bad else ""
    behind_s = (status.computed_ts - status.data_to_ts) / 1000
    took_s = status.took_ms / 1000
    return (
        f"batch {status.batch}: {status.rows} rows{bad}{late}; data was {behind_s:.1f} s old; {took_s:.1f} s"
    )
