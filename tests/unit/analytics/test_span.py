"""Which hours a run looks at: bounds, wrong clocks, and the end of an hour that is not over."""

import pytest

from analytics.compaction.manifest import Counts, HourManifest, Part
from analytics.compaction.times import HOUR_MS
from analytics.errors import AnalyticsError
from analytics.span import fine_window_ms, span_of
from tests.unit.analytics import manifests

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


BROKERS = ["a1", "a2", "a3", "b1", "b2", "b3"]


def test_one_clock_ahead_does_not_move_the_end() -> None:
    """Neither within the hour nor beyond, with clock samples or without."""
    said: list[str] = []
    others = [(name, 0, 599) for name in BROKERS[1:]]
    measured = {"clocks": dict.fromkeys(BROKERS[1:], 0), "measuring": [("n1", 30, 570)]}
    for more in ({}, measured):
        near = manifests.hour(0, [("a1", 1_800, 2_399), *others], **more)  # type: ignore[arg-type]
        found = span(near)
        assert (found.to_ts - START, found.ends) == (599_001, {START: START + 599_001})
        far = manifests.hour(0, others, **more), manifests.hour(1, [("a1", 0, 599)], rows=600)  # type: ignore[arg-type]
        found = span(*far, said=said)
        assert (found.to_ts - START, found.hours, found.outliers) == (599_001, [far[0]], [far[1]])
    assert {*said} == {"left out: 600 rows of 1 hours after the other writers' end (wrong clocks)"}


def test_hours_of_a_known_clock_are_read_with_others() -> None:
    """A clock that is five hours ahead: its rows are not left out, and not in the future."""
    said: list[str] = []
    clocks = {**dict.fromkeys(BROKERS, 0), "a1": -5 * HOUR_MS}
    last = NOW // HOUR_MS - START // HOUR_MS
    hours = [
        manifests.hour(last, [(name, 0, 599) for name in BROKERS[1:]], clocks=clocks),
        manifests.hour(last + 5, [("a1", 0, 620)]),
    ]
    found = span(*hours, said=said)
    assert (found.hours, found.moved, found.outliers, said) == ([hours[0]], [hours[1]], [], [])
    assert found.to_ts == NOW + 620_001


def test_a_clock_that_is_behind_does_not_begin_the_span() -> None:
    clocks = {**dict.fromkeys(BROKERS, 0), "a1": 90_000}
    hours = [
        manifests.hour(0, [("a1", 3_510, 3_599)]),
        manifests.hour(1, [("a1", 0, 509), *((name, 1, 599) for name in BROKERS[1:])], clocks=clocks),
    ]
    found = span(*hours)
    assert (found.hours, found.moved) == ([hours[1]], [hours[0]])
    assert (found.from_ts, found.to_ts) == (START + HOUR_MS, START + HOUR_MS + 599_001)


def test_the_newest_hours_after_eight_days_of_silence_stay() -> None:
    """Whenever it is looked at."""
    before = [manifests.hour(number, [("a1", 0, 3_599)], rows=3_600) for number in range(-240, -216)]
    back = manifests.hour(0, [("a1", 0, 79)], rows=80)
    for now_ms in (START + 80_000, START + 1_000 * 24 * HOUR_MS):
        found = span_of([*before, back], now_ms=now_ms, from_ts=None, to_ts=None, progress=lambda _: None)
        assert (found.hours[-1], found.to_ts, found.outliers) == (back, START + 79_001, [])


def test_an_hour_before_a_pause_ends_where_most_end() -> None:
    hours = [
        manifests.hour(0, [("a1", 0, 2_400), *((name, 0, 600) for name in BROKERS[1:])]),
        manifests.hour(3, [(name, 0, 600) for name in BROKERS]),
    ]
    assert span(*hours).ends == {START: START + 600_001, START + 3 * HOUR_MS: START + 3 * HOUR_MS + 600_001}
