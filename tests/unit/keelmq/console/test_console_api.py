"""The console's routes behind a real port: log-in, actions, what an anonymous client gets."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pydantic import Field

from keelmq.console.actions.action import Acting, Action, Parameters, Preview, ServerOutcome
from keelmq.console.console import Console
from keelmq.console.examples import STATUS
from keelmq.console.verifiers import SessionsOnly
from keelmq.remoting.operation import Changes, Peer, Role
from keelmq.remoting.servers.http_access import Unauthenticated
from keelmq.remoting.servers.http_settings import HttpPolicy
from tests.support.console_parts import FakePoller, console_app, events, sources
from tests.support.http_parts import served

GROUP = {"cluster": "DefaultCluster", "brokerName": "broker-a"}
PAGE = {"sec-fetch-site": "same-origin"}


class Change(Parameters):
    name: str
    outcomes: list[str] = Field(default_factory=list)


class OnlyAlice:
    is_required = True

    def __init__(self) -> None:
        self.password = "right"

    async def verify(self, user: str, password: str, peer: Peer) -> None:
        if not await self.is_still_right(user, password):
            raise Unauthenticated("wrong", ["Session"])

    async def is_still_right(self, user: str, password: str) -> bool:
        return (user, password) == ("alice", self.password)


class Recorder:
    def __init__(self) -> None:
        self.seen: list[tuple[int, str, int, dict[str, str]]] = []

    def wants(self, code: int) -> bool:
        return True

    def record(
        self, request: Any, peer: Peer, caller: Any, *, code: int, remark: str, changes: Changes
    ) -> None:
        self.seen.append((request.code, caller.user, code, dict(request.ext_fields)))

    def refused(self, what: str, *, address: str, is_tls: bool, remark: str) -> None:
        raise AssertionError(what)


class ConsoleApi:
    """A console with one action that records who asked for it."""

    def __init__(self, **changed: Any) -> None:
        self.asked = FakePoller()
        self.console = Console(sources(**changed), self.asked)
        self.audit = Recorder()
        self.users: list[tuple[str, str | None]] = []
        self.app, self.access = console_app(self.console, OnlyAlice(), [self.action()], audit=self.audit)
        self.policy = HttpPolicy(access=SessionsOnly(self.access.user_of))

    def action(self) -> Action[Change]:
        async def preview(acting: Acting, asked: Change) -> Preview:
            acting.group("DefaultCluster", asked.name)
            return Preview(what=f"changes {asked.name}", servers=["a"], command="mqadmin change")

        async def run(acting: Acting, asked: Change) -> list[ServerOutcome]:
            credentials = acting.admin.credentials
            self.users.append((acting.user, None if credentials is None else credentials.access_key))
            return [ServerOutcome(server="a", outcome=each, remark="why") for each in asked.outcomes]

        return Action(
            "change", "changes", "Changes.", Change, Role.ADMINISTER, 25, preview, run, {"name": "broker-a"}
        )

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        async with served(self.app, self.policy) as client:
            try:
                yield client
            finally:
                await self.console.stop()


async def log_in(client: httpx.AsyncClient, password: str = "right", **headers: str) -> httpx.Response:
    who = {"user": "alice", "password": password}
    return await client.post("/v1/console/login", json=who, headers={**PAGE, **headers})


async def test_an_anonymous_client_sees_nothing_but_that_a_log_in_is_needed() -> None:
    console_api = ConsoleApi()
    async with console_api.client() as client:
        for path in ("status", "events", "history?group=a/b", "actions"):
            answer = await client.get(f"/v1/console/{path}")
            assert answer.status_code == 401, path
            # "Basic" would make a browser ask for a password by itself.
            assert answer.headers["www-authenticate"].startswith("Session")
        assert (await client.post("/v1/console/actions/change", json={})).status_code == 401
        session = (await client.get("/v1/console/session")).json()
        assert (session["user"], session["loginRequired"]) == (None, True)
    assert console_api.asked.polls == 0


async def test_a_session_lasts_until_the_log_out() -> None:
    async with ConsoleApi().client() as client:
        assert (await log_in(client, "wrong")).status_code == 401
        answer = await log_in(client)
        assert answer.json()["user"] == "alice"
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "right" not in cookie
        status = (await client.get("/v1/console/status")).json()
        assert status["status"] == json.loads(STATUS.model_dump_json(by_alias=True))
        kept = dict(client.cookies)
        assert (await client.post("/v1/console/logout", headers=PAGE)).json()["user"] is None
        client.cookies.update(kept)
        assert (await client.get("/v1/console/status")).status_code == 401


async def test_a_cookie_opens_nothing_but_the_console() -> None:
    async with ConsoleApi().client() as client:
        await log_in(client)
        assert (await client.get("/openapi.json")).status_code == 401


async def test_wrong_passwords_are_limited() -> None:
    async with ConsoleApi().client() as client:
        codes = [(await log_in(client, "wrong")).status_code for _ in range(25)]
        assert codes[0] == 401
        assert codes[-1] == 429
        assert (await log_in(client)).status_code == 429


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}])
async def test_a_page_of_another_site_can_neither_log_in_nor_act(headers: dict[str, str]) -> None:
    console_api = ConsoleApi()
    async with console_api.client() as client:
        await log_in(client)
        act = {"parameters": {"name": "broker-a", "outcomes": ["ok"]}, "confirm": True}
        answer = await client.post("/v1/console/actions/change", json=act, headers=headers)
        assert answer.status_code == 403
        assert (
            await client.post("/v1/console/login", json={"user": "a", "password": "b"}, headers=headers)
        ).status_code == 403
    assert console_api.users == []


async def test_a_preview_changes_nothing_and_a_confirmed_action_is_the_users_own() -> None:
    console_api = ConsoleApi()
    async with console_api.client() as client:
        await log_in(client)
        body: dict[str, Any] = {"parameters": {"name": "broker-a", "outcomes": ["ok"]}}
        answer = await client.post("/v1/console/actions/change", json=body, headers=PAGE)
        assert answer.json()["preview"]["command"] == "mqadmin change"
        assert (answer.json()["confirmed"], console_api.users, console_api.audit.seen) == (False, [], [])
        answer = await client.post("/v1/console/actions/change", json={**body, "confirm": True}, headers=PAGE)
        assert (answer.status_code, answer.json()["done"]) == (200, True)
    assert console_api.users == [("alice", "alice")]
    assert console_api.audit.seen == [(25, "alice", 0, {"name": "broker-a"})]


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [(["ok", "refused"], 207), (["refused", "silent"], 409), (["refused", "unknown"], 504)],
)
async def test_the_status_says_how_much_was_done(outcomes: list[str], code: int) -> None:
    async with ConsoleApi().client() as client:
        await log_in(client)
        body = {"parameters": {"name": "broker-a", "outcomes": outcomes}, "confirm": True}
        answer = await client.post("/v1/console/actions/change", json=body, headers=PAGE)
        assert (answer.status_code, answer.json()["done"]) == (code, False)
        assert [each["outcome"] for each in answer.json()["results"]] == outcomes
        if code >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert (answer.json()["status"], answer.json()["detail"]) == (code, "a: why; a: why")


async def test_bad_parameters_say_what_is_wrong() -> None:
    async with ConsoleApi().client() as client:
        await log_in(client)
        for parameters, code in (({}, 422), ({"name": "x", "nmae": 1}, 422), ({"name": "x"}, 404)):
            answer = await client.post("/v1/console/actions/change", json={"parameters": parameters})
            assert answer.status_code == code
        assert "known: DefaultCluster/broker-a" in answer.json()["detail"]


async def test_read_only_shows_previews_and_does_nothing() -> None:
    console_api = ConsoleApi(read_only=True)
    async with console_api.client() as client:
        await log_in(client)
        assert (await client.get("/v1/console/actions")).json()["readOnly"]
        body: dict[str, Any] = {"parameters": {"name": "broker-a", "outcomes": ["ok"]}}
        assert (await client.post("/v1/console/actions/change", json=body)).status_code == 200
        answer = await client.post("/v1/console/actions/change", json={**body, "confirm": True})
        assert answer.status_code == 403
    assert console_api.users == []


async def test_history_and_events_over_http() -> None:
    async with ConsoleApi().client() as client:
        await log_in(client)
        async with client.stream("GET", "/v1/console/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            seen: list[str] = []
            async for line in answer.aiter_lines():
                seen.append(line)
                if found := list(events(seen)):
                    break
        assert found[0][0] == "status"
        assert json.loads(found[0][1])["groups"][0]["brokerName"] == "broker-a"
        query = f"group=DefaultCluster/broker-a&from=1&to={STATUS.taken_ms + 1}"
        history = (await client.get(f"/v1/console/history?{query}")).json()
        assert history["values"]["masterId"] == [1]
        assert (await client.get("/v1/console/history?group=a/b")).status_code == 404
        assert (await client.get("/v1/console/history?group=ab")).status_code == 422
