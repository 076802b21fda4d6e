"""Retention on disks that are nearly full, while replicas come and go: what is kept is the same everywhere,
nobody lacks what retention has not deleted, and queues count on. The programs are real (test_promises.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import pytest

from broker.metadata.queue_ends import QueueEndTable
from keelmq.remoting.operation import Ok
from tests.sim.checkers import Violation
from tests.sim.whole.disks import small_disks
from tests.sim.whole.group import Conditions, WholeGroup, seconds
from tests.sim.whole.programs import COMMIT_LOG_BYTES
from tests.sim.whole.test_promises import broken, kept, whole_group
from tests.support.slices import share

FILES = 8
"""What has room on each disk: the oldest goes when seven are there, messages are refused at eight."""
CONDITIONS = Conditions(settings={"cleanResourceInterval": 100, "flushIntervalCommitLog": 100})
QUIET = "Quiet"


async def quiet_messages(world: WholeGroup, count: int) -> None:
    """In a topic that has no others: retention empties its queues."""
    for _ in range(count):
        await world.do(world.producer, world.producer.send(QUIET))


async def overtake(world: WholeGroup) -> tuple[str, str, str]:
    """A replica is away while the master deletes everything that it has. Back again, it begins anew where the
    master's log begins, is killed in the middle of that, and joins. Master, heir, and that one."""
    master = await whole_group(world, pause_s=0.01)
    await quiet_messages(world, 6)
    world.producer.body_bytes = (1_000,)
    away, transfer_target = world.others(master)
    gone, main = world.brokers[away].serving, world.brokers[master].serving
    assert gone is not None and main is not None
    end, log = gone.store.commit_log.max_offset, main.store.commit_log
    world.kill(away)
    await world.until(lambda: away not in world.members, 5.0)
    await world.until(lambda: log.min_offset > end + COMMIT_LOG_BYTES, 60.0, "nothing is deleted")

    def begins_anew() -> bool:
        broker = world.brokers[away].serving
        return broker is not None and broker.store.commit_log.min_offset > end

    world.revive(away)
    await world.until(begins_anew, 5.0, "it does not begin anew")
    world.kill(away)
    await seconds(0.3)
    world.revive(away)
    await world.until(lambda: away in world.members, 10.0, "it does not join")
    return master, transfer_target, away


async def overtaken_and_elected(world: WholeGroup) -> None:
    """The master dies, and the one that began anew is made master: its queues count on."""
    with small_disks(world.disks.values(), FILES * COMMIT_LOG_BYTES):
        master, transfer_target, away = await overtake(world)
        world.kill(master)
        await world.until(lambda: world.master is not None, 5.0)
        await world.until(lambda: {transfer_target, away} <= set(world.members), 5.0)
        chosen = world.brokers[away].broker_id
        assert chosen is not None and world.master is not None
        if world.master.name != away and not await world.do(world.operator, world.operator.elect(chosen)):
            raise Violation(f"electMaster: {world.operator.last}")
        await world.until(lambda: world.master is not None and world.master.name == away, 5.0)
        count = len(world.producer.outcomes)
        await quiet_messages(world, 6)
        if not any(isinstance(outcome, Ok) for _, _, outcome in world.producer.outcomes[count:]):
            raise Violation("nothing was taken")
        world.revive(master)
        await world.whole()
        await world.conclude()


@contextmanager
def ends_are_forgotten() -> Iterator[None]:
    with mock.patch.object(QueueEndTable, "remember", lambda self, ends: None):
        yield


@pytest.mark.slow
def test_a_replica_that_retention_has_overtaken_begins_where_the_master_does() -> None:
    """Off: it copies the newest file alone, and lacks what the others have kept."""
    kept(overtaken_and_elected, CONDITIONS, seeds=share(2))
    last_file = Conditions(settings={**CONDITIONS.settings, "syncFromLastFile": True})
    assert broken(overtaken_and_elected, nullcontext, last_file)


@pytest.mark.promise("S4")
def test_a_queue_that_retention_has_emptied_counts_on_at_every_master() -> None:
    """S4. Off: nobody writes down how far it has counted, and a master that never had its messages begins
    with 0."""
    assert broken(overtaken_and_elected, ends_are_forgotten, CONDITIONS)
