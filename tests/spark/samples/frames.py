"""Rows of compacted tables as DataFrames, and the answers of queries as rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from analytics.queries.kept import kept
from analytics.queries.reading import no_rows, spark_schema
from analytics.queries.terms import current, terms
from analytics.queries.windows import HOUR_MS, window_of
from analytics.tables import CONTROLLER_EVENT, MASTER_SAMPLE, REPLICA_SAMPLE, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
GROUP = {"cluster_name": "c", "broker_name": "b"}


@dataclass(frozen=True)
class Samples:
    """`masters` and `replicas`: with is_stale."""

    masters: "DataFrame"
    replicas: "DataFrame"


def frame(spark: "SparkSession", table: Table, rows: Iterable[Mapping[str, Any]]) -> "DataFrame":
    """The rows, with hour_ts; a column that a row lacks is NULL."""
    from pyspark.sql import functions as F

    plain = [{name: row.get(name) for name in table.schema.names} for row in rows]
    whole = pa.Table.from_pylist(plain, table.schema)
    found = spark.createDataFrame(whole) if plain else no_rows(spark, spark_schema(table.schema))
    return found.withColumn("hour_ts", window_of(F.col("ts"), HOUR_MS))


def samples_of(
    spark: "SparkSession", masters: Sequence[Row], replicas: Sequence[Row] = (), events: Sequence[Row] = ()
) -> Samples:
    master = frame(spark, MASTER_SAMPLE, masters)
    found = kept(terms(master, frame(spark, CONTROLLER_EVENT, events)))
    return Samples(current(master, found), current(frame(spark, REPLICA_SAMPLE, replicas), found))


def rows_of(found: "DataFrame") -> list[Row]:
    return [row.asDict(recursive=True) for row in found.collect()]


def by_window(found: "DataFrame", *more: str) -> dict[int, dict[Any, Row]]:
    """By width: the rows by broker_name, window_ts and the columns `more`, each once."""
    names = ("broker_name", "window_ts", *more)
    widths: dict[int, dict[Any, Row]] = {}
    for row in rows_of(found):
        of_width = widths.setdefault(row.pop("window"), {})
        key = tuple(row.pop(name) for name in names)
        del row["cluster_name"]
        assert key not in of_width
        of_width[key] = row
    return widths
