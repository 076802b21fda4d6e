"""A rolling update stops the next replica when the one before is ready
(docs/adr/0079-ready-means-in-sync.md)."""

import pytest

from broker.core.readiness import not_ready
from tests.sim.whole.group import Conditions, WholeGroup, play

WITHIN_S = 10.0


def is_ready(world: WholeGroup, name: str) -> bool:
    broker = world.brokers[name].serving
    return broker is not None and not not_ready(broker.status.readiness)


async def returns(world: WholeGroup, *, killed: bool) -> None:
    """The moment at which a slave that was away is ready again."""
    world.start()
    world.start_clients(producers=1, others=False)
    master = (await world.whole()).name
    slave = world.others(master)[0]
    await world.until(lambda: is_ready(world, slave), WITHIN_S)
    if killed:
        world.kill(slave)
    else:
        world.cut([master], [slave], both=True)
    await world.until(lambda: slave not in world.members, WITHIN_S)
    await world.until(lambda: not is_ready(world, slave), WITHIN_S)
    if killed:
        world.start_broker(slave)
    else:
        world.network.mend()
    await world.until(lambda: is_ready(world, slave), WITHIN_S)
    assert slave in world.members
    await world.conclude()


@pytest.mark.parametrize("killed", [True, False])
def test_a_slave_is_ready_when_it_is_in_sync(*, killed: bool) -> None:
    for seed in (1, 2, 3):
        play(seed, lambda world: returns(world, killed=killed), Conditions())


async def loses_its_link(world: WholeGroup) -> None:
    """The controllers need a moment to find the master's death; until then the slave is a member."""
    world.start()
    master = (await world.whole()).name
    slave = world.others(master)[0]
    await world.until(lambda: is_ready(world, slave), WITHIN_S)
    world.kill(master)
    await world.until(lambda: not is_ready(world, slave), WITHIN_S)
    assert master in world.members and slave in world.members


def test_a_member_without_a_link_is_not_ready() -> None:
    play(1, loses_its_link, Conditions())
