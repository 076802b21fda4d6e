"""The tables of an output as views: what an analyst queries instead of the files.

The folders of an output also hold files that are replaced already, every controller's copy of an event, and
windows of several widths. A view has the valid rows, one per key. Times are timestamps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from analytics.compaction.manifest import HOUR_MS, folder_of, read_manifests
from analytics.compaction.storage import open_storage
from analytics.engine.sessions import has_streams
from analytics.errors import AnalyticsError
from analytics.queries.event_log import events_once
from analytics.queries.reading import OF_URLS, PATHS, read_files, read_hours
from analytics.rollup.hours import paths_of
from analytics.rollup.store import RollupStore, run_folder
from analytics.rollup.tables import FILLED_LAG, LAG_HISTOGRAM, MINIMUM, REPLICA_LAG, RollUp
from analytics.rollup.tables import TABLES as ROLLUPS
from analytics.span import span_of
from analytics.tables import CONTROLLER_EVENT, GROUP, TABLES
from analytics.views.texts import TABLES as MEANINGS
from analytics.views.texts import comment_of
from keelmq.runtime.clock import wall_ms
from keelmq.web.page_files import CURRENT, STEP_MS, Current

LIST: Final = "view_list"
"""The view that lists all others, with their keys and comments."""
LIST_SCHEMA = "view string, key string, comment string"
COLUMNS: Final = "view_columns"
"""The view that lists the columns of all others, with their comments."""
COLUMNS_SCHEMA = "view string, column string, type string, is_key boolean, comment string"

OF_HOURS = (LAG_HISTOGRAM, MINIMUM)
"""Roll-ups that have no other windows."""

RUN_KEYS: Mapping[str, tuple[str, ...]] = {
    "membership": (*GROUP, "broker_id", "from_ts"),
    "sync_state_set_changes": (*GROUP, "n"),
    "failovers": (*GROUP, "n"),
    "group_totals": GROUP,
    "clock_skew": (*GROUP, "broker_id", "from_ts", "source"),
    "data_quality": ("record", *GROUP),
    "incidents": ("kind", *GROUP, "replica", "from_ts"),
    "fleet": GROUP,
    "heat": (*GROUP, "window_ts"),
}
"""The tables of a run besides replica_lag, and what is unique in them."""


@dataclass(frozen=True)
class View:
    """`table`: its name without the width of windows. `key`: the columns that are unique together."""

    name: str
    table: str
    key: tuple[str, ...]
    rows: DataFrame


class Output:
    """What `analytics run` or `analytics compact` has written, as it is now.

    `since`, `until`: only the files of hours that touch [since, until). A datetime without a zone is UTC.
    Raises AnalyticsError: nothing is there, or it cannot be read.
    """

    def __init__(
        self,
        spark: SparkSession,
        output: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> None:
        self.spark, self.store = spark, RollupStore(output)
        if not has_streams(spark):  # the embedded engine, maybe in a session that the analyst made
            spark.conf.set(PATHS, OF_URLS)
        manifests = read_manifests(output)
        if not manifests:
            raise AnalyticsError(f"{output} has no compacted telemetry: run keelmq analytics run first")
        self.all_parts = {path for each in manifests for path in each.paths()}
        span = span_of(manifests, now_ms=wall_ms(), from_ts=None, to_ts=None, progress=lambda _: None)
        from_ts, to_ts = _ms(since), _ms(until)
        within = [each for each in (*span.hours, *span.moved) if _touches(each.hour_ts, from_ts, to_ts)]
        self.manifests = sorted(within, key=lambda each: each.hour_ts)
        rolled = [found for each in span.hours if (found := self.store.read(each.hour_ts)) is not None]
        self._rolled = [each for each in rolled if _touches(each.hour_ts, from_ts, to_ts)]
        self._widths = sorted({STEP_MS["minute"], HOUR_MS, *(w for each in rolled for w in each.windows)})
        self._run_ts = current_run(self.store)
        if self._run_ts is not None and not rolled:
            raise AnalyticsError(
                f"the roll-ups of {output} are of another version of KeelMQ: run keelmq analytics run"
            )

    def views(self) -> Iterator[View]:
        """Yields the views of compacted tables, then those of roll-ups, then those of the current run."""
        for table in TABLES:
            if table is not CONTROLLER_EVENT:
                rows = read_hours(self.spark, self.paths(table.name), table.schema, "ts")
                yield View(table.name, table.name, table.key, rows)
        yield from self._events()
        for roll_up in ROLLUPS.values():
            if roll_up is not REPLICA_LAG:
                for width in (HOUR_MS,) if roll_up in OF_HOURS else self._widths:
                    yield self._of_width(roll_up, width, self.store.paths(roll_up.name, width, self._rolled))
        if self._run_ts is not None:
            yield from self._of_run(run_folder(self._run_ts))

    def paths(self, table: str) -> list[str]:
        """Returns the URLs of the parts of a compacted table."""
        (found,) = (each for each in TABLES if each.name == table)
        return paths_of(self.store.url, self.manifests, found)

    def _events(self) -> Iterator[View]:
        """All controllers write each event: of the copies, the one that knows most."""
        copies = read_files(self.spark, self.paths(CONTROLLER_EVENT.name), CONTROLLER_EVENT.schema)
        key = (*GROUP, "log", "event_id", "type", "ts")
        yield View("controller_event", "controller_event", key, events_once(copies))
        same = (*GROUP, "log_id", "event_id", "type")
        first = Window.partitionBy(*same).orderBy("ts", "controller_id")
        refused = copies.where("refused IS NOT NULL").withColumn("_copy", F.row_number().over(first))
        yield View("refused_event", "refused_event", same, refused.where("_copy = 1").drop("_copy"))

    def _of_width(self, table: RollUp, window_ms: int, paths: Sequence[str]) -> View:
        rows = read_hours(self.spark, paths, table.schema, "window_ts")
        name = f"{table.name}_{name_of_width(window_ms)}"
        return View(
            name, table.name, table.columns[: table.key], rows.withColumn("window_ms", F.lit(window_ms))
        )

    def _of_run(self, folder: str) -> Iterator[View]:
        hours = {folder_of(each.hour_ts) for each in self._rolled}
        for width in self._widths:
            paths = self.store.files_in(f"{folder}/{FILLED_LAG.name}/window={width}")
            yield self._of_width(
                FILLED_LAG, width, [each for each in paths if any(f"/{hour}/" in each for hour in hours)]
            )
        for name, key in RUN_KEYS.items():
            if paths := self.store.files_in(f"{folder}/{name}"):
                yield View(name, name, key, read_files(self.spark, paths, self._schema(paths[0])))

    def _schema(self, url: str) -> pa.Schema:
        """Returns the columns of a file below the output. Spark would run a job to look."""
        system, root = self.store.place_of_files
        path = f"{root}{url.removeprefix(self.store.url)}"
        try:
            with system.open_input_file(path) as file:
                return pq.read_schema(file)
        except (OSError, pa.ArrowInvalid) as error:
            raise AnalyticsError(f"{url} is damaged, or missing: {error}; run keelmq analytics run") from None


def tables(
    spark: SparkSession,
    output: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    prefix: str = "",
) -> dict[str, DataFrame]:
    """Registers the tables of an output as temporary views of this session; returns them by name.

    `output`: a directory or a URL, under which the engine must find it, too. `since`, `until`: read only the
    files of hours that touch [since, until); tables of the run are always whole. `prefix`: of the views'
    names. The views `view_list` and `view_columns` tell what each view and column means. Raises
    AnalyticsError.
    """
    found: dict[str, DataFrame] = {}
    columns: list[tuple[str, str, str, bool, str]] = []
    listed: list[tuple[str, str, str]] = []
    for view in Output(spark, output, since=since, until=until).views():
        rows = found[view.name] = readable(view)
        listed.append((view.name, ", ".join(view.key), MEANINGS[view.table]))
        for each in rows.schema:
            comment = each.metadata.get("comment", "")
            columns.append(
                (view.name, each.name, each.dataType.simpleString(), each.name in view.key, comment)
            )
    found[LIST] = spark.createDataFrame(listed, LIST_SCHEMA)
    found[COLUMNS] = spark.createDataFrame(columns, COLUMNS_SCHEMA)
    for name, frame in found.items():
        frame.createOrReplaceTempView(f"{prefix}{name}")
    return found


def readable(view: View) -> DataFrame:
    """Returns the rows of a view with times as timestamps, and with comments."""
    return view.rows.select(
        *(
            _value(each.name, is_time=is_time(each.name) and isinstance(each.dataType, LongType)).alias(
                each.name, metadata={"comment": comment_of(view.table, each.name)}
            )
            for each in view.rows.schema
        )
    )


def is_time(column: str) -> bool:
    """Returns whether a column of a table is a moment, in ms UTC."""
    return column == "ts" or column.endswith("_ts")


def name_of_width(window_ms: int) -> str:
    """Returns minute, hour, or the width, as in "5s" or "500ms"."""
    names = {width: name for name, width in STEP_MS.items()}
    seconds, rest = divmod(window_ms, 1000)
    return names.get(window_ms) or (f"{window_ms}ms" if rest else f"{seconds}s")


def current_run(store: RollupStore) -> int | None:
    """Returns the run that current.json's pages are made of: the newest one from before they were. None:
    there are no pages. Raises AnalyticsError if the file is damaged."""
    with open_storage(store.out) as storage:
        try:
            generation = msgspec.json.decode(storage.read(CURRENT), type=Current).generation
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise AnalyticsError(
                f"{store.out}/{CURRENT} is damaged ({error}): run keelmq analytics run"
            ) from None
    return max((run_ts for run_ts in store.runs() if run_ts <= generation), default=None)


def _value(name: str, *, is_time: bool) -> Column:
    return F.timestamp_millis(F.col(name)) if is_time else F.col(name)


def _ms(moment: datetime | None) -> int | None:
    if moment is None:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _touches(hour_ts: int, from_ts: int | None, to_ts: int | None) -> bool:
    return (from_ts is None or hour_ts + HOUR_MS > from_ts) and (to_ts is None or hour_ts < to_ts)
