"""The buckets of keelmq.runtime.log_buckets as expressions over integers: logarithms of floats are off by one
near the edges of buckets, and differ from engine to engine."""

from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F

from keelmq.runtime.log_buckets import BUCKETS, EDGES, STEPS

_LONG_BITS = 63
_OCTAVE = _LONG_BITS - 1
"""Numbers are shifted until they are in the octave [2 ** 62, 2 ** 63), in which STEPS edges divide every
octave."""
_EDGES = EDGES[_OCTAVE * STEPS : (_OCTAVE + 1) * STEPS]
_MAX = (1 << _LONG_BITS) - 1


def bucket(value: Column) -> Column:
    """Returns the bucket (INT) of a BIGINT, as bucket_of() of log_buckets does."""
    whole = F.least(F.greatest(value, F.lit(0)), F.lit(_MAX - 2)) + 1
    octave = F.length(F.bin(whole)) - 1
    shifted = shift_left(whole, _OCTAVE - octave)
    steps = (F.when(shifted >= edge, 1).otherwise(0) for edge in _EDGES[1:])
    return reduce(Column.__add__, steps, octave * STEPS)


def bucket_top(number: Column) -> Column:
    """Returns the largest BIGINT in a bucket (INT), as bucket_top() of log_buckets does."""
    step = F.pmod(number + 1, F.lit(STEPS))
    octave = F.shiftright(number + 1, STEPS.bit_length() - 1)
    edge = F.lit(_EDGES[0] - 1)
    for place, each in enumerate(_EDGES[1:], start=1):
        edge = F.when(step == place, each - 1).otherwise(edge)
    top = F.call_function("shiftright", edge, F.greatest(_OCTAVE - octave, F.lit(0)).cast("int")) - 1
    return F.when(number >= BUCKETS - 1, _MAX - 1).otherwise(top)


def shift_left(value: Column, bits: Column) -> Column:
    """Returns value * 2 ** bits; functions.shiftleft() takes no column of bits."""
    return F.call_function("shiftleft", value.cast("bigint"), bits.cast("int"))
