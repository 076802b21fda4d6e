"""Positions: whatever grows, disappears or comes late, every byte of a followed hour is read exactly once."""

import json
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from analytics.live.positions import HOURS_KEPT, Positions, Range, advance, hour_of, ranges

HOUR = 490_000


def name_of(node: int, hour: int) -> str:
    day, of_day = divmod(hour, 24)
    at = f"dt=2025-{1 + day % 12:02}-{1 + day % 28:02}"  # only its form matters where hours are not compared
    return f"0/ha_sample/{at}/hour={of_day:02}/node{node}-{hour}.jsonl"


def test_the_hour_of_a_name() -> None:
    assert hour_of("0/ha_sample/dt=1970-01-02/hour=03/n-1.jsonl") == 27
    assert hour_of("0/ha_sample/dt=2026-11-23/hour=00/n-1.jsonl") == 498_720
    for strange in (
        "n-1.jsonl",
        "/dt=2026-13-01/hour=00/n",
        "/dt=2026-12-01/hour=24/n",
        "/dt=1969-12-01/hour=24/n",
    ):
        assert hour_of(strange) is None


def files_at(hour: int, node: int) -> str:
    """A name whose hour is `hour`, for hours of January 1970."""
    return f"0/ha_sample/dt=1970-01-{1 + hour // 24:02}/hour={hour % 24:02}/node{node}-1.jsonl"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["grow", "grow", "hour", "remove"]),
        st.integers(0, 3),
        st.integers(1, 50),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=60,
)


@given(STEPS)
def test_each_byte_once(steps: list[tuple[str, int, int, int]]) -> None:
    hour, sizes = 30, {}
    at = Positions(hour, {})
    read: dict[str, list[Range]] = defaultdict(list)
    for what, node, count, bytes_max in steps:
        if what == "grow":
            name = files_at(hour, node)
            sizes[name] = sizes.get(name, 0) + count
        elif what == "hour":
            hour += 1
        else:
            sizes.pop(files_at(hour, node), None)
        end = Positions.of_json(
            json.loads(json.dumps(advance(at, sizes, hour=hour, bytes_max=bytes_max).to_json()))
        )
        new = list(ranges(at, end))
        assert sum(each.size for each in new) <= bytes_max
        assert end.from_hour >= at.from_hour
        assert all((hour_of(each.name) or 0) >= hour - HOURS_KEPT for each in new)
        for each in new:
            read[each.name].append(each)
        at = end
    for _ in range(len(sizes) + 1):  # no byte is left behind, however small the batches were
        end = advance(at, sizes, hour=hour, bytes_max=10_000)
        for each in ranges(at, end):
            read[each.name].append(each)
        at = end
    for name, size in sizes.items():
        assert [each.start for each in read[name]] == [0, *(each.end for each in read[name][:-1])][
            : len(read[name])
        ]
        if (hour_of(name) or 0) >= hour - HOURS_KEPT:
            assert read[name][-1].end >= size
    assert all(hour_of(name) >= hour - HOURS_KEPT for name in at.files)


def test_hours_that_are_not_followed() -> None:
    at = Positions(30, {})
    old, new = files_at(29, 0), files_at(30, 0)
    end = advance(at, {old: 10, new: 10, "strange": 5}, hour=30, bytes_max=100)
    assert list(ranges(at, end)) == [Range(new, 0, 10)]


def test_a_long_stop() -> None:
    """What is older than the followed hours is left to the hourly job, read in part or not at all."""
    sizes = {files_at(hour, 0): 10 for hour in range(20, 41)}
    at = Positions(20, {files_at(20, 0): 4})
    end = advance(at, sizes, hour=40, bytes_max=100)
    followed = range(40 - HOURS_KEPT, 41)
    assert list(ranges(at, end)) == [Range(files_at(hour, 0), 0, 10) for hour in followed]
    assert end == Positions(followed[0], {files_at(hour, 0): 10 for hour in followed})


def test_a_clock_that_was_ahead() -> None:
    """The current hour is followed again as soon as the clock is right. Its first rows come twice."""
    sizes = {files_at(30, 0): 10}
    at = advance(Positions(30, {}), sizes, hour=30, bytes_max=100)
    ahead = advance(at, sizes, hour=300, bytes_max=100)
    sizes[files_at(30, 0)] = 12
    assert list(ranges(ahead, advance(ahead, sizes, hour=30, bytes_max=100))) == [
        Range(files_at(30, 0), 0, 12)
    ]


def test_a_dropped_file_is_not_read_again() -> None:
    sizes = {files_at(30, 0): 10}
    at = advance(Positions(30, {}), sizes, hour=30, bytes_max=100)
    later = advance(at, sizes, hour=33, bytes_max=100)
    assert later == Positions(31, {})
    assert advance(later, sizes, hour=33, bytes_max=100) == later
