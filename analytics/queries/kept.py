"""Rows that several queries are made of, computed once.

A query is analysed again at each step of building it, and optimized as a whole at each action. persist()
keeps rows, and leaves the plan as long as it was: where rows are few, the plan costs more CPU time than they
do, and a server of Spark Connect analyses all of it for every request. On the embedded engine persist() does
nothing, and each use would compute everything in front of it again. So few rows are taken into this process,
and are a plan of one step.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from analytics.queries.reading import local_rows, no_rows

KEPT = "spark.keelmq.kept"
"""Setting of a session: how rows are kept. Without it: ARROW on the embedded engine, else PERSIST."""
PERSIST = "persist"
"""More than FEW_ROWS in the engine's memory or on its disk; the plan stays."""
ARROW = "arrow"
"""All of them as an Arrow table in this process, where the embedded engine runs, too."""

FEW_ROWS = 20_000
RELATION_BYTES_MAX = 32 << 20
"""A plan contains its local rows, and is one message of at most 128 MiB. More rows become temporary views,
which the session holds until its end."""


def kept(rows: DataFrame) -> DataFrame:
    """Returns the same rows, which are computed once."""
    spark = rows.sparkSession
    how = spark.conf.get(KEPT, "") or _chosen(spark)
    if how == ARROW:
        return _local(rows, rows.toArrow())
    rows.persist()
    few = rows.limit(FEW_ROWS + 1).toArrow()
    if few.num_rows > FEW_ROWS:
        return rows
    rows.unpersist()
    return _local(rows, few)


def _chosen(spark: SparkSession) -> str:
    """Sail's version() is a number; Spark's ends with a commit."""
    ((version,),) = spark.sql("SELECT version()").collect()
    how = PERSIST if " " in version else ARROW
    spark.conf.set(KEPT, how)
    return how


@contextmanager
def keeping() -> Iterator[Callable[[DataFrame], DataFrame]]:
    """Yields kept() for rows that are freed at the end."""
    frames: list[DataFrame] = []

    def keep(rows: DataFrame) -> DataFrame:
        frames.append(kept(rows))
        return frames[-1]

    try:
        yield keep
    finally:
        for each in frames:
            each.unpersist()


def _local(rows: DataFrame, table: pa.Table) -> DataFrame:
    """Returns the rows of the table, which has all of `rows`, as a plan of one step."""
    spark = rows.sparkSession
    if not table.num_rows:
        return no_rows(spark, rows.schema)
    if table.nbytes <= RELATION_BYTES_MAX:
        return local_rows(spark, table)
    count = max(1, table.num_rows * RELATION_BYTES_MAX // table.nbytes)
    slices = [table.slice(start, count) for start in range(0, table.num_rows, count)]
    return reduce(DataFrame.unionAll, [_view(spark, each) for each in slices])


def _view(spark: SparkSession, table: pa.Table) -> DataFrame:
    name = f"kept_{uuid.uuid4().hex}"
    local_rows(spark, table).createOrReplaceTempView(name)
    return spark.table(name)
