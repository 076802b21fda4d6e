"""Compacted Parquet tables as DataFrames. The only definition of their columns is in analytics/tables.py."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from analytics.tables import Table

PATHS: Final = "spark.keelmq.paths"
"""A session's setting: OF_URLS, if its engine decodes the paths of files as URLs; Spark takes them as they
are."""
OF_URLS: Final = "urls"

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000

_SIMPLE: dict[pa.DataType, types.DataType] = {
    pa.int16(): types.ShortType(),
    pa.int32(): types.IntegerType(),
    pa.int64(): types.LongType(),
    pa.float64(): types.DoubleType(),
    pa.string(): types.StringType(),
    pa.bool_(): types.BooleanType(),
}


def spark_schema(schema: pa.Schema) -> types.StructType:
    """Returns the Spark schema with the same names, types and order. All columns may be NULL."""
    return types.StructType([types.StructField(each.name, _spark_type(each.type)) for each in schema])


def read_table(spark: SparkSession, paths: Sequence[str], table: Table) -> DataFrame:
    """Returns the rows of these files of a compacted table: see read_files()."""
    return read_files(spark, paths, table.schema)


def read_files(spark: SparkSession, paths: Sequence[str], schema: pa.Schema) -> DataFrame:
    """Returns the rows of Parquet files (local paths or URLs); no paths: an empty DataFrame.

    A column that an older file lacks is NULL.
    """
    of_spark = spark_schema(schema)
    if not paths:
        return no_rows(spark, of_spark)
    is_url = _paths_are_urls(spark)  # asked once: it may be a request to a server
    return spark.read.schema(of_spark).parquet(*(_pattern(path, is_url=is_url) for path in paths))


def local_rows(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Returns the rows of an Arrow table, which may be empty; not for many rows: they are in the plan."""
    if len(table):
        return spark.createDataFrame(with_null_fields(table))
    schema = from_arrow_schema(table.schema)
    assert isinstance(schema, types.StructType)
    return no_rows(spark, schema)


def with_null_fields(table: pa.Table) -> pa.Table:
    """Returns the table with NULL in each field of a struct that is NULL.

    Arrow leaves these fields undefined, and the embedded engine would read them: the masterEpoch of a group
    that is not known would be 0.
    """
    for place, field in enumerate(table.schema):
        if pa.types.is_struct(field.type):
            structs = table.column(place).combine_chunks()
            whole = pa.StructArray.from_arrays(
                structs.flatten(), fields=list(field.type), mask=structs.is_null()
            )
            table = table.set_column(place, field, whole)
    return table


def read_hours(spark: SparkSession, paths: Sequence[str], schema: pa.Schema, ts: str) -> DataFrame:
    """Returns the rows of files in .../dt=YYYY-MM-DD/hour=HH/, with dt (DATE) and hour (INT) at the end.

    `ts`: the column, ms UTC, that chose the folder of a row. Spark takes dt and hour from the folders, so a
    filter on them leaves files out; the embedded engine does so for listed folders only.
    """
    if paths and not _paths_are_urls(spark):
        of_spark = spark_schema(schema).add("dt", types.DateType()).add("hour", types.IntegerType())
        patterns = [_pattern(path, is_url=False) for path in paths]
        reader = spark.read.schema(of_spark).option("basePath", patterns[0].partition("/dt=")[0])
        return reader.parquet(*patterns)
    rows = read_files(spark, paths, schema)
    days = F.floor(F.col(ts) / _DAY_MS).cast("int")
    hour = F.floor(F.pmod(F.col(ts), F.lit(_DAY_MS)) / _HOUR_MS).cast("int")
    return rows.withColumns({"dt": F.date_add(F.lit("1970-01-01").cast("date"), days), "hour": hour})


def no_rows(spark: SparkSession, schema: types.StructType) -> DataFrame:
    """Returns an empty DataFrame. The optimizer knows that it is empty, so joins with it vanish."""
    columns = (f"CAST(NULL AS {each.dataType.simpleString()}) AS `{each.name}`" for each in schema.fields)
    return spark.sql(f"SELECT {', '.join(columns)} WHERE false")


def as_pattern(spark: SparkSession, path: str) -> str:
    """Returns a path as the readers of this session's engine expect it: a URL in which the characters of
    patterns are literal."""
    return _pattern(path, is_url=_paths_are_urls(spark))


def _paths_are_urls(spark: SparkSession) -> bool:
    return spark.conf.get(PATHS, "") == OF_URLS


def _pattern(path: str, *, is_url: bool) -> str:
    scheme, separator, rest = path.partition("://")
    if not separator:
        scheme, rest = "file", path
    return f"{scheme}://{quote(rest) if is_url else rest.translate(_MAGIC)}"


_MAGIC = str.maketrans({each: f"\\{each}" for each in "\\*?[]{}"})


def _spark_type(arrow: pa.DataType) -> types.DataType:
    if pa.types.is_list(arrow):
        return types.ArrayType(_spark_type(arrow.value_type))
    if pa.types.is_struct(arrow):
        return types.StructType([types.StructField(each.name, _spark_type(each.type)) for each in arrow])
    return _SIMPLE[arrow]
