"""The roll-ups of the last minutes, by the functions of the hourly job."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.compaction.compactor import by_hour
from analytics.rollup.arrays import arrow, numbers_of
from analytics.rollup.hour import roll_hour
from analytics.rollup.tables import LAG, REPLICA_LAG
from analytics.stream.rows import KEPT, MINUTE_MS, rows_of
from analytics.tables import CONTROLLER_EVENT, GROUP, Table

ROLL_UPS = (LAG, REPLICA_LAG)
_TABLES = {table.name: table for table in KEPT}

Tables = Mapping[str, pa.Table]
"""Rows by table; the columns of GROUP are dictionary-encoded. Rows of a group follow one another."""
Compute = Callable[[Tables], Tables]
"""From samples of whole minutes, and of controllers' events all, to roll-ups of minutes, with window_ts."""


@dataclass(frozen=True)
class Minutes:
    """The minutes of [from_ts, to_ts). `files`: by table."""

    from_ts: int
    to_ts: int
    files: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class RollMinutes:
    """Computes minutes from the files that have their rows, in a Python worker of Spark."""

    compute: Compute

    def __call__(self, minutes: Minutes) -> dict[str, pa.Table]:
        tables = {}
        for name, paths in minutes.files.items():
            table = _TABLES[name]
            rows = (
                rows_of(paths, table.schema.names, dictionaries=GROUP)
                if paths
                else table.schema.empty_table()
            )
            if table is not CONTROLLER_EVENT:
                ts = rows["ts"]
                rows = rows.filter(pc.and_(pc.greater_equal(ts, minutes.from_ts), pc.less(ts, minutes.to_ts)))
                rows = _once(rows, table)
            tables[name] = _by_group(rows)
        return dict(self.compute(tables))


def minutes_of(tables: Tables) -> dict[str, pa.Table]:
    """Returns the roll-ups `lag` and `replica_lag` of all minutes in `tables`."""
    hours: dict[int, dict[str, pa.Table]] = {}
    for name, rows in tables.items():
        if len(rows):
            for hour_ts, of_hour in by_hour(rows):
                hours.setdefault(hour_ts, {})[name] = of_hour
    found: dict[str, list[pa.Table]] = {each.name: [each.schema.empty_table()] for each in ROLL_UPS}
    for hour_ts, of_hour in hours.items():
        for rolled, _, rows in roll_hour(_HourRows(of_hour), hour_ts, (MINUTE_MS,), found.keys()):
            found[rolled.name].append(rows)
    return {name: pa.concat_tables(parts) for name, parts in found.items()}


@dataclass(frozen=True)
class _HourRows:
    """The rows of one hour, by table."""

    tables: Tables

    def batches(self, table: Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        rows = self.tables.get(table.name)
        if rows is not None:
            names = list(dict.fromkeys(each.partition(".")[0] for each in columns))
            yield from rows.select(names).combine_chunks().to_batches()


def _once(rows: pa.Table, table: Table) -> pa.Table:
    """Returns the rows without those that have the key of another one."""
    keys = pa.table([_numbers(rows[name]) for name in table.key], list(table.key))
    first = keys.append_column("row", arrow(np.arange(len(rows)))).group_by(list(table.key))
    found = first.aggregate([("row", "min")])
    return rows if len(found) == len(rows) else rows.take(found["row_min"])


def _by_group(rows: pa.Table) -> pa.Table:
    """Returns the rows of each group one after the other: the arithmetic looks at runs of a group."""
    cluster, broker = (numbers_of(_numbers(rows[name])) for name in GROUP)
    order = np.lexsort((broker, cluster))
    return rows.take(arrow(order))


def _numbers(column: pa.ChunkedArray) -> pa.Array:
    """Returns a column of numbers as it is, and of texts a number for each text."""
    whole = column.combine_chunks()
    if pa.types.is_string(whole.type):
        whole = whole.dictionary_encode()
    return whole.indices if pa.types.is_dictionary(whole.type) else whole
