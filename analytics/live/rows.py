"""The rows of a batch: decodes bytes of telemetry into Parquet files, one per table.

    <batch>/<table>.parquet     of the tables in KEPT; rows of the others are counted only
    <batch>/epochs.parquet      EPOCHS: which masterEpochs the samples of masters have, and when

No record passes through the engine: its queries read these files.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics.compaction.columns import tables_of
from analytics.compaction.decode import decode_lines
from analytics.live.files import GrowingFiles, kind_of
from analytics.live.positions import Range
from analytics.tables import (
    CLOCK_SAMPLE,
    CONTROLLER_EVENT,
    GROUP,
    MASTER_SAMPLE,
    REPLICA_SAMPLE,
    SLAVE_SAMPLE,
)
from keelmq.web.page_files import STEP_MS

MINUTE_MS = STEP_MS["minute"]
KEPT = (MASTER_SAMPLE, REPLICA_SAMPLE, CONTROLLER_EVENT, CLOCK_SAMPLE)
"""The tables that minutes are made of."""
AWAY_MS = 25 * 60 * MINUTE_MS
"""Rows farther from the present are of clocks that nothing corrects; they are counted only."""
DECODED_BYTES = 4 << 20
"""Lines of several files are decoded at once: a call for each of a thousand files would cost more than
decoding."""
COMPRESSION = "zstd"
"""Not LZ4, which would be faster: Spark 4 cannot read it if the values of a column take more than 8 KiB
(parquet-java, issue 3478)."""
EPOCHS_FILE = "epochs"
EPOCHS = pa.schema(
    [
        *((name, pa.string()) for name in GROUP),
        ("broker_id", pa.int64()),
        ("minute_ts", pa.int64()),
        ("master_epoch", pa.int64()),
        ("first_ts", pa.int64()),
        ("last_ts", pa.int64()),
    ]
)
"""A row per broker, minute of its clock and masterEpoch: the first and the last sample with that epoch. These
show whose samples are stale, as all samples of the hour would."""

_KEPT = {table.name: table for table in KEPT}
_OF_EPOCH = EPOCHS.names[: EPOCHS.names.index("first_ts")]


WriterKey = tuple[str, ...]
"""A broker: (cluster_name, broker_name, broker_id). A controller: (controller_id,)."""
_WRITERS = {
    MASTER_SAMPLE.name: (*GROUP, "broker_id"),
    SLAVE_SAMPLE.name: (*GROUP, "broker_id"),
    CONTROLLER_EVENT.name: ("controller_id",),
    CLOCK_SAMPLE.name: ("controller_id",),
}
"""Columns that name the writer of a row."""


@dataclass(slots=True)
class Written:
    """The content of a batch. `minutes`: (rows, first ts, last ts) by table and minute, duplicates included.
    `writers`: (first ts, last ts), of rows that are near. `bad`: lines that are not records. `now`: when it
    is taken."""

    now: int

    minutes: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)
    writers: dict[WriterKey, tuple[int, int]] = field(default_factory=dict)
    bad: int = 0

    def add(self, table: str, rows: pa.Table) -> None:
        """Counts rows."""
        ts = rows["ts"]
        minute = pc.subtract(ts, _modulo(ts))
        counted = pa.table({"minute": minute, "ts": ts}).group_by("minute")
        for each in counted.aggregate([("ts", "count"), ("ts", "min"), ("ts", "max")]).to_pylist():
            key, first, last = (table, each["minute"]), each["ts_min"], each["ts_max"]
            before, earliest, latest = self.minutes.get(key, (0, first, last))
            self.minutes[key] = before + each["ts_count"], min(first, earliest), max(last, latest)
        if (names := _WRITERS.get(table)) is not None:
            near = pc.and_(pc.greater(ts, self.now - AWAY_MS), pc.less(ts, self.now + AWAY_MS))
            found = (
                rows.select([*names, "ts"])
                .filter(near)
                .group_by(names)
                .aggregate([("ts", "min"), ("ts", "max")])
            )
            for each in found.to_pylist():
                writer = tuple(str(each[name]) for name in names)
                first, last = self.writers.get(writer, (each["ts_min"], each["ts_max"]))
                self.writers[writer] = min(first, each["ts_min"]), max(last, each["ts_max"])

    def rows(self) -> Counter[str]:
        """Returns the number of rows by table."""
        found = Counter[str]()
        for (table, _), (rows, _, _) in self.minutes.items():
            found[table] += rows
        return found


def write_rows(files: GrowingFiles, batch: Iterable[Range], target: Path, now: int) -> Written:
    """Decodes the ranges of a batch into the directory `target`, which is made anew."""
    written, epochs = Written(now), [EPOCHS.empty_table()]
    with _Writers(target) as writers:
        for kind, data in _lines(files, batch):
            decoded = decode_lines(data, kind)
            written.bad += decoded.bad.total()
            for name, rows in tables_of(kind, decoded.rows).items():
                if len(rows):
                    written.add(name, rows)
                    writers.add(name, rows)
                    if name == MASTER_SAMPLE.name:
                        epochs.append(_epochs_of(rows))
    pq.write_table(merged_epochs(epochs), target / f"{EPOCHS_FILE}.parquet", compression=COMPRESSION)
    return written


def merged_epochs(parts: Sequence[pa.Table]) -> pa.Table:
    """Returns the rows of EPOCHS, each key once."""
    every = pa.concat_tables(parts)
    merged = every.group_by(_OF_EPOCH).aggregate([("first_ts", "min"), ("last_ts", "max")])
    return merged.rename_columns(EPOCHS.names).select(EPOCHS.names)


def _epochs_of(masters: pa.Table) -> pa.Table:
    ts = masters["ts"]
    columns = {
        **{name: masters[name].cast(EPOCHS.field(name).type) for name in (*GROUP, "broker_id")},
        "minute_ts": pc.subtract(ts, _modulo(ts)),
        "master_epoch": masters["master_epoch"],
        "first_ts": ts,
        "last_ts": ts,
    }
    return merged_epochs([pa.table(columns, schema=EPOCHS)])


def _modulo(ts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns what each time (0 or later) is after the beginning of its minute."""
    return pc.subtract(ts, pc.multiply(pc.divide(ts, MINUTE_MS), MINUTE_MS))


def _lines(files: GrowingFiles, ranges: Iterable[Range]) -> Iterator[tuple[str, bytes]]:
    """Yields (kind of record, whole lines), of as many files as make DECODED_BYTES."""
    in_order = sorted(ranges, key=lambda each: (kind_of(each.name), each.name, each.start))
    for kind, some in groupby(in_order, key=lambda each: kind_of(each.name)):
        waiting, size = list[bytes](), 0
        for each in some:
            for data in files.chunks(each.name, each.start, each.end):
                waiting.append(data[: data.rfind(b"\n") + 1])  # a file that became shorter may end anywhere
                size += len(data)
                if size >= DECODED_BYTES:
                    yield kind, b"".join(waiting)
                    waiting, size = [], 0
        if waiting:
            yield kind, b"".join(waiting)


class _Writers:
    """The files of one batch. A batch that fails, or is killed, is written again as a whole."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._open = ExitStack()

    def add(self, table: str, rows: pa.Table) -> None:
        if table not in _KEPT:
            return
        writer = self._writers.get(table)
        if writer is None:
            path, schema = self._target / f"{table}.parquet", _KEPT[table].schema
            writer = pq.ParquetWriter(path, schema, compression=COMPRESSION)
            self._writers[table] = self._open.enter_context(writer)
        writer.write_table(rows)

    def __enter__(self) -> "_Writers":
        self._target.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
