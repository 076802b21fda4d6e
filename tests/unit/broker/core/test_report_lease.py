"""For how long a slave's report counts, and how long an elected slave waits (broker/core/report_lease.py)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.lease import MARGIN
from broker.core.report_lease import (
    FOREIGN_MAX_MS,
    HEARD_MS,
    LEASE_MAX_MS,
    LEASE_MIN_MS,
    PROMISE_MS,
    REPORT_MS,
    ReportPromise,
    report_lease_ms,
    shortest_timeout_ms,
)

TICK_MS = 100
times = st.integers(1, 60_000)


@given(timeout_ms=times, heartbeat_interval_ms=times, is_keelmq=st.booleans())
def test_a_report_counts_no_longer_than_no_controller_can_have_elected(
    timeout_ms: int, heartbeat_interval_ms: int, is_keelmq: bool
) -> None:
    """The master is cut off from everybody right before a heartbeat, and its slave goes on for HEARD_MS."""
    lease_ms = report_lease_ms(timeout_ms, heartbeat_interval_ms, is_keelmq=is_keelmq)
    election_ms = timeout_ms - heartbeat_interval_ms
    assert lease_ms == 0 or HEARD_MS + lease_ms <= election_ms - timeout_ms // MARGIN


@given(timeout_ms=times, heartbeat_interval_ms=times)
def test_a_report_that_counts_is_followed_by_another_in_time(
    timeout_ms: int, heartbeat_interval_ms: int
) -> None:
    """Or a master without controllers would be isolated between two reports of each slave."""
    lease_ms = report_lease_ms(timeout_ms, heartbeat_interval_ms, is_keelmq=True)
    assert lease_ms == 0 or lease_ms >= LEASE_MIN_MS >= 2 * (REPORT_MS + TICK_MS // 2)
    assert lease_ms <= LEASE_MAX_MS


@given(timeout_ms=times, heartbeat_interval_ms=times, rate=st.floats(0.91, 1.09))
def test_an_elected_slave_waits_until_no_report_counts(
    timeout_ms: int, heartbeat_interval_ms: int, rate: float
) -> None:
    """Whatever its settings and those of the old master are: the promise has one length."""
    lease_ms = report_lease_ms(timeout_ms, heartbeat_interval_ms, is_keelmq=True)
    assert lease_ms <= PROMISE_MS * rate


@pytest.mark.parametrize(
    ("timeout_ms", "heartbeat_interval_ms", "keelmq_ms", "foreign_ms"),
    [
        pytest.param(3_000, 1_000, LEASE_MAX_MS, 1_300, id="the defaults"),
        pytest.param(10_000, 1_000, LEASE_MAX_MS, 7_600, id="RocketMQ's: a slave of it reports every 5 s"),
        pytest.param(1_500, 400, 550, 550, id="short"),
        pytest.param(1_000, 200, 0, 0, id="too short"),
        pytest.param(60_000, 1_000, LEASE_MAX_MS, FOREIGN_MAX_MS, id="long"),
    ],
)
def test_some_settings(timeout_ms: int, heartbeat_interval_ms: int, keelmq_ms: int, foreign_ms: int) -> None:
    terms = timeout_ms, heartbeat_interval_ms
    assert report_lease_ms(*terms, is_keelmq=True) == keelmq_ms
    assert report_lease_ms(*terms, is_keelmq=False) == foreign_ms


def test_with_the_defaults_the_promise_is_over_at_the_election() -> None:
    """The fail-over of a master that hangs or is cut off takes no longer than without the promise."""
    last_report_ms = HEARD_MS + TICK_MS
    assert last_report_ms + PROMISE_MS <= 3_000 - 1_000


@given(heartbeat_interval_ms=st.integers(1, 20_000))
def test_the_shortest_timeout(heartbeat_interval_ms: int) -> None:
    shortest = shortest_timeout_ms(heartbeat_interval_ms)
    assert report_lease_ms(shortest, heartbeat_interval_ms, is_keelmq=True) >= LEASE_MIN_MS
    assert report_lease_ms(shortest - 2, heartbeat_interval_ms, is_keelmq=True) == 0


def test_a_promise_lasts_from_the_last_report() -> None:
    promise = ReportPromise()
    assert promise.left_ms(5_000) == 0
    promise.reported(1_000)
    promise.reported(3_000)
    promise.reported(2_000)  # over another link, which ended earlier
    assert promise.left_ms(3_000) == PROMISE_MS
    assert promise.left_ms(3_000 + PROMISE_MS - 1) == 1
    assert promise.left_ms(9_000) == 0
