"""Metadata as a part of being in sync, with real HA links: which acknowledgements wait for which replica."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.core.sync_state_set import SyncStateSetManager
from broker.ha.core.frames import Ack, SlaveHandshake, SlaveStreamDecoder
from tests.unit.broker.core.test_sync_state_set import MAX_LAG_MS, Slave, agreed, manager_of
from tests.unit.broker.ha.test_ha_service import Broker, group, until


def look(manager: SyncStateSetManager, lags: dict[int, int], now: int = 0) -> frozenset[int] | None:
    proposal = manager.next_proposal(
        {2: Slave(100, caught_up=now)},
        confirm_offset=100,
        epoch_start_offset=0,
        now_ms=now,
        metadata_lag_ms=lags,
    )
    return None if proposal is None else proposal.members


def test_a_replica_with_older_metadata_does_not_join() -> None:
    """Design S3; the log alone would let it in."""
    assert look(manager_of(1), {2: 1}) is None
    assert look(manager_of(1), {2: 0}) == frozenset({1, 2})
    assert look(manager_of(1), {}) == frozenset({1, 2})  # RocketMQ's: nobody knows


def test_a_member_whose_metadata_hangs_leaves_like_one_whose_log_does() -> None:
    manager = manager_of(1, 2)
    assert look(manager, {2: MAX_LAG_MS}, now=MAX_LAG_MS) is None
    assert look(manager, {2: MAX_LAG_MS + 1}, now=MAX_LAG_MS) == frozenset({1})
    manager.answered(agreed(1), now_ms=MAX_LAG_MS)
    assert look(manager, {2: MAX_LAG_MS + 2}, now=MAX_LAG_MS) is None


@pytest.mark.parametrize(
    ("handshake", "raw"),
    [
        (SlaveHandshake(7), "00000001 00000000 00000000 00000007"),
        (SlaveHandshake(7, pulls_metadata=True), "00000001 00000002 00000000 00000007"),
        (SlaveHandshake(7, async_learner=True), "00000001 00000001 00000000 00000007"),
    ],
)
def test_the_flag_that_rocketmq_does_not_see(handshake: SlaveHandshake, raw: str) -> None:
    """A RocketMQ master tests the learner field for 1; a learner is never a member, so it needs no flag."""
    assert handshake.encode().hex(" ", 4) == raw
    decoder = SlaveStreamDecoder()
    decoder.receive_data(handshake.encode())
    assert decoder.next_packet() == handshake


async def test_a_replica_joins_when_its_metadata_has_come(tmp_path: Path) -> None:
    async with group(tmp_path, 2) as (master, slave):
        lags = {2: 1}
        await master.restart(metadata_lag_ms=lambda slave_id, epoch: lags[slave_id])
        await master.lead(3)
        master.put(count=10)
        await slave.follow(master, 3)
        await until(lambda: slave.store.commit_log.max_offset == master.store.commit_log.max_offset, "log")
        await until(lambda: _acked(master), "ack")
        assert master.in_sync() == [1] and master.service.metadata_members(3) == set()
        lags[2] = 0
        master.service.metadata_caught_up(2)
        await until(lambda: master.in_sync() == [1, 2], "joins")
        assert master.service.metadata_members(3) == {2}
        assert master.service.metadata_members(2) is None and slave.service.metadata_members(3) is None


def _acked(master: Broker) -> bool:
    link = master.service.links.get(2)
    return link is not None and link.ack_offset == master.store.commit_log.max_offset


async def test_a_rocketmq_replica_is_judged_by_its_log_alone(tmp_path: Path) -> None:
    async with group(tmp_path, 1) as (master,):
        await master.restart(metadata_lag_ms=_never_in_sync())
        await master.lead(1)
        end = master.put(count=3)
        reader, writer = await asyncio.open_connection(*master.service.address)
        writer.write(SlaveHandshake(2).encode())
        await reader.readexactly(20)
        writer.write(Ack(end).encode())
        await until(lambda: master.in_sync() == [1, 2], "joins")
        assert master.service.metadata_members(1) == set()
        writer.close()
        await writer.wait_closed()


def _never_in_sync() -> Callable[[int, int], int]:
    return lambda slave_id, epoch: 1
