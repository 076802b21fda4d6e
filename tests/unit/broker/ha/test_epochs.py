"""Epochs: the list of byte ranges per master."""

import pytest

from broker.ha.core.epochs import UNBOUNDED, Epochs

THREE = Epochs.of([(1, 0), (2, 100), (5, 250)])


def test_ends_are_the_next_starts() -> None:
    assert [entry.end_offset for entry in THREE.entries] == [100, 250, UNBOUNDED]


@pytest.mark.parametrize(
    ("offset", "epoch"), [(0, 1), (99, 1), (100, 2), (249, 2), (250, 5), (1 << 50, 5), (-1, None)]
)
def test_find(offset: int, epoch: int | None) -> None:
    entry = THREE.find(offset)
    assert (entry.epoch if entry else None) == epoch


def test_append() -> None:
    assert THREE.append(6, 300).pairs == ((1, 0), (2, 100), (5, 250), (6, 300))
    assert Epochs().append(3, 0).pairs == ((3, 0),)


def test_an_epoch_without_data_is_replaced() -> None:
    """Pitfall 30: the peer does not record the second one."""
    assert THREE.append(6, 250).pairs == ((1, 0), (2, 100), (6, 250))


def test_the_first_epoch_is_kept_without_data() -> None:
    """It is all that two logs have in common when they part at the first byte."""
    assert Epochs.of([(1, 0)]).append(2, 0).append(3, 0).pairs == ((1, 0), (3, 0))
    entry = Epochs.of([(1, 0), (3, 0)]).find(0)
    assert entry is not None and entry.epoch == 3
    assert Epochs.of([(1, 0), (3, 0)]).drop_below(0).pairs == ((1, 0), (3, 0))


@pytest.mark.parametrize(("epoch", "start"), [(5, 300), (4, 300), (6, 249), (5, 250), (4, 250)])
def test_append_never_goes_back(epoch: int, start: int) -> None:
    with pytest.raises(ValueError, match="after 5@250"):
        THREE.append(epoch, start)


def test_a_cut_leaves_no_stale_end() -> None:
    """Pitfall 32: data beyond the old end of the new last entry must find its epoch."""
    cut = THREE.drop_from_epoch(5)
    assert cut.entries[-1].end_offset == UNBOUNDED
    assert cut.find(1000) == cut.entries[-1]


@pytest.mark.parametrize(("offset", "kept"), [(99, 1), (100, 2), (249, 2), (250, 3)])
def test_drop_above_keeps_an_epoch_that_begins_at_the_end(offset: int, kept: int) -> None:
    assert len(THREE.drop_above(offset).entries) == kept


@pytest.mark.parametrize(("offset", "kept"), [(0, 3), (99, 3), (100, 2), (250, 1), (10_000, 1)])
def test_drop_below_keeps_the_last_one(offset: int, kept: int) -> None:
    assert len(THREE.drop_below(offset).entries) == kept


@pytest.mark.parametrize("pairs", [[(1, 0), (1, 5)], [(1, 5), (2, 0)], [(2, 0), (1, 5)]])
def test_order_is_an_invariant(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="after"):
        Epochs.of(pairs)
