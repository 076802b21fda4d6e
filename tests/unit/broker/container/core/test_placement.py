"""Which worker takes which broker: rules in their order, stable, and never worse after a plan."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.container.core.identity import BrokerIdentity
from broker.container.core.placement import Placed, choose_worker, moves_to_even_out

IDENTITIES = st.builds(BrokerIdentity, st.just("c"), st.sampled_from("abcdef"), st.integers(0, 3))


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[Placed], list[int]]:
    """Brokers on workers 0 to 5, of which only some are left; at most one master a group."""
    identities = draw(st.lists(IDENTITIES, max_size=14, unique=True))
    placed = [
        Placed(each, draw(st.integers(0, 5)), is_master=each.broker_id == 0 and draw(st.booleans()))
        for each in identities
    ]
    return placed, draw(st.lists(st.integers(0, 5), min_size=1, unique=True))


def squares(counts: Counter[object]) -> int:
    return sum(count * count for count in counts.values())


def cost(placed: Sequence[Placed]) -> tuple[int, int, int]:
    """As the rules say, without any shortcut of the real one."""
    groups = Counter[object]((each.identity.cluster, each.identity.name, each.worker) for each in placed)
    masters = Counter[object](each.worker for each in placed if each.is_master)
    return squares(groups), squares(masters), squares(Counter[object](each.worker for each in placed))


def spread(placed: Sequence[Placed], workers: Sequence[int]) -> int:
    counts = Counter(each.worker for each in placed)
    return max(counts[each] for each in workers) - min(counts[each] for each in workers)


def after_moves(placed: Sequence[Placed], workers: Sequence[int]) -> list[Placed]:
    moved = {move.identity: move for move in moves_to_even_out(placed, workers)}
    assert len(moved) == len(moves_to_even_out(placed, workers)), "a broker moves twice"
    for each in placed:
        if move := moved.get(each.identity):
            assert (move.source, move.target in workers) == (each.worker, True)
            assert move.source != move.target
    return [
        each._replace(worker=moved[each.identity].target) if each.identity in moved else each
        for each in placed
    ]


@given(placements())
def test_a_plan_leaves_nothing_to_improve(case: tuple[list[Placed], list[int]]) -> None:
    placed, workers = case
    after = after_moves(placed, workers)
    assert {each.worker for each in after} <= set(workers)
    assert moves_to_even_out(after, workers) == []
    for broker in after:
        others = [each for each in after if each != broker]
        for target in workers:
            assert cost([*others, broker._replace(worker=target)]) >= cost(after)


@given(placements())
def test_a_plan_never_makes_it_worse(case: tuple[list[Placed], list[int]]) -> None:
    placed, workers = case
    if {each.worker for each in placed} <= set(workers):
        assert cost(after_moves(placed, workers)) <= cost(placed)


@given(placements())
def test_groups_of_one_replica_are_spread_evenly(case: tuple[list[Placed], list[int]]) -> None:
    placed, workers = case
    single = [
        each._replace(identity=each.identity._replace(name=f"g{number}"))
        for number, each in enumerate(placed)
    ]
    after = after_moves(single, workers)
    assert spread(after, workers) <= 1
    assert spread([each for each in after if each.is_master], workers) <= 1


@given(placements(), IDENTITIES, st.booleans())
def test_a_new_broker_goes_where_it_costs_least(
    case: tuple[list[Placed], list[int]], new: BrokerIdentity, is_master: bool
) -> None:
    placed, workers = case
    placed = [each for each in placed if each.identity != new]
    worker = choose_worker(new, placed, workers, is_master=is_master)

    def with_it(worker: int) -> tuple[int, ...]:
        groups, masters, brokers = cost([*placed, Placed(new, worker, is_master)])
        return (groups, masters, brokers) if is_master else (groups, brokers)

    assert with_it(worker) == min(map(with_it, workers))
    assert worker == choose_worker(new, reversed(placed), workers[::-1], is_master=is_master)


@given(placements(), st.randoms(use_true_random=False))
def test_a_restart_places_as_before_in_any_order(case: tuple[list[Placed], list[int]], dice: Random) -> None:
    placed, workers = case
    before: list[Placed] = []
    for each in placed:
        worker = choose_worker(each.identity, before, workers, is_master=each.is_master)
        before.append(each._replace(worker=worker))
    again: list[Placed] = []
    order = list(before)
    dice.shuffle(order)
    for each in order:
        worker = choose_worker(each.identity, again, workers, remembered=each.worker)
        again.append(each._replace(worker=worker))
    assert set(again) == set(before)


def test_replicas_of_a_group_are_on_different_workers() -> None:
    placed: list[Placed] = []
    for number in range(3):
        new = BrokerIdentity("c", "a", number)
        placed.append(Placed(new, choose_worker(new, placed, [0, 1])))
    assert sorted(each.worker for each in placed) == [0, 0, 1]  # as far as possible


def test_a_worker_with_slaves_takes_the_next_master() -> None:
    placed = [
        Placed(BrokerIdentity("c", "a", 0), 0, is_master=True),
        Placed(BrokerIdentity("c", "b", 1), 1),
        Placed(BrokerIdentity("c", "d", 1), 1),
    ]
    new = BrokerIdentity("c", "e", 0)
    assert choose_worker(new, placed, [0, 1], is_master=True) == 1
    assert choose_worker(new, placed, [0, 1], is_master=False) == 0


def test_slaves_move_rather_than_masters() -> None:
    """A master's move is a hand-over."""
    placed = [Placed(BrokerIdentity("c", name, 0), 0, is_master=name == "a") for name in "abcd"]
    moves = moves_to_even_out(placed, [0, 1])
    assert len(moves) == 2
    assert "a" not in {each.identity.name for each in moves}


def test_brokers_of_a_worker_that_is_gone_move() -> None:
    placed = [Placed(BrokerIdentity("c", name, 0), 3, is_master=True) for name in "ab"]
    assert sorted(each.target for each in moves_to_even_out(placed, [0, 1])) == [0, 1]


def test_no_worker_is_an_error() -> None:
    with pytest.raises(ValueError, match="no workers"):
        choose_worker(BrokerIdentity("c", "a", 0), [], [])
    with pytest.raises(ValueError, match="no workers"):
        moves_to_even_out([], [])
