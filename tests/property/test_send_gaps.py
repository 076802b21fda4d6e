"""SendGaps against every send of a history, and a producer's own record of them."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from keelmq.client.core.send_gaps import Gap, SendGaps
from tests.support.slices import share

sends = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 15), st.booleans()), max_size=30)
"""(ms since the previous one ended, how long it took, whether it was acknowledged), by their ends."""


def model(history: list[tuple[int, int, bool]]) -> list[Gap]:
    """The gaps, found by looking at the whole history from each first failure on."""
    found, at = [], 0
    while at < len(history):
        before = [end for _, end, ok in history[:at] if ok]
        start, _, ok = history[at]
        if ok or not before:
            at += 1
            continue
        began = max(start, before[-1])
        ends = [
            number for number in range(at, len(history)) if history[number][2] and history[number][0] > began
        ]
        if not ends:
            break
        found.append(Gap(began, history[ends[0]][1]))
        at = ends[0] + 1
    return found


@settings(max_examples=share(300), deadline=None)
@given(sends)
@example([(0, 0, True), (5, 5, False), (0, 5, True), (9, 1, True)])  # of one instant: not started after it
def test_from_the_first_failure_to_the_first_send_after_it(shape: list[tuple[int, int, bool]]) -> None:
    now_ms, history = 100, list[tuple[int, int, bool]]()
    for pause_ms, took_ms, ok in shape:
        now_ms += pause_ms
        history.append((now_ms - took_ms, now_ms, ok))
    gaps, found = SendGaps(), []
    for start_ms, end_ms, ok in history:
        if not ok:
            gaps.failed("b", started_ms=start_ms)
        elif (gap := gaps.acknowledged("b", started_ms=start_ms, now_ms=end_ms)) is not None:
            found.append(gap)
    assert found == model(history)


def test_groups_are_apart_and_bounded() -> None:
    gaps = SendGaps(groups_max=2)
    for name in ("a", "b", "c"):
        assert gaps.acknowledged(name, started_ms=0, now_ms=1) is None
        gaps.failed(name, started_ms=5)
    assert gaps.acknowledged("a", started_ms=6, now_ms=9) == Gap(5, 9)
    assert gaps.acknowledged("c", started_ms=6, now_ms=9) is None, "not watched"
    assert gaps.acknowledged("b", started_ms=7, now_ms=8) == Gap(5, 8)


def test_a_producer_that_waits_for_the_first_master_has_no_gap() -> None:
    gaps = SendGaps()
    gaps.failed("b", started_ms=0)
    assert gaps.acknowledged("b", started_ms=100, now_ms=101) is None
