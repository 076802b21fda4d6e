"""A random nemesis over a working cluster. The seed is in the test's id; a failing one goes into SEEDS."""

import random
from pathlib import Path

import pytest

from cli.cluster import Program
from remoting.clock import now_ms
from tests.cluster.harness import Harness

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

FAULTS = 10
SEEDS = (1, 2)


class Nemesis:
    """One fault at a time; each is over, and everything in sync again, before the next."""

    def __init__(self, running: Harness, seed: int) -> None:
        self.running, self.random = running, random.Random(seed)
        self.history: list[str] = []

    async def strike(self) -> None:
        fault = self.random.choice(
            [
                self.kill_master,
                self.kill_slave,
                self.pause_slave,
                self.pause_master,
                self.kill_both,
                self.kill_controller,
            ]
        )
        self.history.append(fault.__name__)
        await fault()
        await self.running.acked(100, timeout_s=30)
        await self.running.all_in_sync()

    async def kill_master(self) -> None:
        master = await self.running.master()
        self.running.cluster.kill(master)
        self.running.ledger.killed(now_ms())
        await self.running.new_master(master)
        self.running.cluster.start_program(master)

    async def kill_slave(self) -> None:
        slave = await self._slave()
        self.running.cluster.kill(slave)
        await self.running.acked(100, timeout_s=30)
        self.running.cluster.start_program(slave)

    async def pause_slave(self) -> None:
        """It holds up the acknowledgements until it is out of the set."""
        slave = await self._slave()
        self.running.cluster.pause(slave)
        await self.running.acked(100, timeout_s=10)
        self.running.cluster.resume(slave)

    async def kill_both(self) -> None:
        """A slave, and while its absence is noticed, the master."""
        master, slave = await self.running.master(), await self._slave()
        self.running.cluster.kill(slave)
        self.running.cluster.kill(master)
        self.running.cluster.start_program(slave)
        await self.running.new_master(master)
        self.running.cluster.start_program(master)

    async def pause_master(self) -> None:
        master = await self.running.master()
        self.running.cluster.pause(master)
        await self.running.new_master(master)
        self.running.cluster.resume(master)

    async def kill_controller(self) -> None:
        leader = await self.running.controller_leader()
        self.running.cluster.kill(leader)
        await self.running.acked(50)
        await self.kill_master()
        self.running.cluster.start_program(leader)

    async def _slave(self) -> Program:
        master = await self.running.master()
        return self.random.choice([each for each in self.running.cluster.brokers if each is not master])


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_acknowledged_is_lost(tmp_path: Path, seed: int) -> None:
    async with Harness(tmp_path) as running:
        nemesis = Nemesis(running, seed)
        running.produce()
        await running.acked(100)
        for _ in range(FAULTS):
            await nemesis.strike()
        report = await running.compare()
        assert report.lost == 0 and report.damaged == 0, (nemesis.history, report)
        for broker in running.cluster.brokers:
            assert "Traceback" not in broker.log_path.read_text(errors="replace"), broker.log_path
