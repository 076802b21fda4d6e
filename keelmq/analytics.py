"""The output of `keelmq analytics run` in a program or a notebook (pip install 'keelmq[analytics]').

    from keelmq.analytics import checks, spark_engine, tables

    with spark_engine() as spark:                     # or any session of Spark that is there
        tables(spark, "/data/analytics")
        spark.sql("SELECT * FROM failovers").show()

The only module of this package that imports what is above it.
"""

from analytics.engine.sessions import spark_engine
from analytics.errors import AnalyticsError
from analytics.views.checks import checks
from analytics.views.export import save
from analytics.views.tables import tables

__all__ = ["AnalyticsError", "checks", "save", "spark_engine", "tables"]
