"""The buckets of keelmq.runtime.log_buckets as Spark columns, equal to them for every whole number."""

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from keelmq.runtime.log_buckets import BUCKETS, EDGES, STEPS

_EDGES = tuple(min(edge, (1 << 63) - 1) for edge in EDGES)
_TOPS = tuple(edge - 2 for edge in EDGES[1:])
_LARGEST = (1 << 63) - 3
"""Below the last edge as a long, 2 ** 63 - 1, also when 1 is added."""


LOGARITHM_IS_EXACT_BELOW = 1 << 40
"""A test looks at every edge below; to mend each number would cost as much as all the rest."""


def bucket(value: Column) -> Column:
    """Returns the bucket of a whole number, as bucket_of() does."""
    x = F.greatest(F.least(value, F.lit(_LARGEST)), F.lit(0)) + 1
    about = F.floor(F.log2(x) * STEPS).cast("smallint")
    return F.when(x < LOGARITHM_IS_EXACT_BELOW, about).otherwise(_mended(x, about))


def _mended(x: Column, about: Column) -> Column:
    """Near the edge of a bucket the logarithm of a large number may be one bucket off."""
    edges, about = _longs(_EDGES), F.least(about, F.lit(BUCKETS - 1))
    exact = F.when(x < edges[about], about - 1).when(x >= edges[about + 1], about + 1)
    return exact.otherwise(about).cast("smallint")


def bucket_top(number: Column) -> Column:
    """Returns the largest whole number in a bucket, as bucket_top() of log_buckets does."""
    return _longs(_TOPS)[number.cast("int")]


def _longs(numbers: Sequence[int]) -> Column:
    """Returns an array: one literal for the optimizer, and few calls of Python into Java."""
    return F.split(F.lit(",".join(map(str, numbers))), ",").cast("array<bigint>")
