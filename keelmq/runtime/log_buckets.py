"""Logarithmic buckets: STEPS per doubling, the same in brokers, analytics and pages, so that counts add up.

Bucket b holds the whole numbers v with EDGES[b] <= v + 1 < EDGES[b + 1]. A percentile is given as the largest
number of its bucket: at most 2 ** (1 / STEPS) - 1, 9.05 %, above the exact one (of v + 1).
"""

import math
from bisect import bisect_right

STEPS = 8
BUCKETS = STEPS * 63
"""Enough for every number below 2 ** 63 - 1; larger ones count as the last."""


def _ceil_power(step: int) -> int:
    """Returns ceil(2 ** (step / STEPS)), exactly; floats are off by one at large numbers."""
    power = 1 << step
    root = power
    for _ in range(STEPS.bit_length() - 1):  # STEPS is a power of two
        floor = math.isqrt(root)
        root = floor if floor * floor == root else floor + 1
    return root


EDGES = tuple(_ceil_power(step) for step in range(BUCKETS + 1))


def bucket_of(value: int) -> int:
    """Returns the bucket of a whole number; of a negative one, bucket 0."""
    return min(BUCKETS, bisect_right(EDGES, max(value, 0) + 1)) - 1


def bucket_top(bucket: int) -> int:
    """Returns the largest whole number in a bucket."""
    return EDGES[bucket + 1] - 2
