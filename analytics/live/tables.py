"""The tables of the last minutes, made from batches of bytes that growing files have gained.

    OUT/live/records/, batches/            the rows of the batches: analytics/live/batches.py
    OUT/live/rollup/<table>/<minute>.parquet
    OUT/live/status.json                   how far the tables are

Each minute that a batch changes is computed again from all rows of that minute, by the queries of the batch
job. So a late or repeated record changes only the minutes that it belongs to, and a batch that is repeated
after a crash writes the same files again. A batch changes the minutes of its samples, those that follow them,
and, if it has events or clock samples, minutes whose samples it makes stale or moves. Rows older than LIVE_MS
are counted, and left to the batch job.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyspark.sql import SparkSession

from analytics.errors import AnalyticsError
from analytics.live.batches import HOUR_MS, Batch, Batches
from analytics.live.clocks import Clocks
from analytics.live.files import GrowingFiles
from analytics.live.masters import Masters
from analytics.live.minutes import STATE, Compute, Piece, Tables, minutes_of
from analytics.live.positions import Range
from analytics.live.rows import MINUTE_MS, Written
from analytics.live.states import GroupStates
from analytics.rollup.tables import MINIMUM
from analytics.tables import CONTROLLER_EVENT
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.durable_file import replace_file

LIVE_MS = 120 * MINUTE_MS
"""Minutes that are computed and shown; as old as the first rows of a new directory may be."""
KEPT_MS = LIVE_MS + HOUR_MS
"""Rows are kept for an hour more: the beginning of an hour determines how its later minutes are computed."""

STATUS = "status.json"
ROWS_AT_ONCE = 500_000
"""Of masters and their replicas, in one query; or those of one minute."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`rows`, `bad`, `late` since the directory was made. `data_to_ts`: the newest record's time. `took_ms`:
    of the last batch, its page included."""

    batch: int = -1
    computed_ts: int = 0
    data_to_ts: int = 0
    rows: int = 0
    bad: int = 0
    late: int = 0
    took_ms: int = 0


class LiveTables:
    """One writer per directory. `telemetry`: where the files are. `status`: of the last complete batch; None:
    that of status.json. Files that a killed process left of a later batch are deleted: that batch is
    processed again."""

    def __init__(
        self,
        spark: SparkSession,
        telemetry: Path,
        directory: Path,
        *,
        status: Status | None = None,
        compute: Compute = minutes_of,
        wall_clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._spark, self._compute, self._wall_clock = spark, compute, wall_clock
        self._files, self._directory = GrowingFiles(telemetry), directory
        self.status = status or read_status(directory)
        self._batches = Batches(directory, newest=self.status.batch)
        self._clocks = Clocks(spark, self._batches)
        self._masters = Masters(spark, self._batches, self._clocks)
        self._states = GroupStates(spark, self._batches)
        self._minima = {int(path.stem): pq.ParquetFile(path).read() for path in self._paths(MINIMUM.name)}

    def take(self, ranges: Sequence[Range], number: int) -> Mapping[int, Tables]:
        """Processes a batch; returns the tables of the minutes that it changed. Processing a batch again
        gives the same tables."""
        now = self._wall_clock()
        batch, written = self._batches.take(self._files, ranges, number, now)
        live = range((now - LIVE_MS) // MINUTE_MS * MINUTE_MS, now + MINUTE_MS + 1, MINUTE_MS)
        minutes = self._changed(batch, live)
        self.status = self._counted(batch, written, live)
        rolled = self._roll_up(minutes)
        for minute, tables in self._state(batch, rolled, live).items():
            rolled.setdefault(minute, {})[STATE] = tables
        self._write(rolled)
        self._tidy(now)
        return rolled

    def kept(self, table: str) -> Iterator[tuple[int, pa.Table]]:
        """Yields each minute that is kept with its rows."""
        for path in self._paths(table):
            yield int(path.stem), pq.ParquetFile(path).read()

    def commit(self, took_ms: int) -> Status:
        """Writes status.json, after the page of the batch that was taken last."""
        self.status = replace(self.status, took_ms=took_ms)
        replace_file(self._directory / STATUS, msgspec.json.encode(self.status), keep_backup=False)
        return self.status

    def _changed(self, batch: Batch, live: range) -> list[int]:
        """Returns the minutes whose samples count differently than before, in order."""
        moved = self._clocks.look(batch)
        changed = moved | {each for minute in batch.minutes for each in self._clocks.moved(minute)}
        # a minute's last sample covers the next second, too
        changed |= {each + MINUTE_MS for each in changed}
        there = {
            each for one in self._batches for minute in one.minutes for each in self._clocks.moved(minute)
        }
        found = changed & there & set(live)
        hours = {each // HOUR_MS for each in (*found, *(hour * HOUR_MS for hour in batch.hours))}
        hours &= set(range(live.start // HOUR_MS, live.stop // HOUR_MS + 1))
        surely = bool(moved) or self._clocks.are_off or CONTROLLER_EVENT.name in batch.rows
        for hour, from_ts in self._masters.look(hours, surely=surely).items():
            found |= {each for each in there if each // HOUR_MS == hour and each + MINUTE_MS > from_ts}
        return sorted(found & set(live))

    def _roll_up(self, minutes: Sequence[int]) -> dict[int, dict[str, pa.Table]]:
        rolled: dict[int, dict[str, pa.Table]] = {each: {} for each in minutes}
        for piece in self._pieces(minutes):
            found = self._compute(self._spark, piece)
            for minute in piece.minutes:
                for name, rows in found.items():
                    ts = rows["window_ts"]  # of a change of the minimum: its moment
                    within = pc.and_(pc.greater_equal(ts, minute), pc.less(ts, minute + MINUTE_MS))
                    of_minute = rows.filter(within)
                    order = [(each, "ascending") for each in of_minute.column_names]
                    rolled[minute][name] = of_minute.sort_by(order)
        return rolled

    def _pieces(self, minutes: Sequence[int]) -> Iterator[Piece]:
        """Yields spans of time that have these minutes, none over the edge of an hour."""
        spans: list[list[int]] = []
        for minute in minutes:
            last = spans[-1] if spans else []
            if (
                last
                and last[0] // HOUR_MS == minute // HOUR_MS
                and self._rows_of([*last, minute]) <= ROWS_AT_ONCE
            ):
                last.append(minute)
            else:
                spans.append([minute])
        for each in spans:
            yield Piece(
                each[0],
                each[-1] + MINUTE_MS,
                each,
                self._batches,
                self._clocks,
                self._masters.terms(each[0] // HOUR_MS),
            )

    def _rows_of(self, minutes: Collection[int]) -> int:
        wanted = self._clocks.sources(min(minutes), max(minutes) + MINUTE_MS)
        return self._batches.rows_within(wanted)

    def _state(
        self, batch: Batch, rolled: Mapping[int, Mapping[str, pa.Table]], live: range
    ) -> Mapping[int, pa.Table]:
        """Returns the state of groups in the minutes in which it differs from what it was."""
        self._minima |= {
            minute: tables[MINIMUM.name] for minute, tables in rolled.items() if MINIMUM.name in tables
        }
        if batch.rows.get(CONTROLLER_EVENT.name):
            self._states.look()
        first = min(rolled, default=live.stop)
        return self._states.minutes(self._minima, live, self.status.data_to_ts, changed_ts=first)

    def _write(self, rolled: Mapping[int, Mapping[str, pa.Table]]) -> None:
        for minute, tables in rolled.items():
            for name, rows in tables.items():
                path = self._directory / "rollup" / name / f"{minute}.parquet"
                sink = pa.BufferOutputStream()
                pq.write_table(rows, sink, compression="zstd")
                replace_file(path, sink.getvalue().to_pybytes(), keep_backup=False, durable=False)

    def _counted(self, batch: Batch, written: Written, live: range) -> Status:
        before = self.status
        if batch.number <= before.batch:
            return before  # repeated: it is counted already
        edge = self._clocks.edge(written, batch.taken_ts)
        late = sum(rows for (_, minute), (rows, _, _) in written.minutes.items() if minute < live.start)
        return Status(
            batch=batch.number,
            computed_ts=batch.taken_ts,
            # the clock may have been ahead
            data_to_ts=min(max(before.data_to_ts, edge or 0), batch.taken_ts),
            rows=before.rows + sum(batch.rows.values()),
            bad=before.bad + batch.bad,
            late=before.late + late,
        )

    def _tidy(self, now: int) -> None:
        self._batches.forget(now - KEPT_MS)
        for path in (self._directory / "rollup").glob("*/*.parquet"):
            if path.stem.isdigit() and int(path.stem) < now - KEPT_MS:
                path.unlink(missing_ok=True)
        self._minima = {each: rows for each, rows in self._minima.items() if each >= now - KEPT_MS}

    def _paths(self, table: str) -> list[Path]:
        found = (self._directory / "rollup" / table).glob("*.parquet")
        return sorted(path for path in found if path.stem.isdigit())


def read_status(directory: Path) -> Status:
    """Returns how far the tables below a directory are, as the last commit() has left it. AnalyticsError: the
    file is damaged, so it is not known which of the rows beside it are complete."""
    path = directory / STATUS
    try:
        return msgspec.json.decode(path.read_bytes(), type=Status)
    except FileNotFoundError:
        return Status()
    except msgspec.MsgspecError as error:
        raise AnalyticsError(
            f"{path} is damaged ({error}); delete {directory}: the last hours are then read again"
        ) from None
