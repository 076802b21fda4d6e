"""ConfirmTimes against a list of every append, over random histories."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.confirm_times import NEVER, ConfirmTimes
from keelmq.runtime.log_buckets import BUCKETS, bucket_of
from tests.support.items import items_held
from tests.support.slices import share

steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "confirm", "take"]), st.integers(0, 10**6), st.integers(0, 9)
    ),
    max_size=60,
)


class EveryAppend:
    """The dumb one: the end and the time of each append that waits, and all times so far."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, int]] = []
        self.times: list[int] = []

    def confirmed(self, now_us: int, confirm_offset: int) -> None:
        self.times += [now_us - at for end, at in self.waiting if end <= confirm_offset]
        self.waiting = [each for each in self.waiting if each[0] > confirm_offset]


@settings(max_examples=share(300), deadline=None)
@given(steps)
def test_exactly_the_times_of_all_appends(history: list[tuple[str, int, int]]) -> None:
    times, model, found = ConfirmTimes(), EveryAppend(), Counter[int]()
    now_us = end = 0
    for step, elapsed_us, number in history:
        now_us += elapsed_us
        if step == "append":
            end += number + 1
            times.appended(now_us, end)
            model.waiting.append((end, now_us))
        elif step == "confirm":
            offset = end - number
            assert (times.next_end <= offset) == any(each <= offset for each, _ in model.waiting)
            times.confirmed(now_us, offset)
            model.confirmed(now_us, offset)
        else:
            found.update(dict(times.take()))
        assert times.age_us(now_us) == (now_us - model.waiting[0][1] if model.waiting else 0)
        assert times.next_end == (model.waiting[0][0] if model.waiting else NEVER)
    found.update(dict(times.take()))
    assert found == Counter(map(bucket_of, model.times))
    assert times.take() == ()


@settings(max_examples=share(100), deadline=None)
@given(st.integers(0, 1 << 32), st.integers(8, 64))
def test_a_bounded_number_waits_and_no_time_is_too_short(seed: int, waiting_max: int) -> None:
    """Every time is exact or too long by 4 / waiting_max of the age; no batch is lost."""
    dice = random.Random(seed)
    gaps_us = [dice.choice([1, 100, 10_000]) * dice.randrange(4) for _ in range(dice.randrange(1, 500))]
    confirmed = dice.randrange(len(gaps_us) + 1)
    times, model, now_us = ConfirmTimes(waiting_max), EveryAppend(), 0
    for end, gap_us in enumerate(gaps_us, 1):
        now_us += gap_us
        times.appended(now_us, end)
        model.waiting.append((end, now_us))
        assert items_held(times) <= waiting_max * 5 + BUCKETS
    age_us = now_us - model.waiting[0][1]
    assert times.age_us(now_us) == age_us
    times.confirmed(now_us, confirmed)
    model.confirmed(now_us, confirmed)
    early = dict(times.take())
    assert sum(early.values()) <= len(model.times), "a merged batch is confirmed with its last one"
    times.confirmed(now_us, len(gaps_us))
    model.confirmed(now_us, len(gaps_us))
    late = Counter(early) + Counter(dict(times.take()))
    found = sorted(late.elements())
    assert len(found) == len(gaps_us)
    for bucket, exact_us in zip(found, sorted(model.times), strict=True):
        assert bucket_of(exact_us) <= bucket <= bucket_of(exact_us + 4 * age_us // waiting_max)


def test_cleared_batches_are_not_counted() -> None:
    times = ConfirmTimes()
    times.appended(0, 10)
    times.confirmed(7, 10)
    times.appended(5, 20)
    times.clear()
    times.confirmed(100, 30)
    assert times.take() == ((bucket_of(7), 1),)
    assert (times.age_us(200), times.next_end) == (0, NEVER)


def test_the_buckets_of_all_times() -> None:
    """Below and above the end of the table of small times."""
    times = ConfirmTimes()
    for us in (*range(3_000), *range(65_500, 65_600), 3_600_000_000):
        times.appended(0, 1)
        times.confirmed(us, 1)
        assert times.take() == ((bucket_of(us), 1),)
