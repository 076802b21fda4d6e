"""Rows that several queries are made of, computed once.

A query is analysed again at each step of building it, and optimized as a whole at each action. persist()
keeps rows, but does not shorten the plan: for few rows, the plan costs more CPU time than the rows, and a
server of Spark Connect analyses the whole plan for every request. On the embedded engine persist() does
nothing, and each use would compute everything in front of it again. So a small number of rows is loaded into
this process, and becomes a plan of one step.
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
which hold their rows until they are dropped."""


def kept(rows: DataFrame, views: list[str] | None = None) -> DataFrame:
    """Returns the same rows, which are computed once. `views`: gets the names of temporary views that were
    made for them."""
    spark = rows.sparkSession
    how = spark.conf.get(KEPT, "") or _chosen(spark)
    if how == ARROW:
        return _local(rows, rows.toArrow(), [] if views is None else views)
    rows.persist()
    few = rows.limit(FEW_ROWS + 1).toArrow()
    if few.num_rows > FEW_ROWS:
        return rows
    rows.unpersist()
    return _local(rows, few, [])  # few rows need no view


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
    views: list[str] = []

    def keep(rows: DataFrame) -> DataFrame:
        frames.append(kept(rows, views))
        return frames[-1]

    yield keep
    # Not after an error: the server may be gone, and each request would wait for it.
    for each in frames:
        each.unpersist()
    for name in views:
        frames[0].sparkSession.catalog.dropTempView(name)


def _local(rows: DataFrame, table: pa.Table, views: list[str]) -> DataFrame:
    """Returns the rows of the table, which has all of `rows`, as a plan of one step."""
    spark = rows.sparkSession
    if not table.num_rows:
        return no_rows(spark, rows.schema)
    if table.nbytes <= RELATION_BYTES_MAX:
        return local_rows(spark, table)
    count = max(1, table.num_rows * RELATION_BYTES_MAX // table.nbytes)
    slices = [table.slice(start, count) for start in range(0, table.num_rows, count)]
    return reduce(DataFrame.unionAll, [_view(spark, each, views) for each in slices])


def _view(spark: SparkSession, table: pa.Table, views: list[str]) -> DataFrame:
    name = f"kept_{uuid.uuid4().hex}"
    views.append(name)
    local_rows(spark, table).createOrReplaceTempView(name)
    return spark.table(name)
