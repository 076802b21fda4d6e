"""Whole groups in containers, by seed."""

from functools import cache

import pytest

from tests.sim.container.world import NEIGHBOUR, run_seed
from tests.sim.kinds import found_seeds
from tests.sim.whole.programs import GROUP
from tests.support.slices import first

FAST, SLOW = range(1, 4), range(4, 200)
ran = cache(run_seed)


@pytest.mark.parametrize("seed", first(1, [*FAST, *found_seeds("container")]))
def test_every_promise_is_kept_in_containers(seed: int) -> None:
    world = ran(seed)
    assert world.judge.acked
    brokers = world.truth.states[-1].brokers
    assert set(brokers) == {GROUP, NEIGHBOUR}, "each container had both"
    assert len(brokers[NEIGHBOUR].replicas) == world.conditions.replicas, "and its neighbour kept its id"


@pytest.mark.long
@pytest.mark.parametrize("seed", SLOW)
def test_every_promise_is_kept_in_more_weather(seed: int) -> None:
    run_seed(seed)


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = ran(1), run_seed(1)
    assert one.notes == other.notes
    assert one.judge.acked == other.judge.acked
