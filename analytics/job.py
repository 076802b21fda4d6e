"""The job: telemetry in, Parquet tables and pages out. Only this module ties the steps together (ADR 35).

    OUT/compacted/   OUT/rollup/     what is new is added; see analytics.compaction and analytics.rollup
    OUT/tables/run=<ms>/<table>/*.parquet     what needs the whole history; the newest RUNS_KEPT runs
    OUT/pages/, OUT/current.json              see keelmq.web.page_files

A run that fails leaves the pages of the run before. OUT is a directory or a URL.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.compaction.compactor import compact
from analytics.compaction.lock import locked
from analytics.compaction.manifest import read_manifests
from analytics.compaction.scan import NotRead, find_sources
from analytics.compaction.storage import open_storage
from analytics.compaction.times import HOUR_MS
from analytics.engine.errors import spark_in_one_line
from analytics.engine.sessions import check_engine, spark_engine
from analytics.errors import AnalyticsError
from analytics.pages.grid import FILLED
from analytics.pages.writer import write_pages
from analytics.queries.fleet import fleet_tables, groups_of, shown
from analytics.queries.incidents import WINDOW_MS, FleetFrames
from analytics.queries.kept import keeping, kept
from analytics.queries.quality import READ, READ_SCHEMA
from analytics.queries.reading import read_files, read_table
from analytics.queries.replicas import filled, newest
from analytics.queries.run_tables import EventFrames, run_tables
from analytics.remote_output import is_url, publish_pages
from analytics.retention import prune
from analytics.rollup.hours import paths_of
from analytics.rollup.inputs import inputs_of
from analytics.rollup.run import roll_up, windows_of, write_hours
from analytics.rollup.store import PART, ROLLUP, RolledHour, RollupStore
from analytics.rollup.tables import (
    FILLED_LAG,
    GROUP_STATE,
    LAG,
    MINIMUM,
    REPLICA_LAG,
    REPLICA_STATE,
    RollUp,
)
from analytics.span import Span, fine_window_ms, span_of
from analytics.tables import CLOCK_SAMPLE, CONTROLLER_EVENT, ROLE_CHANGE, SEND_GAP, Table
from keelmq.runtime.clock import wall_ms

__all__ = ["AnalyticsError", "run"]

RUNS_KEPT = 3
MINUTES_KEPT_MS = 3 * 24 * HOUR_MS
"""Pages show minutes of the last three days, hours of all."""

WINDOWS_AT_ONCE = 1_440
"""Windows of replica_lag that are filled at once with the lag of replicas that are down."""

OF_FLEET = (LAG, GROUP_STATE, REPLICA_STATE)
"""Roll-ups that the fleet's page is made of, besides replica_lag."""

Progress = Callable[[str], None]


def run(
    input: str,
    output: str,
    *,
    window_ms: int | None = None,
    from_ts: int | None = None,
    to_ts: int | None = None,
    interval_ms: int | None = None,
    keep_days: int | None = None,
    progress: Progress = lambda _: None,
    engine: str | None = None,
    master: str | None = None,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    wall_clock: Callable[[], int] = wall_ms,
) -> str:
    """Runs the job; returns the path or URL of current.json. Raises AnalyticsError, one line for the user.

    `window_ms`: windows besides minutes and hours; None: finer ones if the span is short. `interval_ms`: how
    often the job runs, so that pages can show that they are stale. `keep_days`: older ones are deleted.
    `engine`, `master`, `remote`, `conf`: see analytics.engine.sessions.
    """
    check_engine(engine, master, remote)
    windows_of(window_ms)
    out = output.rstrip("/") if is_url(output) else str(Path(output.removeprefix("file://")).absolute())
    sources = find_sources([input])
    with _only_run(out):
        compact(sources, out, progress=progress, from_ts=from_ts, to_ts=to_ts, wall_clock=wall_clock)
        manifests = read_manifests(out)
        if keep_days is not None:
            kept_ts = prune(out, manifests, keep_days=keep_days, now_ms=wall_clock(), progress=progress)
            manifests = [each for each in manifests if each.hour_ts >= kept_ts]
        span = span_of(manifests, now_ms=wall_clock(), from_ts=from_ts, to_ts=to_ts, progress=progress)
        store = RollupStore(out)
        generated_ts = max([wall_clock(), *(ts + 1 for ts in store.runs())])
        files = partial(_files_of, store, span)
        with _one_line(out, files), spark_engine(engine, master, remote, conf, progress) as spark:
            store.drop(each.hour_ts for each in (*span.outliers, *span.moved))
            roll_up(
                spark,
                out,
                span.hours,
                base_ms=window_ms or fine_window_ms(span),
                inputs=inputs_of(manifests),
                ends=span.ends,
                progress=progress,
            )
            _Run(spark, store, span, progress).write(generated_ts, sources.not_read)
        store.delete_runs(RUNS_KEPT)
        inputs, hours = sources.roots, [each.hour_ts for each in span.hours]
        if is_url(out):
            return publish_pages(
                out, generated_ts, hours=hours, inputs=inputs, interval_ms=interval_ms, progress=progress,
                wall_clock=wall_clock,
            )  # fmt: skip
        path = write_pages(
            Path(out), hours=hours, inputs=inputs, interval_ms=interval_ms, progress=progress,
            wall_clock=wall_clock,
        )  # fmt: skip
        return str(path)


