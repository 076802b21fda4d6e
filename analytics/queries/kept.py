"""Rows that several queries are made of, computed once.

Spark analyses a query again at each step of building it, and optimizes and compares the whole of it at each
action: in a small run that costs more CPU time than the rows. persist() keeps rows, and leaves the plan as
long as it was. In a session with SHORT_PLANS the kept rows are a plan of one step.
"""

from pyspark.sql import DataFrame

SHORT_PLANS = "spark.keelmq.shortPlans"
"""Only where rows are few and tasks run in the driver's process: rows kept so cannot be computed again, and
are compressed less."""


def kept(rows: DataFrame) -> DataFrame:
    """Returns the same rows, in memory or on disk after their first use."""
    return rows.localCheckpoint() if has_short_plans(rows) else rows.persist()


def has_short_plans(rows: DataFrame) -> bool:
    """Returns whether the session of these rows is for few of them."""
    return rows.sparkSession.conf.get(SHORT_PLANS, "false") == "true"
