"""Hours of wrong clocks."""

from hypothesis import given
from hypothesis import strategies as st

from analytics.rollup.outliers import GAP_MS, HOUR_MS, outlier_hours

NOW_MS = 1_767_225_600_000
DAY = range(NOW_MS - 24 * HOUR_MS, NOW_MS, HOUR_MS)
ROWS = dict.fromkeys(DAY, 10_000)


def test_nothing_is_wrong() -> None:
    assert outlier_hours(ROWS, NOW_MS) == {}
    assert outlier_hours({}, NOW_MS) == {}
    assert outlier_hours({NOW_MS: 1}, NOW_MS) == {}


def test_wrong_clocks() -> None:
    far = DAY[0] - GAP_MS - 2 * HOUR_MS
    strange = {0: 5_000_000, NOW_MS + 2 * HOUR_MS: 5_000_000, far: 239}
    assert outlier_hours(ROWS | strange, NOW_MS) == {
        0: "before 2015",
        NOW_MS + 2 * HOUR_MS: "in the future",
        far: "far from the other hours",
    }


def test_at_the_limits() -> None:
    """A clock an hour ahead, an hour just near enough, and far hours with enough rows are kept."""
    near, far = DAY[0] - GAP_MS - HOUR_MS, DAY[0] - GAP_MS - 2 * HOUR_MS
    assert outlier_hours(ROWS | {NOW_MS + HOUR_MS: 1}, NOW_MS) == {}
    assert outlier_hours(ROWS | {near: 1}, NOW_MS) == {}
    assert outlier_hours(ROWS | {far: 241}, NOW_MS) == {}


def test_the_first_hour_after_a_pause_is_kept() -> None:
    """A cluster that stood for eight days: its newest hour has one row in two thousand, and is no outlier."""
    rows = {NOW_MS - number * HOUR_MS: 36_000 for number in range(8 * 24, 8 * 24 + 60 * 24)}
    assert outlier_hours(rows | {NOW_MS: 36_000}, NOW_MS + HOUR_MS) == {}
    assert outlier_hours(rows | {NOW_MS: 100}, NOW_MS + HOUR_MS) == {}  # it has run for some seconds only
    years_later = NOW_MS + 1_000 * 24 * HOUR_MS
    assert outlier_hours(rows | {NOW_MS: 36_000}, years_later) == {}
    assert outlier_hours(rows | {NOW_MS: 12_000}, years_later) == {NOW_MS: "far from the other hours"}


@given(st.dictionaries(st.integers(0, 20_000), st.integers(1, 1 << 40), min_size=1))
def test_most_rows_stay(hours: dict[int, int]) -> None:
    rows = {NOW_MS - number * HOUR_MS: count for number, count in hours.items()}
    gone = outlier_hours(rows, NOW_MS)
    assert sum(rows[each] for each in gone) < sum(rows.values()) * 0.5 or len(rows) > 500
