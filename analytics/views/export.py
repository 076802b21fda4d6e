"""Views as tables of another format, for engines and tools that do not read an output."""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.engine.errors import SPARK_ERRORS, engine_error
from analytics.errors import AnalyticsError

DELTA, ICEBERG, PARQUET = "delta", "iceberg", "parquet"
FORMATS: Final = (DELTA, ICEBERG, PARQUET)
LACKS = {
    DELTA: "Spark needs Delta Lake's package for its version, in spark.jars.packages, and "
    "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension; the embedded engine has it built in",
    ICEBERG: "Spark needs Iceberg's runtime for its version, in spark.jars.packages; the embedded engine has "
    "it built in",
}


def save(frames: Mapping[str, DataFrame], target: str, *, format: str = DELTA) -> list[str]:
    """Writes each of these tables to TARGET/<name>, instead of what is there; returns the paths.

    `target`: a directory or a URL, as the engine sees it. `format`: of FORMATS. Each table is replaced as a
    whole: with delta and iceberg, a reader sees the old rows or the new ones. Raises AnalyticsError.
    """
    if format not in FORMATS:
        raise AnalyticsError(f"format {format}: there are {', '.join(FORMATS)}")
    paths = []
    for name, frame in frames.items():
        path = f"{target.rstrip('/')}/{name}"
        rows = _widened(frame) if format == ICEBERG else frame
        writer = rows.write.format(format).mode("overwrite")
        if format == DELTA:
            writer = writer.option("overwriteSchema", "true")
        try:
            writer.save(path)
        except SPARK_ERRORS as error:
            text = engine_error(error)
            hint = f" ({LACKS[format]})" if "DATA_SOURCE_NOT_FOUND" in str(error) and format in LACKS else ""
            raise AnalyticsError(f"cannot write {path} as {format}: {text}{hint}") from error
        paths.append(path)
    return paths


def _widened(frame: DataFrame) -> DataFrame:
    """Returns the same rows with SMALLINT as INT: Iceberg has no integers of 16 bits."""
    return frame.select(
        *(
            F.col(each.name)
            .cast(each.dataType.simpleString().replace("smallint", "int"))
            .alias(each.name, metadata=each.metadata)
            for each in frame.schema
        )
    )
