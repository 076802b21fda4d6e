"""Windows and their edges."""

import pytest
from pyspark.sql import SparkSession

from analytics.queries.windows import clip

pytestmark = pytest.mark.spark

SPANS = {
    "inside": ((100, 300), [(0, 200)]),
    "ends on an edge": ((100, 1_000), [(0, 900)]),
    "starts on an edge": ((1_000, 1_001), [(1_000, 1)]),
    "one whole window": ((2_000, 3_000), [(2_000, 1_000)]),
    "three windows": ((900, 2_100), [(0, 100), (1_000, 1_000), (2_000, 100)]),
    "zero length": ((500, 500), []),
    "zero length on an edge": ((1_000, 1_000), []),
    "backwards": ((700, 600), []),
}


def test_clip(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(name, *span) for name, (span, _) in SPANS.items()], "name string, from_ts long, to_ts long"
    )
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in SPANS}
    for row in clip(frame, 1_000).orderBy("window_ts").collect():
        found[row["name"]].append((row["window_ts"], row["ms"]))
    assert found == {name: expected for name, (_, expected) in SPANS.items()}
