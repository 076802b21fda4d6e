"""The worked examples of the reference (RIP-44's table and ours), one row each."""

import pytest

from broker.ha.core.epochs import Epochs
from broker.ha.core.truncation import truncation_point

Pairs = list[tuple[int, int]]


@pytest.mark.parametrize(
    ("mine", "my_max", "theirs", "their_max", "offset", "kept"),
    [
        ([(1, 0), (2, 100)], 250, [(1, 0), (2, 100), (3, 200)], 400, 200, 2),
        ([(1, 0), (2, 100)], 150, [(1, 0), (2, 100), (3, 200)], 400, 150, 2),
        ([(1, 0), (2, 100)], 300, [(1, 0), (3, 150)], 400, 100, 1),
        ([(1, 0)], 180, [(1, 0), (2, 100)], 100, 100, 1),
        ([(5, 900)], 1000, [(5, 900), (6, 1000)], 1200, 1000, 1),
        ([(1, 0), (5, 900)], 900, [(1, 0), (5, 900)], 900, 900, 2),
        ([(1, 0), (5, 900)], 950, [(1, 0), (5, 900)], 900, 900, 2),
        ([(1, 0), (2, 100)], 100, [(1, 0), (3, 100)], 200, 100, 1),
        ([(1, 0)], 70, [(1, 0), (2, 0)], 200, 0, 1),
        ([(1, 0), (2, 0)], 70, [(1, 0), (3, 0)], 200, 0, 1),
        ([(1, 0), (2, 100)], 50, [(1, 0), (2, 100)], 200, 50, 1),
    ],
)
def test_cut(mine: Pairs, my_max: int, theirs: Pairs, their_max: int, offset: int, kept: int) -> None:
    point = truncation_point(
        Epochs.of(mine), slave_max=my_max, master=Epochs.of(theirs), master_max=their_max
    )
    assert point is not None
    assert point.offset == offset
    assert point.epochs == Epochs.of(mine[:kept])


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ([(2, 100)], [(3, 250), (4, 500)]),
        ([(2, 100)], [(2, 101)]),
        ([], [(1, 0)]),
        ([(1, 0)], []),
    ],
)
def test_no_common_epoch(mine: Pairs, theirs: Pairs) -> None:
    point = truncation_point(Epochs.of(mine), slave_max=300, master=Epochs.of(theirs), master_max=600)
    assert point is None
