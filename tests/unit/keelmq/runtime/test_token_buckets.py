"""Token buckets: rate, burst, keys that do not touch each other, and a bounded table."""

import pytest

from keelmq.runtime.token_buckets import TokenBuckets


def taken(buckets: TokenBuckets[str], key: str, count: int, now_ms: int) -> int:
    return sum(buckets.take(key, now_ms) for _ in range(count))


def test_a_burst_then_the_rate() -> None:
    buckets = TokenBuckets[str](10, 20)
    assert taken(buckets, "a", 50, 1_000) == 20
    assert taken(buckets, "a", 50, 1_099) == 0
    assert taken(buckets, "a", 50, 1_100) == 1
    assert taken(buckets, "a", 50, 2_100) == 10
    assert taken(buckets, "b", 50, 2_100) == 20, "another key has a bucket of its own"
    assert taken(buckets, "a", 50, 60_000) == 20, "never more than a burst"


def test_refused_ones_do_not_make_it_longer() -> None:
    buckets = TokenBuckets[str](1, 1)
    assert buckets.take("a", 0)
    assert taken(buckets, "a", 1_000, 999) == 0
    assert buckets.take("a", 1_000)


def test_a_rate_above_one_per_ms() -> None:
    buckets = TokenBuckets[str](5_000, 10)
    assert taken(buckets, "a", 100, 0) == 10
    assert taken(buckets, "a", 100, 1) == 5


def test_the_table_is_bounded() -> None:
    buckets = TokenBuckets[str](1, 1, keys_max=3)
    assert all(buckets.take(key, 0) for key in "abc")
    assert not buckets.take("a", 0), "it is the one used last now"
    assert buckets.take("d", 0)
    assert len(buckets) == 3
    assert not buckets.take("a", 0)
    assert buckets.take("b", 0), "it was forgotten"


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_what_would_never_give_a_token_is_refused(rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="a rate of"):
        TokenBuckets[str](rate, burst)
