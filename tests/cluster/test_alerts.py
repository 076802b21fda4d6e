"""Alerts in a real Prometheus that scrapes a real cluster: a fault makes them fire, its end resolves them."""

from pathlib import Path

import pytest

from tests.support.harness import Harness
from tests.support.prometheus import PROMETHEUS, prometheus

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus (Debian: prometheus)"),
]


async def test_alerts_of_a_real_cluster(tmp_path: Path) -> None:
    """minInSyncReplicas is 2: with one of two replicas dead, sends are refused. With two of three controllers
    dead, none leads."""
    async with (
        Harness(tmp_path, brokers=2, http=True) as running,
        prometheus(running.cluster, tmp_path) as watched,
    ):
        cluster = running.cluster
        await watched.is_quiet()
        master = await running.master()
        slave = next(program for program in cluster.brokers if program is not master)
        await cluster.kill_and_wait(slave)
        for name in ("KeelmqTooFewInSync", "KeelmqMasterFenced", "KeelmqDown"):
            await watched.fires(name)
        cluster.start_program(slave)
        await running.all_in_sync()
        await watched.is_quiet()
        for controller in cluster.name_servers[:2]:
            await cluster.kill_and_wait(controller)
        await watched.fires("KeelmqNoControllerLeader")
        for controller in cluster.name_servers[:2]:
            cluster.start_program(controller)
        await watched.is_quiet()
