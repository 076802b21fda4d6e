"""Spark's schemas are those of analytics/tables.py: names, types and order."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types

from analytics.queries.kept import kept
from analytics.queries.reading import local_rows, read_table, spark_schema
from analytics.tables import CONTROLLER_EVENT, MASTER_SAMPLE, TABLES, Table

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_schema(table: Table) -> None:
    """As PySpark itself translates it."""
    from pyspark.sql.pandas.types import from_arrow_schema

    assert spark_schema(table.schema) == from_arrow_schema(table.schema)


def test_rows_come_back(spark: SparkSession, tmp_path: Path) -> None:
    """Of two files, one of which is older and lacks columns; the path has characters of a pattern."""
    view = {"master_broker_id": 1, "master_epoch": 7, "sync_state_set": [1, 2], "sync_state_set_epoch": 3}
    view["replicas"] = [1, 2, 3]
    row = dict.fromkeys(CONTROLLER_EVENT.schema.names) | {"ts": 1, "before": None, "after": view}
    folder = tmp_path / "[a]{b}*"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist([row], CONTROLLER_EVENT.schema), folder / "1.parquet")
    old = CONTROLLER_EVENT.schema.field("ts")
    pq.write_table(pa.table({"ts": pa.array([2], old.type)}), folder / "2.parquet")
    paths = [str(folder / "1.parquet"), f"file://{folder}/2.parquet"]
    found = sorted(read_table(spark, paths, CONTROLLER_EVENT).collect(), key=lambda each: each.ts)
    assert found[0].asDict(recursive=True) == row
    assert found[1].asDict() == dict.fromkeys(CONTROLLER_EVENT.schema.names) | {"ts": 2}


def test_no_paths(spark: SparkSession) -> None:
    frame = read_table(spark, [], MASTER_SAMPLE)
    assert frame.schema["lag_us"].dataType == spark_types.ArrayType(
        spark_types.StructType(
            [
                spark_types.StructField("bucket", spark_types.ShortType()),
                spark_types.StructField("n", spark_types.IntegerType()),
            ]
        )
    )
    assert frame.collect() == []


def test_the_fields_of_a_struct_that_is_null(spark: SparkSession) -> None:
    """Rows that are kept, and rows of a table in memory."""
    view = pa.struct([("epoch", pa.int64()), ("set", pa.list_(pa.int64()))])
    table = pa.table({"n": [1, 2], "view": pa.array([None, {"epoch": 5, "set": [1]}], view)})
    rows = local_rows(spark, table)
    for frame in (rows, kept(rows), kept(rows.where("n < 3"))):
        found = frame.select("n", "view.epoch", "view.set").orderBy("n").collect()
        assert [tuple(row) for row in found] == [(1, None, None), (2, 5, [1])]
