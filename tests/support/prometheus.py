"""A real Prometheus with the repository's alert rules, which scrapes all programs of a cluster."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import yaml

from cli.lab.cluster import Cluster
from cli.lab.ports import HOST
from tests.support.raft_group import free_ports

PROMETHEUS = shutil.which("prometheus")
RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yaml"
ALERT_S = 60.0
QUICK_FOR, QUICK_RANGE = "5s", "20s"

_LONG_RANGE = re.compile(r"\[\d+m\]")
_LONG_OFFSET = re.compile(r"offset \d+m\b")


class Prometheus:
    """One that has the repository's rules, and looks every second."""

    def __init__(self, cluster: Cluster, address: str, http: httpx.AsyncClient, alert_s: float) -> None:
        """alert_s: how long fires() and is_quiet() wait."""
        self._cluster, self._address, self._http, self._alert_s = cluster, address, http, alert_s

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

        await self._cluster.until(f"{name} fires", look, timeout_s=self._alert_s)

    async def is_quiet(self, but: Collection[str] = ()) -> None:
        """Returns when everything is scraped and nothing fires, but what is named."""
        seen: list[str] = []

        async def look() -> bool | None:
            answer = await self._http.get(f"http://{self._address}/api/v1/query", params={"query": "up == 1"})
            up = answer.json()["data"]["result"] if answer.status_code == 200 else []
            seen[:] = sorted(await self.firing() - set(but))
            return (len(up) == len(self._cluster.programs) and not seen) or None

        try:
            await self._cluster.until("everything is scraped, no alert fires", look, timeout_s=self._alert_s)
        except Exception as error:
            error.add_note(f"these fire: {', '.join(seen) or 'none'}")
            raise


def quickened(rules: str) -> str:
    """The same rules with the same thresholds, but alerts wait for QUICK_FOR, and ranges are QUICK_RANGE: an
    alert over ten minutes clears ten minutes after its cause has ended, which a test cannot wait for."""
    value = yaml.safe_load(rules)
    for group in value["groups"]:
        for rule in group["rules"]:
            if rule.get("for", QUICK_FOR) != QUICK_FOR:
                rule["for"] = QUICK_FOR
            ranges = _LONG_RANGE.sub(f"[{QUICK_RANGE}]", rule["expr"])
            rule["expr"] = _LONG_OFFSET.sub(f"offset {QUICK_RANGE}", ranges)
    return yaml.safe_dump(value)


@asynccontextmanager
async def prometheus(
    cluster: Cluster,
    directory: Path,
    *,
    rules: Path = RULES,
    scrape: Mapping[str, object] | None = None,
    alert_s: float = ALERT_S,
) -> AsyncIterator[Prometheus]:
    """scrape: more settings of the scrape job, such as its TLS."""
    (port,) = free_ports(1)
    targets = [program.http_address for program in cluster.programs]
    job = {"job_name": "keelmq", "static_configs": [{"targets": targets}], **(scrape or {})}
    settings = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [job],
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
            found = Prometheus(cluster, f"{HOST}:{port}", http, alert_s)

            async def is_ready() -> bool | None:
                try:
                    return (await http.get(f"http://{HOST}:{port}/-/ready")).status_code == 200 or None
                except httpx.TransportError:
                    return None

            await cluster.until("Prometheus is ready", is_ready, timeout_s=alert_s)
            yield found
    finally:
        process.terminate()
        await process.wait()
