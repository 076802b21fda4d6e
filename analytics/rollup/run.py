"""Rolls up the hours that are new or changed.

Spark gives each hour's files to a Python worker, which makes the tables of samples: analytics/rollup/hour.py.
Those of the controllers' events are queries.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.compaction.manifest import HourManifest
from analytics.errors import AnalyticsError
from analytics.queries.reading import as_pattern, no_rows, read_table, spark_schema
from analytics.rollup.events import EVENT_TABLES, Hours, hour_of
from analytics.rollup.files import FillReplicas, HourFiles, RollHours
from analytics.rollup.store import STAGING, RolledHour, RollupStore
from analytics.rollup.tables import LAG, MINIMUM, MINUTE_MS, REPLICA_LAG, TABLES, RollUp
from analytics.rollup.window_counts import HOUR_MS
from analytics.tables import Table

BATCH_ROWS_MAX = 200_000_000
"""Rows in one job. More are several jobs, so that an interrupted run keeps what it has computed."""
TASK_ROWS = 300_000
"""Rows for which a Python worker is worth its start."""

Progress = Callable[[str], None]


def windows_of(base_ms: int | None) -> tuple[int, ...]:
    """Returns the widths of windows, ascending: minutes, hours, and `base_ms` if it is another.

    Raises AnalyticsError if windows of `base_ms` do not fill minutes or are not filled by minutes.
    """
    if base_ms is None or base_ms >= HOUR_MS:
        return MINUTE_MS, HOUR_MS
    fine, coarse = min(base_ms, MINUTE_MS), max(base_ms, MINUTE_MS)
    if base_ms <= 0 or base_ms % 1_000 or coarse % fine or HOUR_MS % base_ms:
        raise AnalyticsError(
            f"a window of {base_ms} ms: it must be whole seconds, divide an hour, and divide a minute or be "
            "whole minutes; for example 5000, 10000, 300000"
        )
    return tuple(sorted({base_ms, MINUTE_MS, HOUR_MS}))


def roll_up(
    spark: SparkSession,
    out: str,
    manifests: Sequence[HourManifest],
    *,
    base_ms: int | None = None,
    tables: Collection[str] = TABLES.keys(),
    ends: Mapping[int, int] | None = None,
    progress: Progress = lambda _: None,
) -> list[int]:
    """Computes what is not up to date; returns those hours. A second run does nothing.

    `manifests`: of the compacted hours to look at. `base_ms`: a window besides minutes and hours. `tables`:
    names from TABLES and EVENT_TABLES; those of the latter need `minimum`.
    """
    windows, store = windows_of(base_ms), RollupStore(out)
    store.clean()
    stale = store.stale(manifests, windows)
    for batch in _batches(stale):
        progress(f"rolling up {len(batch)} hours, {sum(each.rows for each in batch):,} rows")
        roll_up_samples(spark, store, batch, windows, tables=[each for each in tables if each in TABLES])
        _roll_up_events(spark, store, batch, windows, tables, ends or {})
        store.place(batch, tables, windows)
    return [each.hour_ts for each in stale]


def roll_up_samples(
    spark: SparkSession,
    store: RollupStore,
    manifests: Sequence[HourManifest],
    windows: Sequence[int],
    *,
    tables: Collection[str] = TABLES.keys(),
    target: str = STAGING,
) -> None:
    """Writes the tables that are made of samples into the folder `target` of the store."""
    hours = [
        HourFiles(each.hour_ts, {name: [part.path for part in parts] for name, parts in each.parts.items()})
        for each in manifests
    ]
    system, root = store.place_of_files
    tasks = min(len(hours), 1 + sum(each.rows for each in manifests) // TASK_ROWS)
    work = RollHours(system, root, target, tuple(windows), frozenset(tables))
    spark.sparkContext.parallelize(hours, tasks).foreach(work)


def fill_replicas(
    spark: SparkSession, store: RollupStore, hours: Mapping[int, Sequence[RolledHour]], target: str
) -> None:
    """Writes replica_lag with the lag of replicas that are down, a task for each width of windows.

    `hours`: by width, in the order of time. `target`: the folder below the store.
    """
    names = (LAG.name, REPLICA_LAG.name)
    files = {
        window_ms: [
            HourFiles(each.hour_ts, {name: each.paths(name, window_ms) for name in names})
            for each in of_width
        ]
        for window_ms, of_width in hours.items()
    }
    work = FillReplicas(*store.place_of_files, target, files)
    spark.sparkContext.parallelize(sorted(files), len(files)).foreach(work)


def _roll_up_events(
    spark: SparkSession,
    store: RollupStore,
    batch: Sequence[HourManifest],
    windows: Sequence[int],
    tables: Collection[str],
    ends: Mapping[int, int],
) -> None:
    def read(table: Table) -> DataFrame:
        return read_table(spark, paths_of(store.url, batch, table), table)

    wanted = [each for each in EVENT_TABLES.values() if each.name in tables]
    wanted = [
        each for each in wanted if any(source.name in of.parts for of in batch for source in each.sources)
    ]
    if not wanted:
        return
    hours = Hours(read, _staged(spark, store, MINIMUM), windows, ends)
    try:
        for table in wanted:
            _write_hours(table.roll(hours), table, f"{store.url}/{STAGING}/{table.name}")
    finally:
        hours.close()


def _staged(spark: SparkSession, store: RollupStore, table: RollUp) -> DataFrame:
    """Returns the rows of a table that were written for this batch of hours."""
    schema = spark_schema(table.schema)
    if not store.is_staged(table.name):
        return no_rows(spark, schema)
    return spark.read.schema(schema).parquet(as_pattern(f"{store.url}/{STAGING}/{table.name}"))


def _batches(manifests: Sequence[HourManifest]) -> list[list[HourManifest]]:
    batches: list[list[HourManifest]] = []
    rows = 0
    for each in manifests:
        if not batches or rows + each.rows > BATCH_ROWS_MAX:
            batches.append([])
            rows = 0
        batches[-1].append(each)
        rows += each.rows
    return batches


def paths_of(out_url: str, manifests: Sequence[HourManifest], table: Table) -> list[str]:
    """Returns the URLs of this table's parts, hour by hour."""
    parts = [part.path for each in manifests for part in each.parts.get(table.name, [])]
    return [f"{out_url}/{path}" for path in parts]


def _write_hours(rows: DataFrame, table: RollUp, url: str) -> None:
    """Writes a file per window and hour, in the order of the key: equal rows give equal files."""
    folder, key = ("window", "hour"), table.columns[: table.key]
    # A constant would vanish from the order, and the writer would sort again by the folders, which loses it.
    window = F.when(F.col("window_ts").isNotNull(), F.col("window")).alias("window")
    columns = [window, hour_of(F.col("window_ts")).alias("hour"), *map(F.col, table.columns)]
    (
        rows.select(*columns)
        .repartition(*folder)
        .sortWithinPartitions(*folder, *key)
        .write.partitionBy(*folder)
        .mode("overwrite")
        .parquet(url)
    )
