"""The console of a running cluster: a fail-over while the page is open, a cluster of which half is gone, and
log-in and actions where everything is on."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.credentials import read_credentials
from cli.lab.cluster import Program
from cli.lab.secure import SECURITY, credentials_path, secured
from keelmq.client.admin import AdminClient, AdminError
from tests.support.harness import SAFE, START_TIMEOUT_S, Harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SEEN_WITHIN_S = 1.0
PAGE = {"sec-fetch-site": "same-origin"}


async def status_of(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/v1/console/status")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["status"]
    return found


async def ready(running: Harness, client: httpx.AsyncClient) -> None:
    """The HTTP port answers: it is later than the remoting port."""

    async def look() -> bool | None:
        try:
            return (await client.get("/livez")).status_code == 200 or None
        except httpx.TransportError:
            return None

    await running.cluster.until("HTTP", look, timeout_s=START_TIMEOUT_S)


async def events(client: httpx.AsyncClient) -> AsyncIterator[tuple[str, Any]]:
    async with client.stream("GET", "/v1/console/events") as answer:
        assert answer.status_code == 200
        name = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


async def serves_at(programs: list[Program]) -> float:
    """When one of these brokers is writable, by time.monotonic()."""
    async with AdminClient(timeout_ms=500) as admin:
        while True:
            for program in programs:
                try:
                    info = await admin.brokers.runtime_info(program.address)
                except AdminError:
                    continue
                if info.get("brokerActive") == "true":
                    return time.monotonic()
            await asyncio.sleep(0.02)


async def shown_at(client: httpx.AsyncClient, is_open: asyncio.Event, old: str) -> tuple[float, Any]:
    """When the page has another live master, and the group then."""
    async for name, value in events(client):
        is_open.set()
        for group in value.get("groups", ()) if name in ("status", "change") else ():
            master = next((each for each in group["replicas"] if each["role"] == "master"), None)
            if group["masterAddress"] not in ("", old) and master and master["address"] != old:
                return time.monotonic(), group
    raise AssertionError("the stream ended")


async def shown_silent(running: Harness, client: httpx.AsyncClient, address: str) -> dict[str, Any]:
    """The broker, once it is shown as silent: its last answer may be younger than the new master."""

    async def look() -> dict[str, Any] | None:
        groups = (await status_of(client))["groups"]
        found = (each for group in groups for each in group["replicas"] if each["address"] == address)
        return next((each for each in found if each["role"] == "silent"), None)

    return await running.cluster.until("silent", look, timeout_s=20)


async def test_a_fail_over_is_seen_at_once(tmp_path: Path) -> None:
    async with Harness(tmp_path, http=True) as running:
        server = running.cluster.name_servers[0]
        async with httpx.AsyncClient(base_url=f"http://{server.http_address}", timeout=30) as client:
            await ready(running, client)
            await status_of(client)
            old = await running.master()
            others = [each for each in running.cluster.brokers if each is not old]
            is_open = asyncio.Event()
            page = asyncio.create_task(shown_at(client, is_open, old.address))
            await asyncio.wait_for(is_open.wait(), 20)
            running.cluster.kill(old)
            async with asyncio.timeout(30):
                served = await serves_at(others)
                seen, group = await page
            assert seen - served < SEEN_WITHIN_S
            assert group["masterEpoch"] == 2
            silent = await shown_silent(running, client, old.address)
            assert silent["problem"] and not silent["isAlive"]
            detail = (await client.get(f"/v1/console/groups/{group['cluster']}/{group['brokerName']}")).json()
            assert detail["elections"][0]["newMasterBrokerId"] == group["masterId"]
            epochs = {each["address"]: each["epochs"] for each in detail["replicas"]}
            assert epochs[old.address] is None
            assert [each["epoch"] for each in epochs[group["masterAddress"]]][-1] == 2


async def test_half_of_the_cluster_is_down(tmp_path: Path) -> None:
    async with Harness(tmp_path, http=True) as running:
        server = running.cluster.name_servers[0]
        master = await running.master()
        gone = [each for each in running.cluster.brokers if each is not master]
        for program in (*gone, *running.cluster.name_servers[1:]):
            await running.cluster.kill_and_wait(program)
        async with httpx.AsyncClient(base_url=f"http://{server.http_address}", timeout=30) as client:
            await ready(running, client)
            status = await status_of(client)
            assert status["tookMs"] < 8_000
            assert status["verdict"] == "failed"
            roles = {
                each["address"]: each["role"] for group in status["groups"] for each in group["replicas"]
            }
            assert roles.get(master.address) in ("master", "slave")
            assert all(roles.get(each.address, "silent") == "silent" for each in gone)
            controllers = [each["role"] for each in status["controllers"]]
            assert controllers.count("silent") == 2
            assert all(each["problem"] for each in status["controllers"] if each["role"] == "silent")
            settings = await client.get(f"/v1/console/settings?server={master.address}")
            assert settings.json()["settings"]["brokerName"] == running.cluster.broker_name
            assert (await client.get("/v1/console/settings?server=127.0.0.1:1")).status_code == 404


def elections_of(directory: Path, user: str) -> list[dict[str, Any]]:
    """Lines of all audit logs about elections that this user asked for."""
    texts = [path.read_text() for path in directory.rglob("audit/*") if path.is_file()]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return [each for each in lines if each.get("code") == 1002 and each.get("user") == user]


@asynccontextmanager
async def secured_cluster(tmp_path: Path) -> AsyncIterator[tuple[Harness, str, ssl.SSLContext]]:
    """Yields the cluster, and the URL and CA of its first console."""
    settings = SAFE | {"minInSyncReplicas": "1"}
    with secured(tmp_path, "KeelCluster") as keys:
        async with Harness(
            tmp_path, brokers=2, broker_settings=settings | keys, namesrv_settings=keys, http=True
        ) as running:
            trusted = ssl.create_default_context(cafile=tmp_path / SECURITY / "ca.crt")
            yield running, f"https://{running.cluster.name_servers[0].http_address}", trusted


async def test_log_in_and_an_election_where_everything_is_on(tmp_path: Path) -> None:
    async with secured_cluster(tmp_path) as (running, base, trusted):
        async with httpx.AsyncClient(base_url=base, timeout=30, verify=trusted, headers=PAGE) as client:
            await ready(running, client)
            assert (await client.get("/v1/console/status")).status_code == 401
            assert (await client.get("/console/")).status_code in (200, 503)
            admin = read_credentials(credentials_path(tmp_path)).credentials
            who = {"user": admin.access_key, "password": "wrong"}
            assert (await client.post("/v1/console/login", json=who)).status_code == 401
            who["password"] = admin.secret_key
            answer = await client.post("/v1/console/login", json=who)
            assert answer.status_code == 200, answer.text
            assert "secure" in answer.headers["set-cookie"].lower()
            assert admin.secret_key not in answer.text + answer.headers["set-cookie"]
            group = (await status_of(client))["groups"][0]
            assert group["masterId"] is not None, group
            slave = next(each for each in group["replicas"] if each["role"] == "slave")
            act = {
                "parameters": {
                    "cluster": group["cluster"],
                    "brokerName": group["brokerName"],
                    "brokerId": slave["brokerId"],
                },
                "confirm": True,
            }
            answer = await client.post("/v1/console/actions/electMaster", json=act)
            assert answer.status_code == 200, answer.text

            async def moved() -> bool | None:
                return (await status_of(client))["groups"][0]["masterId"] == slave["brokerId"] or None

            await running.cluster.until("the new master", moved, timeout_s=START_TIMEOUT_S)

        async def recorded() -> bool | None:
            """Members ask for elections, too; these are of the console, and of the controller."""
            lines = elections_of(tmp_path, admin.access_key)
            return (len(lines) >= 2 and any("console" in each.get("remark", "") for each in lines)) or None

        await running.cluster.until("both lines in the audit logs", recorded, timeout_s=10)