class _Run:
    """The tables of one run, each written once."""

    def __init__(self, spark: SparkSession, store: RollupStore, span: Span, progress: Progress) -> None:
        self._spark, self._store, self._span, self._progress = spark, store, span, progress
        rolled = (store.read(each.hour_ts) for each in span.hours)
        self._rolled_hours = [each for each in rolled if each is not None]

    def write(self, run_ts: int, not_read: Sequence[NotRead]) -> None:
        """Writes them into the folder of this run."""
        self._progress("computing membership, fail-overs and totals")
        aside = self._store.begin_run(run_ts)
        read = self._spark.createDataFrame(_read_rows(self._span, not_read), READ_SCHEMA)
        hours = self._rolled_hours
        frames = EventFrames(
            controller_event=self._compacted(CONTROLLER_EVENT),
            role_change=self._compacted(ROLE_CHANGE),
            send_gap=self._compacted(SEND_GAP),
            clock_sample=self._compacted(CLOCK_SAMPLE),
            samples=self._rolled(MINIMUM, HOUR_MS, hours).select(
                "cluster_name", "broker_name", F.col("window_ts").alias("ts"), F.lit(0).alias("broker_id"),
                "min_in_sync_replicas",
            ),
        )  # fmt: skip
        span, lag = self._span, self._rolled(LAG, HOUR_MS, hours)
        with keeping() as keep:
            found = run_tables(frames, read, lag, from_ts=span.from_ts, to_ts=span.to_ts, kept=keep)
            tables = {name: keep(frame) for name, frame in found.items()}
            self._write(aside, tables)
            files = {
                window_ms: self._write_filled(window_ms, f"{aside}/{FILLED}")
                for window_ms in self._rolled_hours[-1].windows
            }
            self._write(aside, self._fleet(tables, files[WINDOW_MS], keep))
        self._store.end_run(run_ts)

    def _write(self, folder: str, tables: Mapping[str, DataFrame]) -> None:
        for name, frame in tables.items():
            self._store.write_table(f"{folder}/{name}/{PART}", in_order(frame).toArrow())

    def _fleet(
        self,
        tables: Mapping[str, DataFrame],
        replicas: Mapping[int, str],
        keep: Callable[[DataFrame], DataFrame],
    ) -> dict[str, DataFrame]:
        """Returns the tables of the fleet's page. `tables`: of this run; `replicas`: the files of its
        replica_lag by hour."""
        from_ts, to_ts, cell_ms = shown(self._span.from_ts, self._span.to_ts)
        hours = [each for each in self._rolled_hours if from_ts - HOUR_MS < each.hour_ts < to_ts]
        within = F.col("window_ts").between(from_ts, to_ts - 1)
        rolled = {table.name: self._rolled(table, WINDOW_MS, hours) for table in OF_FLEET}
        files = [f"{self._store.url}/{replicas[each.hour_ts]}" for each in hours if each.hour_ts in replicas]
        rolled[FILLED] = read_files(self._spark, files, FILLED_LAG.schema)
        groups = groups_of(tables["group_totals"], self._rolled(LAG, HOUR_MS, self._rolled_hours))
        frames = {name: frame.where(within) for name, frame in rolled.items()}
        frames |= {each.name: tables[each.name] for each in fields(FleetFrames) if each.name not in frames}
        return fleet_tables(
            FleetFrames(**frames), groups, from_ts=from_ts, to_ts=to_ts, cell_ms=cell_ms, kept=keep
        )

    def _write_filled(self, window_ms: int, folder: str) -> dict[int, str]:
        """Writes replica_lag with the lag of replicas that are down, some hours at a time; returns the names
        of the files by hour."""
        names: dict[int, str] = {}
        hours = self._hours(window_ms)
        count = max(1, WINDOWS_AT_ONCE * window_ms // HOUR_MS)
        before: DataFrame | None = None
        for first in range(0, len(hours), count):
            some = hours[first : first + count]
            replicas = self._rolled(REPLICA_LAG, window_ms, some).withColumn("window", F.lit(window_ms))
            replicas = replicas if before is None else before.unionByName(replicas)
            lag = self._rolled(LAG, window_ms, some).withColumn("window", F.lit(window_ms))
            rows = filled(lag, replicas).where(F.col("window_ts") >= some[0].hour_ts)
            names |= write_hours(self._store, folder, FILLED_LAG, rows.toArrow())
            before = kept(newest(replicas)) if first + count < len(hours) else None
        return names

    def _compacted(self, table: Table) -> DataFrame:
        return read_table(
            self._spark, paths_of(self._store.url, (*self._span.hours, *self._span.moved), table), table
        )

    def _rolled(self, table: RollUp, window_ms: int, hours: Iterable[RolledHour]) -> DataFrame:
        """Returns the rows of a roll-up table."""
        return read_files(self._spark, self._store.paths(table.name, window_ms, hours), table.schema)

    def _hours(self, window_ms: int) -> list[RolledHour]:
        """Returns the run's hours; of minutes and finer windows only the last days."""
        oldest = self._span.to_ts - MINUTES_KEPT_MS if window_ms < HOUR_MS else 0
        return [each for each in self._rolled_hours if each.hour_ts + HOUR_MS > oldest]


def in_order(frame: DataFrame) -> DataFrame:
    """Returns the rows in an order, so that equal runs give equal files."""
    head = [name for name in ("cluster_name", "broker_name") if name in frame.columns]
    order = [*head, *(each for each in frame.columns if each not in head and each != "elections_by_reason")]
    return frame.orderBy(*order)


def _read_rows(span: Span, not_read: Sequence[NotRead]) -> list[tuple[object, ...]]:
    """Returns what compaction counted, in the columns of READ_SCHEMA."""
    counts: dict[str, Counter[str]] = {}
    for hours, is_outlier in ((span.hours, False), (span.moved, False), (span.outliers, True)):
        for manifest in hours:
            for kind, of in manifest.counts.items():
                count = counts.setdefault(kind, Counter())
                count["outliers" if is_outlier else "rows"] += of.rows
                count["duplicates"] += of.duplicates
                count["bad_lines"] += sum(of.bad_lines.values())
    for each in not_read:
        for kind in (kind for kind in counts if f"/{kind}/" in each.path):
            counts[kind]["unread_files"] += 1
    return [
        (kind, *(count[name] for name in READ), span.from_ts, span.to_ts)
        for kind, count in sorted(counts.items())
    ]


@contextmanager
def _only_run(out: str) -> Iterator[None]:
    """Holds the lock of the roll-ups: a second run would delete what this one has staged, and note hours as
    done without their files. Raises AnalyticsError."""
    try:
        with open_storage(out) as storage, locked(storage, ROLLUP, "analytics run"):
            yield
    except OSError as error:
        raise AnalyticsError(f"cannot write {error.filename or out}: {error.strerror or error}") from error


def _files_of(store: RollupStore, span: Span) -> list[str]:
    """Returns the URLs of the Parquet files that a run may read."""
    hours = (*span.hours, *span.moved)
    rolled = [found for each in hours if (found := store.read(each.hour_ts)) is not None]
    names = [part.path for each in hours for part in each.all_parts()] + [
        name for each in rolled for name in each.files
    ]
    return [f"{store.url}/{name}" for name in names]


@contextmanager
def _one_line(out: str, files: Callable[[], list[str]]) -> Iterator[None]:
    """Raises AnalyticsError, one line. `files`: see spark_in_one_line()."""
    try:
        with spark_in_one_line(files):
            yield
    except OSError as error:
        raise AnalyticsError(f"cannot write {out}: {error.strerror or error}") from error
