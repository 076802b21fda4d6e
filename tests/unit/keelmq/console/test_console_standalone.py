"""keelmq console for a cluster that does not answer: it says so, and with credentials it lets nobody in."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from keelmq.console.standalone import StandaloneConsole, StandaloneOptions
from keelmq.security.signer import Credentials

NOBODY = "127.0.0.1:1"


@asynccontextmanager
async def running(credentials: Credentials | None) -> AsyncIterator[httpx.AsyncClient]:
    options = StandaloneOptions(name_servers=[NOBODY], port=0, credentials=credentials)
    console = StandaloneConsole(options)
    try:
        await console.start()
        base = "http://{}:{}".format(*console.address)
        async with httpx.AsyncClient(base_url=base, timeout=20) as client:
            yield client
    finally:
        await console.stop()


async def test_a_silent_cluster_is_shown_as_such() -> None:
    async with running(None) as client:
        status = (await client.get("/v1/console/status")).json()["status"]
        assert [(each["address"], each["isUp"]) for each in status["nameServers"]] == [(NOBODY, False)]
        assert status["nameServers"][0]["problem"]
        assert status["verdict"] == "failed"
        assert (await client.get("/")).headers["location"] == "console/"


async def test_the_programs_credentials_are_lent_to_nobody() -> None:
    async with running(Credentials("reader", "reads")) as client:
        assert (await client.get("/v1/console/status")).status_code == 401
        basic = await client.get("/v1/console/status", auth=("reader", "reads"))
        assert basic.status_code == 401
        who = {"user": "reader", "password": "reads"}
        answer = await client.post("/v1/console/login", json=who)
        assert (answer.status_code, answer.headers.get("set-cookie")) == (409, None)
        assert "no broker answers" in answer.json()["detail"]
        assert (await client.get("/v1/console/status")).status_code == 401
