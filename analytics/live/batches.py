"""The batches whose rows are kept: the content of each, and its files.

OUT/live/records/batch=<n>/<table>.parquet     see analytics/live/rows.py
OUT/live/batches/<n>.json                      Batch; written when all files of the batch are whole
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics.live.files import GrowingFiles
from analytics.live.positions import Range
from analytics.live.rows import AWAY_MS, EPOCHS, EPOCHS_FILE, MINUTE_MS, Written, merged_epochs, write_rows
from analytics.tables import MASTER_SAMPLE, REPLICA_SAMPLE, Table
from keelmq.runtime.durable_file import replace_file

HOUR_MS = 60 * MINUTE_MS


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """`rows`: by table, duplicates included. `bad`: lines that are not records. `minutes`: those, by the
    brokers' clocks, in which masters have samples. `hours`: the last time of a row in each hour since 1970.
    """

    number: int
    taken_ts: int
    rows: dict[str, int]
    bad: int
    minutes: list[int]
    hours: dict[int, int]

    @property
    def last_ts(self) -> int:
        """Returns the newest time in its rows, no later than the moment at which it was taken; 0: no rows."""
        return min(max(self.hours.values(), default=0), self.taken_ts)


class Batches:
    """`newest`: the number of the last batch that is complete; later ones are deleted."""

    def __init__(self, directory: Path, *, newest: int) -> None:
        self._directory = directory
        self._batches = {each.number: each for each in self._read()}
        for number in [each for each in self._batches if each > newest]:
            self._delete(number)
        for path in (directory / "records").glob("batch=*"):
            name = path.name.removeprefix("batch=")
            if not name.isdigit() or int(name) not in self._batches:
                shutil.rmtree(path, ignore_errors=True)
        self.epochs = EPOCHS.empty_table()
        self._merge_epochs(*self._batches)

    def take(
        self, files: GrowingFiles, ranges: Sequence[Range], number: int, now: int
    ) -> tuple[Batch, Written]:
        """Writes the rows of a batch, in place of those that it had if it was taken before."""
        self._delete(number)
        written = write_rows(files, ranges, self._rows(number), now)
        near = {
            (table, minute): last
            for (table, minute), (_, _, last) in written.minutes.items()
            if abs(minute - now) <= AWAY_MS
        }
        hours: dict[int, int] = {}
        for (_, minute), last in near.items():
            hours[minute // HOUR_MS] = max(last, hours.get(minute // HOUR_MS, 0))
        of_samples = (MASTER_SAMPLE.name, REPLICA_SAMPLE.name)
        batch = Batch(
            number=number,
            taken_ts=now,
            rows=dict(written.rows()),
            bad=written.bad,
            minutes=sorted({minute for table, minute in near if table in of_samples}),
            hours=hours,
        )
        replace_file(self._file(number), msgspec.json.encode(batch), keep_backup=False)
        self._batches[number] = batch
        self._merge_epochs(number)
        return batch, written

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches.values())

    def paths(self, table: Table, minutes: Set[int] | None = None) -> list[str]:
        """Returns the files with rows of a table; of batches that have samples in one of the minutes."""
        return [
            str(self._rows(each.number) / f"{table.name}.parquet")
            for each in self._batches.values()
            if each.rows.get(table.name) and (minutes is None or not minutes.isdisjoint(each.minutes))
        ]

    def rows_within(self, minutes: Set[int]) -> int:
        """Returns how many rows the batches have that have samples in one of the minutes."""
        return sum(self._rows_in(minutes).values())

    def masters_within(self, minutes: Set[int]) -> int:
        """Returns how many of these are samples of masters."""
        return self._rows_in(minutes)[MASTER_SAMPLE.name]

    def _rows_in(self, minutes: Set[int]) -> Counter[str]:
        found = Counter[str]()
        for each in self:
            if not minutes.isdisjoint(each.minutes):
                found.update(each.rows)
        return found

    def forget(self, before_ts: int) -> None:
        """Deletes the batches that end before; the newest stays."""
        newest = max(self._batches, default=-1)
        for number in [
            number for number, each in self._batches.items() if each.last_ts < before_ts and number < newest
        ]:
            self._delete(number)
        old = pc.less(self.epochs["minute_ts"], before_ts)
        self.epochs = self.epochs.filter(pc.invert(old))

    def _merge_epochs(self, *numbers: int) -> None:
        paths = [self._rows(each) / f"{EPOCHS_FILE}.parquet" for each in numbers]
        if paths:
            self.epochs = merged_epochs([self.epochs, *(pq.ParquetFile(each).read() for each in paths)])

    def _read(self) -> Iterator[Batch]:
        for path in (self._directory / "batches").glob("*.json"):
            yield msgspec.json.decode(path.read_bytes(), type=Batch)

    def _delete(self, number: int) -> None:
        """Deletes the description first: files without a description belong to no batch."""
        self._file(number).unlink(missing_ok=True)
        shutil.rmtree(self._rows(number), ignore_errors=True)
        self._batches.pop(number, None)

    def _rows(self, number: int) -> Path:
        return self._directory / "records" / f"batch={number}"

    def _file(self, number: int) -> Path:
        return self._directory / "batches" / f"{number}.json"
