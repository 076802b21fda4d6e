"""The roll-ups of the last minutes, by the functions of the hourly job."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.compaction.compactor import by_hour
from analytics.kept import kept
from analytics.reading import spark_schema
from analytics.rollup.hour import roll_hour
from analytics.rollup.tables import LAG, REPLICA_LAG
from analytics.tables import CONTROLLER_EVENT, GROUP, MASTER_SAMPLE, REPLICA_SAMPLE, Table
from keelmq.web.page_files import STEP_MS

MINUTE_MS = STEP_MS["minute"]
ROLL_UPS = (LAG, REPLICA_LAG)
_SCHEMA = pa.schema([(each.name, pa.struct(list(each.schema))) for each in ROLL_UPS])
_READ = (MASTER_SAMPLE, REPLICA_SAMPLE, CONTROLLER_EVENT)


@contextmanager
def minutes_of(tables: Mapping[str, DataFrame]) -> Iterator[dict[str, DataFrame]]:
    """Yields the roll-ups `lag` and `replica_lag` of all minutes in `tables`, and frees what they kept.

    `tables`: samples of these minutes, and of controllers' events all: a group's masterEpoch may have begun
    before.
    """
    named = [tables[each.name].select(*GROUP, F.struct("*").alias(each.name)) for each in _READ]
    rows = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), named)
    of_groups = rows.repartition(*GROUP).drop(*GROUP)
    rolled = kept(of_groups.mapInArrow(_roll, spark_schema(_SCHEMA)))
    try:
        yield {
            each.name: rolled.where(F.col(each.name).isNotNull()).select(f"{each.name}.*")
            for each in ROLL_UPS
        }
    finally:
        rolled.unpersist()


@dataclass(frozen=True)
class _HourRows:
    """The rows of one hour, by table."""

    tables: Mapping[str, pa.Table]

    def batches(self, table: Table, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        rows = self.tables.get(table.name)
        if rows is not None:
            names = list(dict.fromkeys(each.partition(".")[0] for each in columns))
            yield from rows.select(names).combine_chunks().to_batches()


def _roll(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Returns rows of the roll-ups. `batches`: all rows of some groups; of each row one table's column is not
    NULL, and the same is true of what is returned."""
    parts = list(batches)
    hours: dict[int, dict[str, pa.Table]] = {}
    for table in _READ:
        rows = pa.chunked_array([each.column(table.name) for each in parts], _type_of(table)).drop_null()
        if len(rows):
            named = pa.Table.from_struct_array(rows.combine_chunks())
            for hour_ts, of_hour in by_hour(named):
                hours.setdefault(hour_ts, {})[table.name] = of_hour
    for hour_ts, tables in hours.items():
        for rolled, _, rows in roll_hour(
            _HourRows(tables), hour_ts, (MINUTE_MS,), {each.name for each in ROLL_UPS}
        ):
            yield _column(rolled.name, rows)


def _type_of(table: Table) -> pa.DataType:
    return pa.struct(list(table.schema))


def _column(name: str, rows: pa.Table) -> pa.RecordBatch:
    nothing = {each.name: pa.nulls(len(rows), each.type) for each in _SCHEMA}
    structs = rows.to_struct_array().combine_chunks().cast(_SCHEMA.field(name).type)
    return pa.RecordBatch.from_pydict(nothing | {name: structs}, schema=_SCHEMA)
