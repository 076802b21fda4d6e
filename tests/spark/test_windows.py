"""Windows and their edges."""

import pytest
from pyspark.sql import SparkSession

from analytics.windows import POINTS_MAX, WINDOWS_MS, choose_window_ms, clip, points

pytestmark = pytest.mark.spark

DAY_MS = 86_400_000

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


@pytest.mark.parametrize(
    "span_ms", [0, 1, 999, 1_998_999, 1_999_001, 3_600_000, DAY_MS, 30 * DAY_MS, 40_000 * DAY_MS]
)
@pytest.mark.parametrize("from_ts", [0, 1, 999, 1_767_225_600_000])
def test_a_series_fits_on_a_page(from_ts: int, span_ms: int) -> None:
    window_ms = choose_window_ms(from_ts, from_ts + span_ms)
    assert points(from_ts, from_ts + span_ms, window_ms) <= POINTS_MAX
    finer = [each for each in WINDOWS_MS if each < window_ms]
    if finer and window_ms in WINDOWS_MS:
        assert points(from_ts, from_ts + span_ms, finer[-1]) > POINTS_MAX, "it could be finer"
