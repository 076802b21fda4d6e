"""RocketMQ's own producers, whose routes are old for up to 30 s, while masters die and return."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from namesrv.core.aliases import AliasLimits
from tests.sim.whole.group import Conditions, play, seconds
from tests.sim.whole.stock import POLL_S, StockProducer, StockWorld


def producers(world: StockWorld) -> list[StockProducer]:
    return [each for each in world.clients if isinstance(each, StockProducer)]


async def a_master_dies_and_another(world: StockWorld) -> None:
    """Two fail-overs; the first master is back before the second. One route poll at least is in between."""
    world.start()
    await world.settled()  # a client that starts earlier may read a route without an alias
    world.start_clients(producers=2, pause_s=0.1, others=False)
    first = (await world.whole()).name
    await seconds(1.0)
    second = await fail_over(world, first)
    world.revive(first)
    await seconds(POLL_S + 1.0)
    await fail_over(world, second)
    world.revive(second)
    await world.conclude()


async def fail_over(world: StockWorld, master: str) -> str:
    """Kills the master; returns the next one."""
    acked = len(world.judge.acked)
    world.kill(master)
    await world.until(lambda: world.master is not None and world.master.name != master, 5.0)
    assert world.master is not None
    elected = world.master.name
    await seconds(3.0)
    assert len(world.judge.acked) > acked + 40, "no client waited for its route"
    return elected


@contextmanager
def no_aliases() -> Iterator[None]:
    with mock.patch.object(AliasLimits, "count", lambda self, write_queues: 0):
        yield


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_no_send_of_stock_producers_fails(seed: int) -> None:
    settings: dict[str, object] = {"minInSyncReplicas": 2}
    world = play(seed, a_master_dies_and_another, Conditions(settings=settings), world_type=StockWorld)
    for each in producers(world):
        assert each.failed == []
        assert each.sent > 250 and each.tries > each.sent
        assert max(each.waits_ms) < 1_000


def test_without_aliases_they_fail() -> None:
    with no_aliases(), pytest.raises(AssertionError, match="no client waited"):
        play(1, a_master_dies_and_another, Conditions(), world_type=StockWorld)
