"""An elected slave begins its term when no report of it counts for the lease of the master before: rule 2 of
broker/core/report_lease.py, over loopback."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.core.report_lease import PROMISE_MS
from broker.ha.ports import HaSettings
from broker.ha.slave_protocol import SlaveProtocol
from tests.unit.broker.ha.test_ha_service import FAST, Broker, group, until

NOT_ALL_ACK = replace(FAST, all_ack=False)


async def promoted_after_ms(slave: Broker, epoch: int) -> float:
    began = time.monotonic()
    await slave.lead(epoch)
    return (time.monotonic() - began) * 1_000


async def linked(master: Broker, slave: Broker) -> None:
    await master.lead(1)
    await slave.follow(master, 1)
    await until(lambda: master.in_sync() == [1, 2], "slave joins")


@pytest.fixture
def deaf_master(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The end of the stream does not arrive: the master keeps its link, and counts the last reports."""

    def end_reports(protocol: SlaveProtocol) -> None:
        protocol.reports_ended = True

    monkeypatch.setattr(SlaveProtocol, "end_reports", end_reports)
    yield


async def test_a_master_that_closes_its_link_ends_the_wait(tmp_path: Path) -> None:
    """It lives, and hears the slave, but not the controllers."""
    async with group(tmp_path, 2, NOT_ALL_ACK) as (master, slave):
        await linked(master, slave)
        assert await promoted_after_ms(slave, 2) < PROMISE_MS / 2
        assert not master.service.links, "so it is isolated at once"


async def test_a_master_that_may_have_the_link_is_waited_for(tmp_path: Path, deaf_master: None) -> None:
    """Meanwhile the slave keeps what the master sends, and reports nothing."""
    async with group(tmp_path, 2, NOT_ALL_ACK) as (master, slave):
        await linked(master, slave)
        assert slave.service.client is not None
        protocol = slave.service.client.protocol
        assert protocol is not None
        term = asyncio.create_task(slave.lead(2))
        await until(lambda: protocol.reports_ended, "it waits")
        link = master.service.links[2]
        acked, end = link.ack_offset, master.put()
        await until(lambda: slave.store.commit_log.max_offset == end, "copied")
        await term
        assert link.ack_offset == acked < end
        assert slave.service.now_ms() - link.heard_ms >= PROMISE_MS - 50, "of loopback and rounding"


@pytest.mark.parametrize("settings", [FAST, replace(NOT_ALL_ACK, has_lease=False)], ids=["all-ack", "none"])
async def test_without_need_nothing_is_waited_for(
    tmp_path: Path, deaf_master: None, settings: HaSettings
) -> None:
    """With all-ack the old master acknowledges nothing without this broker; without leases reports do not
    count."""
    async with group(tmp_path, 2, settings) as (master, slave):
        await linked(master, slave)
        assert await promoted_after_ms(slave, 2) < PROMISE_MS / 2


async def test_a_dead_master_is_not_waited_for(tmp_path: Path) -> None:
    """Its system has closed the link."""
    async with group(tmp_path, 2, NOT_ALL_ACK) as (master, slave):
        await linked(master, slave)
        await master.service.stop()
        await until(lambda: slave.service.client is not None and not slave.service.client.connected, "ended")
        assert await promoted_after_ms(slave, 2) < PROMISE_MS / 2


async def test_a_link_that_the_slave_has_closed_may_be_open_at_its_master(tmp_path: Path) -> None:
    """The slave followed another master, or found the link silent: its last reports may still count."""
    async with group(tmp_path, 3, NOT_ALL_ACK) as (master, slave, other):
        await linked(master, slave)
        link = master.service.links[2]
        await other.lead(2)
        await slave.follow(other, 2)
        assert slave.service.client is not None
        await until(lambda: slave.service.client is not None and slave.service.client.connected, "follows")
        await slave.lead(3)
        assert slave.service.now_ms() - link.heard_ms >= PROMISE_MS - 50


async def test_a_slave_that_is_still_connecting_has_promised_nothing(tmp_path: Path) -> None:
    async with group(tmp_path, 2, NOT_ALL_ACK) as (master, slave):
        await master.lead(1)
        listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, backlog=1)
        host, port = listener.sockets[0].getsockname()
        listener.close()
        await slave.service.become_slave(broker_id=2, epoch=1, master_ha_address=f"{host}:{port}")
        assert await promoted_after_ms(slave, 2) < PROMISE_MS / 2


async def test_a_promotion_that_was_cancelled_leaves_no_dead_link(tmp_path: Path, deaf_master: None) -> None:
    """A slow disk, say: then the same master is elected again."""
    async with group(tmp_path, 2, NOT_ALL_ACK) as (master, slave):
        await linked(master, slave)
        assert slave.service.client is not None
        protocol = slave.service.client.protocol
        assert protocol is not None
        term = asyncio.create_task(slave.lead(2))
        await until(lambda: protocol.reports_ended, "it waits")
        term.cancel()
        await asyncio.wait([term])
        await slave.follow(master, 1)
        end = master.put()
        await until(lambda: slave.store.commit_log.max_offset == end, "copied")
        await until(lambda: 2 in master.service.links and master.service.links[2].ack_offset == end, "acked")
