"""keelmq/runtime/backoff.py: what the pauses are, and what no policy may be."""

import random
import re
from pathlib import Path

import pytest

from keelmq.client.cluster.broker_recovery import BUSY_RETRY, RETRY
from keelmq.runtime.backoff import Backoff


def test_the_limit_doubles_up_to_the_maximum() -> None:
    policy = Backoff(first_ms=10, max_ms=100)
    assert [policy.limit_ms(failures) for failures in range(1, 7)] == [10, 20, 40, 80, 100, 100]
    assert policy.limit_ms(10**6) == 100, "no overflow, and no long way"
    assert Backoff(first_ms=7, max_ms=70, factor=1).limit_ms(10**6) == 7


def test_full_jitter() -> None:
    """Pauses spread over the whole range from 0 up."""
    policy, dice = Backoff(first_ms=100, max_ms=100), random.Random(1)
    pauses = sorted(policy.pause_ms(1, dice.random()) for _ in range(1_000))
    assert 0 <= pauses[0] < 5 and 95 < pauses[-1] < 100 and 45 < pauses[500] < 55


def test_no_loop_grows_a_pause_of_its_own() -> None:
    """Without jitter, all replicas that lost one master come back at the same moments. A core cannot import
    the policy; it draws no random numbers either."""
    pause = r"[\w.]*(pause|retry|backoff|delay)\w*"
    doubled = re.compile(rf"min\(({pause} \* 2|2 \* {pause}), |{pause} \*= 2")
    root = Path(__file__).parents[4]
    sources = [
        path for part in ("keelmq", "broker", "namesrv", "cli") for path in (root / part).rglob("*.py")
    ]
    assert len(sources) > 100
    own = [str(path.relative_to(root)) for path in sources if doubled.search(path.read_text())]
    assert not own


def test_nothing_failed() -> None:
    assert Backoff(first_ms=10, max_ms=100).pause_ms(0, 0.99) == 0


@pytest.mark.parametrize(("first", "most", "factor"), [(0, 10, 2.0), (20, 10, 2.0), (1, 10, 0.5)])
def test_what_is_no_policy(first: int, most: int, factor: float) -> None:
    with pytest.raises(ValueError, match="back-off"):
        Backoff(first_ms=first, max_ms=most, factor=factor)


def test_a_fail_over_of_75_ms_is_noticed_within_a_few_more() -> None:
    """keelmq bench failover: the pause that runs when the new master is there adds to the standstill."""
    dice, late = random.Random(2), []
    for _ in range(2_000):
        at, failures = 0.0, 0
        while at < 75:
            failures += 1
            at += 1 + RETRY.pause_ms(failures, dice.random())  # 1 ms for the questions themselves
        late.append(at - 75)
    assert sum(late) / len(late) < 10, "with fixed pauses of 20 ms it was 10"


def test_a_busy_broker_is_left_alone_by_a_thousand_producers() -> None:
    """They all came back every 20 ms: 50,000 resends a second."""
    dice, resends = random.Random(3), 0
    for _ in range(1_000):
        at, failures = 0.0, 0
        while at < 10_000:
            failures += 1
            at += BUSY_RETRY.pause_ms(failures, dice.random())
            resends += at >= 5_000
    assert resends / 5 < 2_000, "a second, after the first five"
