"""The job: telemetry in, Parquet tables and dashboard.json out. Only this module reads and writes.

    OUT/run=<ms>/<table>/*.parquet     the newest RUNS_KEPT runs
    OUT/dashboard.json                 renamed into place when all tables are there

A run that fails leaves the dashboard.json of the run before. Each table is computed once, by its write; what
the dashboard shows is read back from the files.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from analytics import sync_state_set as sss
from analytics.dashboard import CHANGES_MAX, Dashboard, Parts, Row, Rows, assemble_groups
from analytics.errors import AnalyticsError
from analytics.failover import failovers
from analytics.inputs import Inputs, find_inputs, good, local_url, read_records
from analytics.lag import confirm_offset_lag, lag_histogram, min_in_sync_replicas, replica_lag
from analytics.quality import data_quality
from analytics.schema import GROUP
from analytics.session import spark_session
from analytics.windows import POINTS_MAX, choose_window_ms, points
from keelmq.remoting.records import RECORDS, ControllerEvent, HaSample, RoleChange, SendGap
from keelmq.runtime.clock import wall_ms

__all__ = ["AnalyticsError", "run"]

DASHBOARD = "dashboard.json"
RUN = "run="
RUNS_KEPT = 3
QUICK_BYTES_MAX = 64 << 20
"""Below, the start costs more than the rows: see analytics/session.py."""

FILE_IS_GONE = "FILE_NOT_EXIST"
"""Spark's error class for a file that was listed but does not exist when it is read."""

SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)
"""ConnectionError: its Java process is gone, killed or out of memory."""

Progress = Callable[[str], None]


def run(
    input: str,
    output: str,
    *,
    window_ms: int | None = None,
    progress: Progress = lambda _: None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    wall_clock: Callable[[], int] = wall_ms,
) -> Path:
    """Runs the job; returns the path of dashboard.json. Raises AnalyticsError, one line for the user.

    `window_ms` None: as fine as fits on a page. `master`, `conf`: of a Spark cluster.
    """
    inputs = find_inputs(input)
    out = _writable(output)
    progress(str(inputs))
    quick = master is None and inputs.size_bytes is not None and inputs.size_bytes <= QUICK_BYTES_MAX
    generated_ts = max([wall_clock(), *(ts + 1 for ts in _runs(out))])
    directory = out / f"{RUN}{generated_ts}"
    try:
        with spark_session(quick=quick, master=master, conf=conf, progress=progress) as spark:
            job = _Job(spark, inputs, directory, progress)
            dashboard = job.again_if_a_file_went(lambda: job.dashboard(generated_ts, window_ms))
        _rename_into_place(msgspec.json.encode(dashboard), out / DASHBOARD)
    except BaseException as error:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(error, ConnectionError):
            raise AnalyticsError("Spark's Java process is gone: killed, or out of memory") from error
        if isinstance(error, SPARK_ERRORS):
            raise AnalyticsError(f"Spark failed: {spark_error(error)}") from error
        if isinstance(error, OSError):
            raise AnalyticsError(f"cannot write {out}: {error.strerror or error}") from error
        raise
    for old in _runs(out)[:-RUNS_KEPT]:
        shutil.rmtree(out / f"{RUN}{old}", ignore_errors=True)
    return out / DASHBOARD


