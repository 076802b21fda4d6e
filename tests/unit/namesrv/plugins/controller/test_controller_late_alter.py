"""A 1001 that arrives after its master has given it up: a controller stood still with it in its hands.

The master's own keeper and the controller's own handlers: what the master acknowledged must be at whoever is
elected after it.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.core.confirm_offset import confirm_offset
from broker.core.sync_state_set import SETTLE_MS, SyncStateSet, SyncStateSetManager
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError, Reply
from keelmq.remoting.operations import controller as wire
from tests.support.controller_fakes import GROUP, Bench


@dataclass
class Slave:
    ack_offset: int
    learner: bool = False

    def caught_up_ms(self, now_ms: int) -> int:
        return now_ms


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    await bench.group_of(1)
    await bench.apply(2)
    await bench.heartbeat(2)
    return bench


def set_of(reply: Reply) -> SyncStateSet:
    assert isinstance(reply.body, wire.SyncStateSet)
    return SyncStateSet(frozenset(reply.body.sync_state_set), reply.body.sync_state_set_epoch)


async def late_arrival(bench: Bench, **reading: object) -> tuple[int, int, int | None]:
    """The acknowledged offset, what slave 2 has, and who is master after the death of 1.

    2 had 100 bytes when it was proposed; the proposal is on its way; 2 loses its link to the master; the
    master gives up, reads, and goes on alone to 200. `reading`: what it adds to its 1004.
    """
    manager = SyncStateSetManager(
        1, SyncStateSet(frozenset({1}), 1), all_ack=True, max_lag_ms=15_000, now_ms=0
    )
    slave = Slave(100)
    proposal = manager.next_proposal({2: slave}, confirm_offset=100, epoch_start_offset=0, now_ms=0)
    assert proposal is not None and proposal.members == {1, 2}
    manager.answered(None, now_ms=3_000)
    assert manager.next_proposal({}, confirm_offset=100, epoch_start_offset=0, now_ms=3_001) is None
    assert confirm(manager, slave) == 100, "in doubt, it waits for 2"

    read = await bench.ask(wire.GET_REPLICA_INFO, broker_name=GROUP, **reading)
    manager.read(set_of(read), begun_ms=3_000 + SETTLE_MS)
    acknowledged = confirm(manager, slave)
    try:
        await bench.alter([1, 2], master=1, epoch=1, set_epoch=proposal.base_epoch)  # the late one
    except CommandError as error:
        assert error.code == ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    bench.lose(1)
    try:
        await bench.elect(2)
    except CommandError as error:
        assert error.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    return acknowledged, slave.ack_offset, bench.broker_set.master_broker_id


def confirm(manager: SyncStateSetManager, slave: Slave) -> int:
    acks = {2: slave.ack_offset}
    return confirm_offset(100, max_offset=200, others=manager.others, acks=acks, all_ack=True)


async def test_without_the_fence_an_acknowledged_message_is_lost(bench: Bench) -> None:
    """As with RocketMQ's controllers, which skip the fields: this is the fault that the fence is for."""
    assert await late_arrival(bench) == (200, 100, 2)


async def test_with_the_fence_the_late_request_comes_to_nothing(bench: Bench) -> None:
    acknowledged, _has, master = await late_arrival(
        bench, master_broker_id=1, master_epoch=1, fence_sync_state_set_epoch=1
    )
    assert (acknowledged, master) == (200, 1), "2 is not elected; 1 is waited for"
    assert bench.broker_set.sync_state_set == {1}


async def test_the_fence_ends_the_doubt_at_once(bench: Bench) -> None:
    """No SETTLE_MS: a higher set epoch is a proof."""
    manager = SyncStateSetManager(
        1, SyncStateSet(frozenset({1}), 1), all_ack=True, max_lag_ms=15_000, now_ms=0
    )
    manager.next_proposal({2: Slave(100)}, confirm_offset=100, epoch_start_offset=0, now_ms=0)
    manager.answered(None, now_ms=10)
    read = await bench.ask(
        wire.GET_REPLICA_INFO,
        broker_name=GROUP,
        master_broker_id=1,
        master_epoch=1,
        fence_sync_state_set_epoch=1,
    )
    assert manager.read(set_of(read), begun_ms=11)
    assert not manager.must_read
    assert manager.agreed == SyncStateSet(frozenset({1}), 2)


@pytest.mark.parametrize(
    "fields",
    [
        {},  # a Java broker, or a poll
        {"master_broker_id": 1, "master_epoch": 1},
        {"master_broker_id": 2, "master_epoch": 1, "fence_sync_state_set_epoch": 1},  # who is not master
        {"master_broker_id": 1, "master_epoch": 0, "fence_sync_state_set_epoch": 1},  # of an earlier term
        {"master_broker_id": 1, "master_epoch": 1, "fence_sync_state_set_epoch": 0},  # settled already
    ],
)
async def test_other_readers_change_nothing(bench: Bench, fields: dict[str, object]) -> None:
    count = len(bench.replicator.events)
    reply = await bench.ask(wire.GET_REPLICA_INFO, broker_name=GROUP, **fields)
    assert set_of(reply) == SyncStateSet(frozenset({1}), 1)
    assert len(bench.replicator.events) == count


async def test_a_repeated_fence_is_harmless(bench: Bench) -> None:
    """Its first answer was lost: the epoch is above the doubted one already."""
    for _ in range(2):
        reply = await bench.ask(
            wire.GET_REPLICA_INFO,
            broker_name=GROUP,
            master_broker_id=1,
            master_epoch=1,
            fence_sync_state_set_epoch=1,
        )
        assert set_of(reply).epoch == 2


async def test_a_restarted_master_is_fenced_from_its_earlier_life(bench: Bench) -> None:
    """Its new process knows nothing of the 1001 that the old one had sent; its 1003 makes it void."""
    await bench.register(1)
    with pytest.raises(CommandError) as caught:
        await bench.alter([1, 2], master=1, epoch=1, set_epoch=1)
    assert caught.value.code == ResponseCode.CONTROLLER_INVALID_MASTER
    await bench.elect(1)
    with pytest.raises(CommandError) as caught:
        await bench.alter([1, 2], master=1, epoch=1, set_epoch=1)
    assert caught.value.code == ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
