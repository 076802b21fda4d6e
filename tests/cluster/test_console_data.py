"""The console's data with real processes: who sees what where security is on, and a broker group
that is gone."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.credentials import read_credentials
from cli.lab.secure import credentials_path
from tests.cluster.test_console import PAGE, ready, secured_cluster
from tests.support.harness import TOPIC, Harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]
BASE = "/v1/console"


async def until(
    what: str, look: Callable[[], Awaitable[Any]], timeout_s: float = 40, *, pause_s: float = 0.05
) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := await look():
            return found
        await asyncio.sleep(pause_s)
    raise AssertionError(what)


async def act(client: httpx.AsyncClient, name: str, *, confirm: bool = True, **parameters: Any) -> Any:
    answer = await client.post(f"{BASE}/actions/{name}", json={"parameters": parameters, "confirm": confirm})
    assert answer.status_code in (200, 207), answer.text
    return answer.json()


def at_some(result: Any) -> bool:
    """Servers of one machine share the users file here, so a change at one may be in the way of another's."""
    return any(each["outcome"] == "ok" for each in result["results"])


async def test_a_broker_that_is_gone_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    async with Harness(tmp_path, http=True) as running:
        server = running.cluster.name_servers[0]
        async with httpx.AsyncClient(base_url=f"http://{server.http_address}", timeout=30) as client:
            await ready(running, client)
            running.produce()
            await running.acked(100)
            found = (await client.get(f"{BASE}/messages", params={"topic": TOPIC, "limit": 20})).json()
            assert len(found["messages"]) == 20 and found["next"] and found["problems"] == []
            for program in running.cluster.brokers:
                await running.cluster.kill_and_wait(program)
            began = time.monotonic()
            answer = await client.get(f"{BASE}/messages", params={"topic": TOPIC, "limit": 20})
            assert time.monotonic() - began < 15
            if answer.status_code == 200:  # the name server has not noticed it yet
                assert answer.json()["messages"] == [] and answer.json()["problems"]
            else:
                assert answer.status_code == 404 and TOPIC in answer.json()["detail"]
            topics = await client.get(f"{BASE}/topics")
            assert topics.status_code == 200, topics.text


@asynccontextmanager
async def logged_in(
    base: str, trusted: ssl.SSLContext, who: dict[str, str]
) -> AsyncIterator[httpx.AsyncClient]:
    """Another server may have written the user into the file that they share; this one looks at it each
    second."""
    async with httpx.AsyncClient(base_url=base, timeout=30, verify=trusted, headers=PAGE) as client:

        async def known() -> bool:
            answer = await client.post(f"{BASE}/login", json=who)
            has_no_policy_yet = answer.status_code == 403 and "no matched policies" in answer.text
            assert answer.status_code in (200, 401) or has_no_policy_yet, answer.text
            return answer.status_code == 200

        await until("the login", known, 5, pause_s=1)  # failed ones are limited
        yield client


async def test_who_sees_what_where_security_is_on(tmp_path: Path) -> None:
    """A normal user, made in the console, reads the messages of one topic and of no other. Its password is in
    no answer and in no file of the audit log."""
    async with secured_cluster(tmp_path) as (running, base, trusted):
        admin = read_credentials(credentials_path(tmp_path)).credentials
        cluster: dict[str, Any] = {"cluster": "KeelCluster"}
        secret = "a-long-password-of-bob"
        async with httpx.AsyncClient(base_url=base, timeout=30, verify=trusted, headers=PAGE) as nobody:
            await ready(running, nobody)
            for path in ("topics", "consumers", "producers", f"messages?topic={TOPIC}", "users", "audit"):
                assert (await nobody.get(f"{BASE}/{path}")).status_code == 401, path
        who = {"user": admin.access_key, "password": admin.secret_key}
        async with logged_in(base, trusted, who) as client:
            for topic in ("open", "closed"):
                made = await act(client, "updateTopic", **cluster, topic=topic, readQueues=1, writeQueues=1)
                assert made["done"], made

                async def has_route(topic: str = topic) -> bool:
                    return (await client.get(f"{BASE}/topics/{topic}")).status_code == 200

                await until("the route", has_route)
                sent = await act(client, "sendMessage", topic=topic, body=f"in {topic}", keys="k")
                assert sent["done"], sent
            plan = await act(client, "createUser", confirm=False, **cluster, username="bob", password=secret)
            assert secret not in str(plan) and "--passwordFile FILE" in plan["preview"]["command"]
            made = await act(client, "createUser", **cluster, username="bob", password=secret)
            assert at_some(made), made
            granted: dict[str, Any] = {
                "subject": "User:bob",
                "resources": ["Topic:open", "Cluster:KeelCluster"],
                "actions": ["Sub", "Get"],
            }
            made = await act(client, "updateAcl", **cluster, **granted)
            assert at_some(made), made
            access = await client.get(f"{BASE}/users", params={"q": "bob"})
            assert secret not in access.text
            assert [each["username"] for each in access.json()["users"]] == ["bob"]
            entries = access.json()["acls"][0]["policies"][0]["entries"]
            assert {each["resource"] for each in entries} == {"Topic:open", "Cluster:KeelCluster"}

            async def audited() -> Any:
                answer = await client.get(f"{BASE}/audit", params={"operation": "AUTH_CREATE_USER"})
                return answer.json()["entries"]

            lines = await until("a line of the audit log", audited)
            assert lines[0]["user"] == admin.access_key
        async with logged_in(base, trusted, {"user": "bob", "password": secret}) as bob:
            mine = (await bob.get(f"{BASE}/messages", params={"topic": "open", "key": "k"})).json()
            assert [each["preview"] for each in mine["messages"]] == ["in open"], mine
            for query in ({"topic": "closed", "key": "k"}, {"topic": "closed"}):
                answer = await bob.get(f"{BASE}/messages", params=query)
                assert "in closed" not in answer.text
                assert answer.status_code in (403, 409) or answer.json()["problems"], answer.text
            assert (await bob.get(f"{BASE}/users")).status_code == 403
            assert (await bob.get(f"{BASE}/audit")).status_code == 403
        files = [each.read_text() for each in tmp_path.rglob("audit/*") if each.is_file()]
        assert files and not any(secret in each for each in files)
