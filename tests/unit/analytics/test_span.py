"""Which hours a run looks at: bounds, wrong clocks, and the end of an hour that is not over."""

import pytest

from analytics.compaction.manifest import Counts, HourManifest, Part
from analytics.errors import AnalyticsError
from analytics.span import HOUR_MS, fine_window_ms, span_of

START = 1_767_225_600_000
NOW = START + 100 * HOUR_MS


def hour(number: int, *, rows: int = 1_000, last_ms: int = HOUR_MS - 1, bad: int = 0) -> HourManifest:
    hour_ts = START + number * HOUR_MS
    part = Part(path=f"{number}", rows=rows, size_bytes=1, min_ts=hour_ts, max_ts=hour_ts + last_ms)
    return HourManifest(
        hour_ts=hour_ts,
        parts={"master_sample": [part]} if rows else {},
        counts={"ha_sample": Counts(rows=rows, bad_lines={"undecodable": bad} if bad else {})},
    )


def span(
    *hours: HourManifest, from_ts: int | None = None, to_ts: int | None = None, said: list[str] | None = None
):  # type: ignore[no-untyped-def]
    told = [] if said is None else said
    return span_of(list(hours), now_ms=NOW, from_ts=from_ts, to_ts=to_ts, progress=told.append)


def test_hours_of_wrong_clocks_are_told_and_left_out() -> None:
    said: list[str] = []
    found = span(hour(-300_000, rows=3), hour(0, rows=50_000), hour(1), hour(500, rows=7), said=said)
    assert [each.hour_ts for each in found.hours] == [START, START + HOUR_MS]
    assert sorted(said) == [
        "left out: 3 rows of 1 hours before 2015 (wrong clocks)",
        "left out: 7 rows of 1 hours in the future (wrong clocks)",
    ]
    assert (found.from_ts, found.to_ts) == (START, START + 2 * HOUR_MS)
    assert len(found.outliers) == 2


def test_bounds() -> None:
    found = span(hour(0), hour(1), hour(2), from_ts=START + HOUR_MS, to_ts=START + 2 * HOUR_MS)
    assert [each.hour_ts for each in found.hours] == [START + HOUR_MS]
    inside = span(hour(0), hour(1), from_ts=START + HOUR_MS // 2)
    assert len(inside.hours) == 2, "an hour counts as a whole"


def test_with_both_bounds_no_clock_is_wrong() -> None:
    """Somebody who asks for those hours wants to see them; with one bound they are left out."""
    wrong, right = hour(-300_000, rows=3), hour(0, rows=50_000)
    between = {"from_ts": wrong.hour_ts, "to_ts": START + HOUR_MS}
    assert span(wrong, right, **between).hours == [wrong, right]
    assert span(wrong, right, **between).outliers == []
    assert span(wrong, right, to_ts=START + HOUR_MS).hours == [right]


def test_an_hour_reaches_as_far_as_its_rows() -> None:
    found = span(hour(0), hour(1, last_ms=HOUR_MS - 1_500), hour(2, last_ms=5_000))
    assert found.ends == {
        START: START + HOUR_MS,
        START + HOUR_MS: START + 2 * HOUR_MS,
        START + 2 * HOUR_MS: START + 2 * HOUR_MS + 5_001,
    }


def test_nothing_is_left() -> None:
    with pytest.raises(AnalyticsError, match=r"1 hours are compacted, 0 of them within --from"):
        span(hour(0), from_ts=START + HOUR_MS)
    with pytest.raises(AnalyticsError, match="2 damaged lines"):
        span(hour(0, rows=0, bad=2))


def test_windows_of_a_short_span() -> None:
    assert fine_window_ms(span(hour(0, last_ms=90_000))) == 1_000
    assert fine_window_ms(span(hour(0))) == 5_000
    assert fine_window_ms(span(hour(0), hour(3))) is None
