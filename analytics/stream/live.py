"""The tables of the last minutes, made from the batches of the stream.

    OUT/live/rows/batch=<n>/*.parquet     the rows of a batch, as the source gave them
    OUT/live/batches/<n>.json             their span of time and their number
    OUT/live/rollup/<table>/<minute>.parquet
    OUT/live/status.json                  how far the tables are

Each minute that a batch touches is computed again from all rows of that minute, by the functions of the
hourly job. So late and doubled records change nothing but their own minute, and a batch that is repeated
after a crash writes the same files again. Rows older than LIVE_MS are counted, and left to the hourly job.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.reading import as_pattern, spark_schema
from analytics.stream.source import SCHEMA
from analytics.stream.states import GroupStates
from analytics.tables import CONTROLLER_EVENT, MASTER_SAMPLE, REPLICA_SAMPLE, TABLES, Table
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.durable_file import replace_file

MINUTE_MS = 60_000
LIVE_MS = 15 * MINUTE_MS
KEPT_MS = 2 * 60 * MINUTE_MS
"""Rows of two hours are kept: the controllers' snapshot of each group is among them."""

Tables = Mapping[str, DataFrame]
Compute = Callable[[Tables], AbstractContextManager[Tables]]
"""From the rows of compacted tables to roll-ups of their minutes, with window_ts; frees what it kept."""
Minute = Mapping[str, pa.Table]
"""The roll-ups of one minute, by table."""


