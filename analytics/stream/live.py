"""The tables of the last minutes, made from the batches of the stream.

    OUT/live/records/batch=<n>/*.parquet   the rows of a batch: analytics/stream/rows.py
    OUT/live/batches/<n>.json             their span of time and their number
    OUT/live/rollup/<table>/<minute>.parquet
    OUT/live/status.json                  how far the tables are

Each minute that a batch touches is computed again from all rows of that minute, by the functions of the
hourly job. So late and doubled records change nothing but their own minute, and a batch that is repeated
after a crash writes the same files again. Rows older than LIVE_MS are counted, and left to the hourly job.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

from analytics.queries.reading import spark_schema
from analytics.stream.minutes import Compute, Minutes, RollMinutes
from analytics.stream.rows import KEPT, MINUTE_MS, WRITTEN, WriteRows, rows_of
from analytics.stream.states import GroupStates
from analytics.tables import CONTROLLER_EVENT, MASTER_SAMPLE, Table
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.durable_file import replace_file

LIVE_MS = 15 * MINUTE_MS
KEPT_MS = 2 * 60 * MINUTE_MS
"""Rows of two hours are kept: the controllers' snapshot of each group is among them."""

Minute = Mapping[str, pa.Table]
"""The roll-ups of one minute, by table."""

ROWS_AT_ONCE = 500_000
NO_ROWS = (1 << 62, -1)
_OF_EVENT = ("cluster_name", "broker_name", "ts", "event_id", "log_id", "refused", "after")
_OF_SAMPLE = ("cluster_name", "broker_name", "min_in_sync_replicas")


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """`rows`: by table, duplicates included. `bad`: lines that are not records. `from_ts`, `to_ts`: of its
    rows, without clocks that are hours off; from_ts > to_ts: none."""

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
    """One writer per directory, which the checkpoint of the query ensures. `telemetry`: what the source
    follows."""

    def __init__(
        self,
        spark: SparkSession,
        telemetry: Path,
        directory: Path,
        compute: Compute,
        *,
        wall_clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._spark, self._compute, self._wall_clock = spark, compute, wall_clock
        self._telemetry, self._directory = telemetry, directory
        self._batches = {batch.number: batch for batch in _read_batches(directory / "batches")}
        self.status = _read_status(directory / "status.json")
        self.states = GroupStates()
        for number in sorted(self._batches):
            self._add_states(number)

    def add(self, frame: DataFrame, number: int) -> Mapping[int, Minute]:
        """Takes a batch of the source; returns the minutes that it changed. A batch that was taken before
        gives the same tables."""
        now = self._wall_clock()
        oldest = (now - LIVE_MS) // MINUTE_MS * MINUTE_MS
        batch, minutes = self._write_rows(frame, number, now)
        self._batches[number] = batch
        replace_file(self._batch_file(number), msgspec.json.encode(batch), keep_backup=False)
        self._add_states(number)
        changed = self._roll_up(sorted(each for each in minutes if oldest <= each <= now + MINUTE_MS))
        self.status = self._counted(batch, sum(n for each, n in minutes.items() if each < oldest), now)
        self._tidy(now)
        return changed

    def _write_rows(self, frame: DataFrame, number: int, now: int) -> tuple[Batch, Counter[int]]:
        """Writes the rows of a batch; returns how many there are of each minute, too."""
        rows = self._rows(number)
        shutil.rmtree(rows, ignore_errors=True)
        work = WriteRows(str(self._telemetry), str(rows))
        written = frame.mapInArrow(work, spark_schema(WRITTEN)).toArrow().to_pylist()
        tables, minutes = Counter[str](), Counter[int]()
        for each in written:
            tables[each["table"]] += each["rows"]
            minutes[each["minute_ts"]] += each["rows"]
        # a row of the far future would keep its batch for ever
        times = range(now - KEPT_MS, now + MINUTE_MS + 1)
        there = [each for each in written if each["rows"] and each["minute_ts"] in times]
        return Batch(
            number=number,
            from_ts=min((each["from_ts"] for each in there), default=NO_ROWS[0]),
            to_ts=max((each["to_ts"] for each in there), default=NO_ROWS[1]),
            rows=dict(+tables),
            bad=sum(each["bad"] for each in written),
        ), +minutes

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

    def _roll_up(self, minutes: Sequence[int]) -> Mapping[int, Minute]:
        if not minutes:
            return {}
        pieces = [self._minutes(*each) for each in self._pieces(minutes)]
        context = self._spark.sparkContext
        rolled = context.parallelize(pieces, len(pieces)).map(RollMinutes(self._compute)).collect()
        changed: dict[int, dict[str, pa.Table]] = {}
        for name, table in ((name, table) for tables in rolled for name, table in tables.items()):
            for minute in sorted(table["window_ts"].unique().to_pylist()):
                of_minute = table.filter(pc.equal(table["window_ts"], minute))
                of_minute = of_minute.sort_by([(each, "ascending") for each in of_minute.column_names])
                changed.setdefault(minute, {})[name] = of_minute
                sink = pa.BufferOutputStream()
                pq.write_table(of_minute, sink, compression="zstd")
                path = self._directory / "rollup" / name / f"{minute}.parquet"
                replace_file(path, sink.getvalue().to_pybytes(), keep_backup=False, durable=False)
        return changed

    def _pieces(self, minutes: Sequence[int]) -> list[tuple[int, int]]:
        """Returns spans of time that have the minutes, each with at most ROWS_AT_ONCE rows to read, or one
        minute long."""
        pieces: list[tuple[int, int]] = []
        for minute in minutes:
            to_ts = minute + MINUTE_MS
            if pieces and self._rows_within(pieces[-1][0], to_ts) <= ROWS_AT_ONCE:
                pieces[-1] = pieces[-1][0], to_ts
            else:
                pieces.append((minute, to_ts))
        return pieces

    def _rows_within(self, from_ts: int, to_ts: int) -> int:
        return sum(sum(each.rows.values()) for each in self._within(from_ts, to_ts))

    def _within(self, from_ts: int, to_ts: int) -> list[Batch]:
        """Returns the batches that may have rows of this time."""
        return [each for each in self._batches.values() if each.from_ts < to_ts and from_ts <= each.to_ts]

    def _minutes(self, from_ts: int, to_ts: int) -> Minutes:
        """Returns the files with samples of this time, and all with events."""
        within = self._within(from_ts, to_ts)
        files = {
            table.name: [
                path
                for batch in (self._batches.values() if table is CONTROLLER_EVENT else within)
                for path in self._files_of(batch.number, table)
            ]
            for table in KEPT
        }
        return Minutes(from_ts, to_ts, files)

    def _files_of(self, number: int, table: Table) -> list[str]:
        if not self._batches[number].rows.get(table.name):
            return []
        return [str(path) for path in sorted(self._rows(number).glob(f"{table.name}-*.parquet"))]

    def _add_states(self, number: int) -> None:
        if events := self._files_of(number, CONTROLLER_EVENT):
            self.states.add_events(rows_of(events, _OF_EVENT).to_pylist())
        if samples := self._files_of(number, MASTER_SAMPLE):
            seen = rows_of(samples, _OF_SAMPLE).group_by(list(_OF_SAMPLE)).aggregate([])
            for row in seen.to_pylist():
                group = row["cluster_name"], row["broker_name"]
                self.states.set_minimum(group, row["min_in_sync_replicas"])

    def _rows(self, number: int) -> Path:
        return self._directory / "records" / f"batch={number}"

    def _counted(self, batch: Batch, late: int, now: int) -> Status:
        before = self.status
        if batch.number <= before.batch:
            return before  # repeated: it is counted already
        return Status(
            batch=batch.number,
            computed_ts=now,
            data_to_ts=min(max(before.data_to_ts, batch.to_ts), now),  # the clock may have been ahead
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
            shutil.rmtree(self._rows(number), ignore_errors=True)
            self._batch_file(number).unlink(missing_ok=True)
            del self._batches[number]
        self.states.forget(now - KEPT_MS)
        for path in (self._directory / "rollup").glob("*/*.parquet"):
            if path.stem.isdigit() and int(path.stem) < now - KEPT_MS:
                path.unlink(missing_ok=True)

    def _batch_file(self, number: int) -> Path:
        return self._directory / "batches" / f"{number}.json"


def _read_batches(directory: Path) -> list[Batch]:
    return [msgspec.json.decode(path.read_bytes(), type=Batch) for path in directory.glob("*.json")]


def _read_status(path: Path) -> Status:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Status)
    except FileNotFoundError:
        return Status()