class _Job:
    """One run: the order of the computations; each table is written once."""

    def __init__(self, spark: SparkSession, inputs: Inputs, directory: Path, progress: Progress) -> None:
        self._spark, self._inputs, self._directory, self._progress = spark, inputs, directory, progress

    def again_if_a_file_went(self, compute: Callable[[], Dashboard]) -> Dashboard:
        """Retries if a growing file got its final name, at the end of its hour, between listing and
        reading."""
        try:
            return compute()
        except SPARK_ERRORS as error:
            if FILE_IS_GONE not in str(error):
                raise
        self._progress("a file was renamed while it was read: once more")
        self._spark.catalog.clearCache()
        shutil.rmtree(self._directory, ignore_errors=True)
        return compute()

    def dashboard(self, generated_ts: int, window_ms: int | None) -> Dashboard:
        lines = {
            record: read_records(self._spark, self._inputs.roots, record).persist() for record in RECORDS
        }
        history = sss.group_history(good(lines[ControllerEvent])).persist()
        quality = _rows(self._table("data_quality", data_quality(lines, history)))
        rows = _count(quality)
        from_ts, to_ts = _range(quality, rows, self._inputs)
        window_ms = checked_window_ms(window_ms, from_ts, to_ts)
        self._progress(f"{rows}, {(to_ts - from_ts) / 1000:.0f} s in windows of {window_ms / 1000:g} s")
        return Dashboard(
            generated_ts=generated_ts,
            from_ts=from_ts,
            to_ts=to_ts,
            window_ms=window_ms,
            inputs=list(self._inputs.roots),
            rows=rows,
            groups=assemble_groups(self._parts(lines, history, window_ms, to_ts)),
        )

    def _parts(
        self, lines: Mapping[type, DataFrame], history: DataFrame, window_ms: int, until_ts: int
    ) -> Parts:
        samples = good(lines[HaSample])
        histogram = self._table("lag_histogram", lag_histogram(samples, window_ms))
        changes = self._table("sync_state_set_changes", sss.sync_state_set_changes(history))
        intervals = sss.intervals(history, F.lit(until_ts))
        membership = self._table("membership", sss.membership(intervals))
        out = self._table("replica_out_of_sync", sss.replica_out_of_sync(membership, window_ms))
        totals = sss.group_totals(history, intervals, min_in_sync_replicas(samples))
        found = failovers(history, good(lines[RoleChange]), good(lines[SendGap]))
        return Parts(
            lag=_rows(self._table("confirm_offset_lag", confirm_offset_lag(histogram))),
            replica_lag=_rows(self._table("replica_lag", replica_lag(samples, window_ms))),
            members=_rows(_newest(membership, "from_ts", POINTS_MAX, "broker_id")),
            out_of_sync=_rows(out.groupBy(*GROUP, "broker_id").agg(F.sum("out_ms").alias("out_ms"))),
            totals=_rows(self._table("group_totals", totals)),
            changes=_rows(_newest(changes, "event_id", CHANGES_MAX)),
            failovers=_rows(_newest(self._table("failovers", found), "event_id", CHANGES_MAX)),
        )

    def _table(self, name: str, frame: DataFrame) -> DataFrame:
        """Writes a table, sorted so that equal runs give equal files; returns a DataFrame that reads it."""
        path = self._directory / name
        order = [*GROUP, *(each for each in frame.columns if each not in GROUP)]
        frame.sortWithinPartitions(*order).write.parquet(f"file://{path}")
        return self._spark.read.schema(frame.schema).parquet(local_url(path))


def spark_error(error: Exception) -> str:
    """Returns one line of a Java stack trace: the error and its innermost cause."""
    lines = str(error).strip().splitlines()
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        del lines[0]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return " <- ".join(dict.fromkeys([lines[0].lstrip(": "), *causes[-1:]]))


def _rows(frame: DataFrame) -> Sequence[Row]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def _newest(frame: DataFrame, order: str, count: int, *within: str) -> DataFrame:
    """Returns the last `count` rows of each group."""
    newest_first = Window.partitionBy(*GROUP, *within).orderBy(F.desc(order))
    return frame.withColumn("_n", F.row_number().over(newest_first)).where(F.col("_n") <= count).drop("_n")


def _count(quality: Sequence[Row]) -> Rows:
    counts = dict.fromkeys(Rows.__struct_fields__, 0)
    for row in quality:
        counts[row["record"]] += row["rows"]
        for name in ("corrupt", "confirm_above_max", "epoch_gaps"):
            counts[name] += row[name]
    return Rows(**counts)


def _range(quality: Sequence[Row], rows: Rows, inputs: Inputs) -> tuple[int, int]:
    known = [row for row in quality if row["from_ts"] is not None]
    if not known:
        raise AnalyticsError(
            f"no record in {', '.join(inputs.roots)} could be read: {rows.corrupt} corrupt lines"
        )
    return min(row["from_ts"] for row in known), max(row["to_ts"] for row in known)


def checked_window_ms(wanted: int | None, from_ts: int, to_ts: int) -> int:
    """Returns the wanted window, or the finest one that a page takes. AnalyticsError: it is too fine."""
    finest = choose_window_ms(from_ts, to_ts)
    if wanted is None:
        return finest
    count = points(from_ts, to_ts, wanted)
    if count > POINTS_MAX:
        raise AnalyticsError(
            f"windows of {wanted} ms make {count} points of {(to_ts - from_ts) / 1000:.0f} s; "
            f"a page takes {POINTS_MAX}: ask for {finest} ms or more"
        )
    return wanted


def _writable(output: str) -> Path:
    """Returns the output directory. Checks that it is writable before a minute of work."""
    if "://" in output:
        raise AnalyticsError(
            f"{output}: the output must be a directory; name servers read dashboard.json there"
        )
    out = Path(output).absolute()
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".{os.getpid()}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise AnalyticsError(f"cannot write {out}: {error.strerror}") from error
    return out


def _runs(out: Path) -> list[int]:
    found = [path.name.removeprefix(RUN) for path in out.glob(f"{RUN}*")]
    return sorted(int(ts) for ts in found if ts.isdigit())


def _rename_into_place(content: bytes, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
