"""log_buckets: exact edges, and the promised bound of a percentile."""

from hypothesis import given
from hypothesis import strategies as st

from keelmq.runtime.log_buckets import BUCKETS, EDGES, STEPS, bucket_of, bucket_top

COUNTS = st.integers(0, 2**63 - 2)


def test_edges_are_exact_powers() -> None:
    for step in range(BUCKETS + 1):
        assert (EDGES[step] - 1) ** STEPS < 2**step <= EDGES[step] ** STEPS


@given(COUNTS)
def test_a_number_is_in_its_bucket_and_near_its_top(value: int) -> None:
    bucket = bucket_of(value)
    assert EDGES[bucket] <= value + 1 < EDGES[bucket + 1]
    assert value <= bucket_top(bucket)
    assert (bucket_top(bucket) + 1) ** STEPS <= 2 * (value + 1) ** STEPS


def test_numbers_outside() -> None:
    assert bucket_of(-5) == bucket_of(0) == 0
    assert bucket_of(2**70) == BUCKETS - 1
