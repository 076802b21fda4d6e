"""Which compacted hours the roll-up of an hour reads."""

import random

from analytics.compaction.manifest import HourManifest
from analytics.compaction.times import HOLD_MS, HOUR_MS
from analytics.rollup.inputs import inputs_of
from tests.unit.analytics.manifests import START, hour


def read_by(manifests: list[HourManifest]) -> dict[int, tuple[list[int], list[int]]]:
    """The numbers of the hours whose rows, and whose clock samples are read."""

    def numbers(hours: object) -> list[int]:
        return [(each.hour_ts - START) // HOUR_MS for each in hours]  # type: ignore[attr-defined]

    found = inputs_of(manifests)
    return {
        (hour_ts - START) // HOUR_MS: (numbers(each.hours), numbers(each.clock_hours))
        for hour_ts, each in found.items()
    }


def test_right_clocks_read_nothing_else() -> None:
    manifests = [hour(number, [("g1", 0, 3_599)], clocks={"g1": 200}) for number in range(3)]
    assert read_by(manifests) == {0: ([0], []), 1: ([1], []), 2: ([2], [])}
    inputs = inputs_of(manifests)[START]
    assert inputs.parts == ["c0", "m0"]


def test_an_hour_that_tells_nothing_of_clocks_is_not_corrected() -> None:
    assert read_by([hour(0), hour(1)]) == {0: ([0], []), 1: ([1], [])}


def test_a_clock_that_is_90_s_off() -> None:
    ahead = [hour(number, clocks={"g1": 0, "g2": -90_000}) for number in range(9)]
    assert read_by(ahead)[4] == ([4, 5], [2, 3, 4, 5, 6])
    behind = [hour(number, clocks={"g1": 0, "g2": 90_000}) for number in range(9)]
    assert read_by(behind)[4] == ([3, 4], [2, 3, 4, 5, 6])


def test_a_clock_that_is_five_hours_ahead_for_an_hour() -> None:
    manifests = [
        hour(number, clocks={"g1": 0} if number != 2 else {"g1": -5 * HOUR_MS}) for number in range(12)
    ]
    found = read_by(manifests)
    assert found[2][0] == [2, 7, 8]
    assert found[7][0] == [7], "its own rows may be of another hour"
    assert 2 in found[7][1]
    assert found[11] == ([11], [])


def test_parts_that_are_read() -> None:
    manifests = [hour(number, clocks={"g1": -90_000}) for number in range(4)]
    assert inputs_of(manifests)[START].parts == ["c0", "c1", "c2", "m0", "m1"]


def test_each_row_is_in_one_hour() -> None:
    """Whoever reads a compacted hour knows all clock samples that may count there: those at most HOLD_MS from
    its rows by their broker's clock."""
    dice = random.Random(37)
    for _ in range(50):
        offsets = {
            number: dice.choice([0, 0, 90_000, -90_000, -HOUR_MS - 70, 5 * HOUR_MS]) for number in range(24)
        }
        manifests = [hour(number, clocks={"g1": offset}) for number, offset in offsets.items()]
        for number, (rows, clocks) in read_by(manifests).items():
            for each in rows:
                claims = {at for at, offset in offsets.items() if _may_count(at, offset, each)}
                if any(offsets[at] for at in claims):
                    assert claims <= {*clocks}, (number, each)
            wanted = {at for at in range(24) for near in (number - 1, number, number + 1)
                      if near in offsets and _has_rows_of(at, offsets[near], number)}  # fmt: skip
            assert wanted <= {*rows}, number


def _may_count(at: int, offset: int, compacted: int) -> bool:
    begin, end = at * HOUR_MS - offset - HOLD_MS, (at + 1) * HOUR_MS - offset + HOLD_MS
    return begin < (compacted + 1) * HOUR_MS and end > compacted * HOUR_MS


def _has_rows_of(compacted: int, offset: int, number: int) -> bool:
    begin, end = number * HOUR_MS - offset, (number + 1) * HOUR_MS - offset
    return begin < (compacted + 1) * HOUR_MS and end > compacted * HOUR_MS
