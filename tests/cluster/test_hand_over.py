"""Planned hand-overs with real processes under traffic (S10): no send fails, and none is in doubt."""

import asyncio
import signal
from pathlib import Path

import pytest

from remoting.clock import now_ms
from tests.bench.switch import Group, Load

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

RATE = 500
"""Messages a second: these tests share the machine."""


async def steady(group: Group, load: Load, more: int) -> None:
    target = len(load.sends) + more

    async def enough() -> bool:
        return len(load.sends) >= target

    await group.cluster.until(f"{more} more messages", enough, timeout_s=30)


async def test_no_send_fails_while_masters_hand_over(tmp_path: Path) -> None:
    """By electMaster and by SIGTERM, which ends with exit code 0 and a clean store."""
    async with Group(tmp_path) as group, Load(group.cluster.namesrv_addr, rate=RATE) as load:
        await steady(group, load, 200)
        before = await group.all_in_sync()
        await group.elect_another()
        await steady(group, load, 200)
        after = await group.all_in_sync()
        assert after.master != before.master and after.master_epoch == before.master_epoch + 1
        stopped = await group.stop_master()
        assert not (tmp_path / stopped.name / "abort").exists()
        assert "hand-over" in stopped.log_path.read_text()
        stopped.process = None  # it ended because we asked: nothing for cluster.check()
        await steady(group, load, 200)
        group.cluster.start_program(stopped)
        await group.all_in_sync()
        await steady(group, load, 200)
        logs = "\n".join(f"{each.name}\n{each.log_path.read_text()}" for each in group.cluster.brokers)
        assert (await group.all_in_sync()).master_epoch == before.master_epoch + 2, logs
    assert load.errors == []
    assert (load.retried, load.uncertain) == (0, 0), f"held and forwarded, not refused\n{logs}"
    assert "Traceback" not in logs, logs


async def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    """With nobody to hand over to and controllers that do not answer, the first one may take seconds."""
    async with Group(tmp_path) as group:
        master = await group.master()
        for server in group.cluster.name_servers:
            group.cluster.pause(server)
        assert master.process is not None
        began_ms = now_ms()
        master.process.send_signal(signal.SIGTERM)

        async def begun() -> bool:
            return "hand-over" in master.log_path.read_text().partition("stopping")[2]

        await group.cluster.until("the hand-over has begun", begun, timeout_s=10)
        master.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(master.process.wait, 20) == 0
        assert now_ms() - began_ms < 5_000
        for server in group.cluster.name_servers:
            group.cluster.resume(server)
