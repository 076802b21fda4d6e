"""Spark's settings that do not depend on the engine. Settings that an engine lacks are left out."""

import re

from analytics.errors import AnalyticsError

DRIVER_MEMORY = "spark.driver.memory"
DRIVER_MEMORY_DEFAULT = "2g"
"""Memory that an engine on this machine uses for rows; rows that do not fit are sorted on disk. With Python's
own memory, less than 4 GiB."""

DEBUGGING = "spark.python.sql.dataFrameDebugging.enabled"
"""Records a stack trace for every column expression, which takes longer than the expression."""

COMMON = {
    "spark.app.name": "keelmq-analytics",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    DEBUGGING: "false",
    "spark.sql.catalogImplementation": "in-memory",
    # an absurd number in a damaged line may overflow; that must not stop everything
    "spark.sql.ansi.enabled": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # a listing job costs more than listing some hundred folders
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
}

_MEMORY = re.compile(r"([0-9]{1,9})([kmgt])b?", re.IGNORECASE)


def memory_bytes(name: str, text: str) -> int:
    """Returns the bytes of a size as Spark writes it, 512m or 4g. Raises AnalyticsError."""
    found = _MEMORY.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise AnalyticsError(f"--conf {name}={text}: give a size like 512m or 4g")
    return int(found[1]) << 10 * ("kmgt".index(found[2].lower()) + 1)
