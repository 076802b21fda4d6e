"""Alerts in a real Prometheus that scrapes a real cluster: a fault makes them fire, its end resolves them."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from cli.lab.cluster import Cluster
from cli.lab.ports import HOST
from tests.support.harness import Harness
from tests.support.raft_group import free_ports

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus (Debian: prometheus)"),
]
RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yaml"
ALERT_S = 60.0


class Prometheus:
    """One that has the repository's rules, and looks every second."""

    def __init__(self, cluster: Cluster, address: str, http: httpx.AsyncClient) -> None:
        self._cluster, self._address, self._http = cluster, address, http

    async def firing(self) -> set[str]:
        """The names of the alerts that fire; empty while Prometheus starts."""
        try:
            answer = await self._http.get(f"http://{self._address}/api/v1/alerts")
        except httpx.TransportError:
            return set()
        if answer.status_code != 200:
            return set()
        alerts = answer.json()["data"]["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    async def fires(self, name: str) -> None:
        """Returns when the alert fires."""

        async def look() -> bool | None:
            return name in await self.firing() or None

        await self._cluster.until(f"{name} fires", look, timeout_s=ALERT_S)

    async def is_quiet(self) -> None:
        """Returns when everything is scraped and nothing fires."""

        async def look() -> bool | None:
            answer = await self._http.get(f"http://{self._address}/api/v1/query", params={"query": "up == 1"})
            up = answer.json()["data"]["result"] if answer.status_code == 200 else []
            return (len(up) == len(self._cluster.programs) and not await self.firing()) or None

        await self._cluster.until("nothing fires", look, timeout_s=ALERT_S)


@asynccontextmanager
async def prometheus(cluster: Cluster, directory: Path) -> AsyncIterator[Prometheus]:
    (port,) = free_ports(1)
    targets = [program.http_address for program in cluster.programs]
    settings = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "keelmq", "static_configs": [{"targets": targets}]}],
    }
    path = directory / "prometheus.yaml"
    path.write_text(yaml.safe_dump(settings))
    with (directory / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(PROMETHEUS),
            f"--config.file={path}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address={HOST}:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        async with httpx.AsyncClient(timeout=5) as http:
            found = Prometheus(cluster, f"{HOST}:{port}", http)

            async def is_ready() -> bool | None:
                try:
                    return (await http.get(f"http://{HOST}:{port}/-/ready")).status_code == 200 or None
                except httpx.TransportError:
                    return None

            await cluster.until("Prometheus is ready", is_ready, timeout_s=ALERT_S)
            yield found
    finally:
        process.terminate()
        await process.wait()


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