_OF_EVENT = ("cluster_name", "broker_name", "ts", "event_id", "log_id", "refused", "after")
_OF_SAMPLE = ("cluster_name", "broker_name", "min_in_sync_replicas")


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """`rows`: by table, duplicates included. `bad`: lines that are not records. from_ts > to_ts: no rows."""

    number: int
    from_ts: int
    to_ts: int
    rows: dict[str, int]
    bad: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`rows`, `bad`, `late` since the stream's directory was made. `data_to_ts`: the newest record's time.
    `took_ms`: of the last batch, its page included."""

    batch: int = -1
    computed_ts: int = 0
    data_to_ts: int = 0
    rows: int = 0
    bad: int = 0
    late: int = 0
    took_ms: int = 0


class LiveTables:
    """One writer per directory, which the checkpoint of the query ensures."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        compute: Compute,
        *,
        wall_clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._spark, self._directory, self._compute, self._wall_clock = spark, directory, compute, wall_clock
        self._batches = {batch.number: batch for batch in _read_batches(directory / "batches")}
        self.status = _read_status(directory / "status.json")
        self.states = GroupStates()
        for number in sorted(self._batches):
            self._add_states(number)

    def add(self, frame: DataFrame, number: int) -> Mapping[int, Minute]:
        """Takes a batch of the source; returns the minutes that it changed. A batch that was taken before
        gives the same tables."""
        rows = self._directory / "rows" / f"batch={number}"
        frame.write.mode("overwrite").parquet(f"file://{rows}")
        batch = _described(number, sorted(rows.glob("*.parquet")))
        self._batches[number] = batch
        replace_file(self._batch_file(number), msgspec.json.encode(batch), keep_backup=False)
        self._add_states(number)
        now = self._wall_clock()
        oldest = (now - LIVE_MS) // MINUTE_MS * MINUTE_MS
        from_ts = max(batch.from_ts // MINUTE_MS * MINUTE_MS, oldest)
        to_ts = min(batch.to_ts, now + MINUTE_MS) // MINUTE_MS * MINUTE_MS + MINUTE_MS
        changed = self._roll_up(from_ts, to_ts) if from_ts < to_ts else {}
        self.status = self._counted(batch, oldest, now, rows)
        self._tidy(now)
        return changed

    def kept(self, table: str) -> Iterator[tuple[int, pa.Table]]:
        """Yields each minute that is kept with its roll-up."""
        for path in sorted((self._directory / "rollup" / table).glob("*.parquet")):
            if path.stem.isdigit():
                yield int(path.stem), pq.ParquetFile(path).read()

    def commit(self, took_ms: int) -> Status:
        """Writes status.json, after the page of the batch that was added last."""
        self.status = replace(self.status, took_ms=took_ms)
        replace_file(self._directory / "status.json", msgspec.json.encode(self.status), keep_backup=False)
        return self.status

    def _roll_up(self, from_ts: int, to_ts: int) -> Mapping[int, Minute]:
        with self._compute(self._tables(from_ts, to_ts)) as rolled:
            tables = {name: frame.toArrow() for name, frame in rolled.items()}
        changed: dict[int, dict[str, pa.Table]] = {}
        for name, table in tables.items():
            for minute in sorted(table["window_ts"].unique().to_pylist()):
                of_minute = table.filter(pc.equal(table["window_ts"], minute))
                of_minute = of_minute.sort_by([(each, "ascending") for each in of_minute.column_names])
                changed.setdefault(minute, {})[name] = of_minute
                sink = pa.BufferOutputStream()
                pq.write_table(of_minute, sink, compression="zstd")
                path = self._directory / "rollup" / name / f"{minute}.parquet"
                replace_file(path, sink.getvalue().to_pybytes(), keep_backup=False, durable=False)
        return changed

    def _tables(self, from_ts: int, to_ts: int) -> dict[str, DataFrame]:
        """Returns the samples of this time, and all events, once each. Only batches that have some are read,
        and only where there are duplicates are they looked for: that costs more than all the rest."""
        within = [each for each in self._batches.values() if each.from_ts < to_ts and from_ts <= each.to_ts]
        found = {}
        for table in (MASTER_SAMPLE, REPLICA_SAMPLE):
            mine = [each.number for each in within if each.rows[table.name]]
            rows = self._read(table, mine).where(F.col("ts").between(from_ts, to_ts - 1))
            if self._has_duplicates(table, mine, from_ts, to_ts):
                rows = rows.dropDuplicates(list(table.key))
            found[table.name] = rows
        events = [each.number for each in self._batches.values() if each.rows[CONTROLLER_EVENT.name]]
        rows = self._read(CONTROLLER_EVENT, events)
        return found | {CONTROLLER_EVENT.name: rows.dropDuplicates(list(CONTROLLER_EVENT.key))}

    def _read(self, table: Table, batches: Sequence[int]) -> DataFrame:
        if not batches:
            return self._spark.createDataFrame([], spark_schema(table.schema))
        paths = [as_pattern(str(self._rows(number))) for number in batches]
        schema = spark_schema(pa.schema([SCHEMA.field(table.name)]))
        rows = self._spark.read.schema(schema).parquet(*paths)
        return rows.where(F.col(table.name).isNotNull()).select(f"{table.name}.*")

    def _has_duplicates(self, table: Table, batches: Sequence[int], from_ts: int, to_ts: int) -> bool:
        keys = [
            rows
            for number in batches
            for path in sorted(self._rows(number).glob("*.parquet"))
            if len(rows := _column(path, table.name, table.key))
        ]
        if not keys:
            return False
        of_all = pa.concat_tables(keys)
        ts = of_all["ts"]
        of_all = of_all.filter(pc.and_(pc.greater_equal(ts, from_ts), pc.less(ts, to_ts)))
        return len(of_all.group_by(list(table.key)).aggregate([])) < len(of_all)

    def _add_states(self, number: int) -> None:
        batch = self._batches[number]
        for path in sorted(self._rows(number).glob("*.parquet")):
            if batch.rows[CONTROLLER_EVENT.name]:
                self.states.add_events(_column(path, CONTROLLER_EVENT.name, _OF_EVENT).to_pylist())
            rows = _column(path, MASTER_SAMPLE.name, _OF_SAMPLE)
            for row in rows.group_by(list(_OF_SAMPLE)).aggregate([]).to_pylist():
                group = row["cluster_name"], row["broker_name"]
                self.states.set_minimum(group, row["min_in_sync_replicas"])

    def _rows(self, number: int) -> Path:
        return self._directory / "rows" / f"batch={number}"

    def _counted(self, batch: Batch, oldest: int, now: int, rows: Path) -> Status:
        before = self.status
        if batch.number <= before.batch:
            return before  # repeated: it is counted already
        late = _rows_before(rows, oldest) if batch.from_ts < oldest else 0
        return Status(
            batch=batch.number,
            computed_ts=now,
            data_to_ts=max(before.data_to_ts, min(batch.to_ts, now)),
            rows=before.rows + sum(batch.rows.values()),
            bad=before.bad + batch.bad,
            late=before.late + late,
        )

    def _tidy(self, now: int) -> None:
        newest = max(self._batches)
        for number in [
            number
            for number, batch in self._batches.items()
            if batch.to_ts < now - KEPT_MS and number < newest
        ]:
            shutil.rmtree(self._directory / "rows" / f"batch={number}", ignore_errors=True)
            self._batch_file(number).unlink(missing_ok=True)
            del self._batches[number]
        self.states.forget(now - KEPT_MS)
        for path in (self._directory / "rollup").glob("*/*.parquet"):
            if path.stem.isdigit() and int(path.stem) < now - KEPT_MS:
                path.unlink(missing_ok=True)

    def _batch_file(self, number: int) -> Path:
        return self._directory / "batches" / f"{number}.json"


def _described(number: int, files: Iterable[Path]) -> Batch:
    """Returns what the footers of the files say; no row is read but the few of the counts."""
    rows = dict.fromkeys((table.name for table in TABLES), 0)
    from_ts, to_ts, bad = 1 << 62, -1, 0
    for file in files:
        with pq.ParquetFile(file) as parquet:
            counts = parquet.read(["counts"])["counts"].drop_null()
            bad += sum(each["bad"] for each in counts.to_pylist())
            for group in range(parquet.metadata.num_row_groups):
                of_group = parquet.metadata.row_group(group)
                for index in range(of_group.num_columns):
                    column = of_group.column(index)
                    table, _, name = column.path_in_schema.partition(".")
                    if name == "ts" and column.statistics is not None and column.statistics.has_min_max:
                        from_ts = min(from_ts, column.statistics.min)
                        to_ts = max(to_ts, column.statistics.max)
                        rows[table] += column.statistics.num_values
    return Batch(number=number, from_ts=from_ts, to_ts=to_ts, rows=rows, bad=bad)


def _column(path: Path, table: str, names: Sequence[str]) -> pa.Table:
    """Returns the rows of a table in a file of a batch, with these columns."""
    with pq.ParquetFile(path) as parquet:  # read_table() would take "batch=" for a column
        rows = parquet.read([f"{table}.{name}" for name in names])[table].drop_null()
    if not len(rows):
        return pa.schema([SCHEMA.field(table).type.field(name) for name in names]).empty_table()
    return pa.table({name: pc.struct_field(rows, name) for name in names})


def _rows_before(rows: Path, ts: int) -> int:
    total = 0
    for file in rows.glob("*.parquet"):
        with pq.ParquetFile(file) as parquet:  # read_table() would take "batch=" for a column
            times = parquet.read([f"{table.name}.ts" for table in TABLES])
        for column in times.columns:
            total += pc.sum(pc.less(pc.struct_field(column.drop_null(), "ts"), ts)).as_py() or 0
    return total


def _read_batches(directory: Path) -> list[Batch]:
    return [msgspec.json.decode(path.read_bytes(), type=Batch) for path in directory.glob("*.json")]


def _read_status(path: Path) -> Status:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Status)
    except FileNotFoundError:
        return Status()
