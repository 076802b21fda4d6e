"""The live tables as a query of Structured Streaming, on Spark in this process."""

import threading
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from analytics.engine.errors import SPARK_ERRORS, spark_in_one_line
from analytics.errors import AnalyticsError
from analytics.live.positions import Range
from analytics.live.publish import LiveRun, line_of
from analytics.live.source import NAME, TelemetrySource

POLL_S = 1
LAST_BATCH_S = 30
"""How long a stop waits for the batch that is being taken; it is read again otherwise."""

Progress = Callable[[str], None]


def run_query(
    spark: SparkSession,
    telemetry: Path,
    checkpoint: Path,
    run: LiveRun,
    trigger_s: float,
    stopped: threading.Event,
    progress: Progress,
) -> None:
    """Runs until `stopped` is set. Raises AnalyticsError."""
    batches = _Batches(run, stopped, progress)
    spark.dataSource.register(TelemetrySource)
    query = (
        spark.readStream.format(NAME)
        .option("directory", str(telemetry))
        .load()
        .writeStream.foreachBatch(batches.take)
        .option("checkpointLocation", f"file://{checkpoint}")
        .trigger(processingTime=f"{round(trigger_s * 1000)} milliseconds")
        .start()
    )
    batches.follow(query)


def ranges_of(batch: DataFrame) -> list[Range]:
    """Returns the rows of a batch of TelemetrySource."""
    return [Range(*row) for row in batch.collect()]


class _Batches:
    """Processes the batches in Spark's thread, and waits for the end in the caller's thread."""

    def __init__(self, run: LiveRun, stopped: threading.Event, progress: Progress) -> None:
        self._run, self._stopped, self._progress = run, stopped, progress
        self._taking = threading.Lock()
        self._error: AnalyticsError | None = None

    def take(self, frame: DataFrame, number: int) -> None:
        with self._taking:
            if self._stopped.is_set():
                raise AnalyticsError("the stream is being stopped")
            try:
                with spark_in_one_line():
                    self._progress(line_of(self._run.take(ranges_of(frame), number)))
            except OSError as error:
                self._error = AnalyticsError(f"{error.filename or 'telemetry'}: {error.strerror}")
            except AnalyticsError as error:
                self._error = error
            if self._error is not None:
                # without its cause: Spark's thread ends with a StackOverflowError when it searches a long one
                raise AnalyticsError(str(self._error))

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
