"""Rows that several queries are made of, computed once.

A query is analysed again at each step of building it, and optimized as a whole at each action. persist()
keeps rows, and leaves the plan as long as it was: in a small run the plan costs more CPU time than the rows.
On the embedded engine persist() does nothing, and each use would compute everything in front of it again.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from analytics.queries.reading import no_rows

KEPT = "spark.keelmq.kept"
"""Setting of a session: how rows are kept. Without it: ARROW on the embedded engine, else PERSIST."""
PERSIST = "persist"
"""In memory or on disk, after their first use; the plan stays."""
CHECKPOINT = "checkpoint"
"""On classic Spark, where rows are few and tasks run in the driver's process: rows kept so cannot be computed
again, and are compressed less. The kept rows are a plan of one step."""
ARROW = "arrow"
"""As an Arrow table in this process, where the embedded engine runs, too. A plan of one step."""

RELATION_BYTES_MAX = 32 << 20
"""A plan contains its local rows, and is one message of at most 128 MiB. More rows become temporary views,
which the session holds until its end."""


def kept(rows: DataFrame) -> DataFrame:
    """Returns the same rows, which are computed once."""
    spark = rows.sparkSession
    how = spark.conf.get(KEPT, "") or _chosen(spark)
    if how == ARROW:
        table = rows.toArrow()
        return _local(spark, table) if table.num_rows else no_rows(spark, rows.schema)
    return rows.localCheckpoint() if how == CHECKPOINT else rows.persist()


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


def _local(spark: SparkSession, table: pa.Table) -> DataFrame:
    if table.nbytes <= RELATION_BYTES_MAX:
        return spark.createDataFrame(table)
    rows = max(1, table.num_rows * RELATION_BYTES_MAX // table.nbytes)
    slices = [table.slice(start, rows) for start in range(0, table.num_rows, rows)]
    return reduce(DataFrame.unionAll, [_view(spark, each) for each in slices])


def _view(spark: SparkSession, table: pa.Table) -> DataFrame:
    name = f"kept_{uuid.uuid4().hex}"
    spark.createDataFrame(table).createOrReplaceTempView(name)
    return spark.table(name)
