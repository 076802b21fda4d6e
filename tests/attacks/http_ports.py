"""Attacks on the HTTP ports: without a token, with a wrong one, out of a browser, and with paths."""

import asyncio
import base64
import hashlib
import json
import re
from typing import Any, Final

from keelmq.remoting.servers.http_call import CODE
from tests.attacks.attacker import Attacker
from tests.attacks.frames import Answer, Identity
from tests.attacks.judging import answered_by_http
from tests.attacks.line import GONE
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import ADMIN, BROKER_NAME, DISABLED, MALLORY, ORDERS, TOKENS, UNKNOWN

SETTINGS: Final = "settings"
CONTROL: Final = "who is the master"
FORBIDDEN: Final = "401"
WEB_PAGE: Final = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
CHANGE: Final = {"supportActingMaster": False}
OPERATIONS_MIN: Final = 60
"""Fewer in the OpenAPI document of a broker: the attack has not tried what it says."""


def basic(who: Identity, secret: str | None = None) -> dict[str, str]:
    """Returns the header of Basic authentication."""
    text = f"{who.name}:{who.secret if secret is None else secret}"
    return {"authorization": "Basic " + base64.b64encode(text.encode()).decode()}


def http_request(
    id: str,
    name: str,
    server: str,
    method: str,
    path: str,
    *,
    asset: str,
    answer: str = FORBIDDEN,
    open: bool = True,
    **options: Any,
) -> None:
    """Declares an attack of one HTTP request, which succeeds unless it is refused."""

    async def how(attacker: Attacker) -> Outcome:
        return answered_by_http(await attacker.http(server, method, path, **options))

    success = "the server answers anything but a refusal"
    attack(id, name, asset=asset, success=success, answer=answer, open=open)(how)


for server in ("namesrv", "controller", "broker"):
    path = "/v1/haStatus" if server == "broker" else "/v1/config"
    http_request(f"http/{server}", f"reads {path} of the {server}", server, "GET", path, asset=SETTINGS)

http_request("http/groups", "reads who is the master", "controller", "GET", "/v1/groups", asset=CONTROL)
http_request(
    "http/health",
    "reads the state of the controller's log and its members",
    "controller",
    "GET",
    "/v1/health",
    asset=CONTROL,
)
http_request("http/routes", "reads all routes", "namesrv", "GET", "/v1/routes", asset="topics and groups")
http_request(
    "http/state",
    "exports the state of the controllers",
    "controller",
    "GET",
    "/v1/controller/state",
    asset=CONTROL,
)
http_request(
    "http/import-state",
    "imports another state of the controllers",
    "controller",
    "POST",
    "/v1/controller/state",
    json={},
    asset=CONTROL,
)
http_request(
    "http/patch-settings",
    "changes settings of the name server",
    "namesrv",
    "PATCH",
    "/v1/config",
    json=CHANGE,
    asset=SETTINGS,
)
http_request(
    "http/dry-election",
    "asks whom the controller would elect",
    "controller",
    "POST",
    f"/v1/groups/{BROKER_NAME}/elect",
    json={"dryRun": True},
    asset=CONTROL,
)
http_request(
    "http/operation",
    "posts a request of RocketMQ's protocol: deletes a key of the name server (102)",
    "namesrv",
    "POST",
    "/v1/deleteKVConfig",
    json={"namespace": "n", "key": "k"},
    asset=SETTINGS,
)
http_request("http/dashboard", "opens the dashboard", "namesrv", "GET", "/v1/analytics/fleet", asset=CONTROL)
http_request(
    "http/forged-token",
    "shows a token that it has made itself",
    "namesrv",
    "GET",
    "/v1/config",
    headers={"authorization": "Bearer " + base64.b64encode(b'{"sub":"rocketmq-admin"}').decode() + ".AAAA"},
    asset=SETTINGS,
)
http_request(
    "http/empty-token",
    "shows an empty token",
    "namesrv",
    "GET",
    "/v1/config",
    headers={"authorization": "Bearer"},
    asset=SETTINGS,
)
http_request(
    "http/wrong-password",
    "Basic with the administrator's name and a wrong password",
    "namesrv",
    "GET",
    "/v1/config",
    headers=basic(ADMIN, "guessed"),
    asset=SETTINGS,
)
http_request(
    "http/empty-password",
    "Basic with the administrator's name and no password",
    "namesrv",
    "GET",
    "/v1/config",
    headers=basic(ADMIN, ""),
    asset=SETTINGS,
)
http_request(
    "http/unknown-user",
    "Basic with a user that does not exist",
    "namesrv",
    "GET",
    "/v1/config",
    headers=basic(UNKNOWN),
    asset=SETTINGS,
)
http_request(
    "http/disabled-user",
    "Basic with a user that is disabled",
    "namesrv",
    "GET",
    "/v1/config",
    headers=basic(DISABLED),
    asset=SETTINGS,
)
http_request(
    "http/other-user",
    "Basic with a user who has rights to topics only",
    "namesrv",
    "PATCH",
    "/v1/config",
    json=CHANGE,
    headers=basic(MALLORY),
    asset=SETTINGS,
    answer="403",
)
http_request(
    "http/read-token",
    "changes settings with a token that may read",
    "namesrv",
    "PATCH",
    "/v1/config",
    json=CHANGE,
    headers={"authorization": f"Bearer {TOKENS['read']}"},
    asset=SETTINGS,
    answer="403",
)
http_request(
    "http/operate-token",
    "elects a master with a token that may change topics",
    "controller",
    "POST",
    f"/v1/groups/{BROKER_NAME}/elect",
    json={"dryRun": False},
    headers={"authorization": f"Bearer {TOKENS['operate']}"},
    asset=CONTROL,
    answer="403",
)
http_request(
    "http/member-by-token",
    "registers a broker with a token, which only members may (103)",
    "namesrv",
    "POST",
    "/v1/registerBroker",
    json={"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": 0},
    headers={"authorization": f"Bearer {TOKENS['operate']}"},
    asset=CONTROL,
    answer="403",
)
http_request(
    "http/member-by-password",
    "registers a broker with the administrator's password, which only members may (103)",
    "namesrv",
    "POST",
    "/v1/registerBroker",
    json={"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": 0},
    headers=basic(ADMIN),
    asset=CONTROL,
    answer="403",
)
http_request(
    "http/token-hash",
    "shows the hash of a token, which it has read in the file",
    "namesrv",
    "GET",
    "/v1/config",
    headers={"authorization": "Bearer sha256:" + hashlib.sha256(TOKENS["read"].encode()).hexdigest()},
    asset=SETTINGS,
)
http_request(
    "http/token-in-path",
    "has a token in the address, where logs and pages show it",
    "namesrv",
    "GET",
    f"/v1/config?access_token={TOKENS['read']}&token={TOKENS['read']}",
    asset=SETTINGS,
)
http_request(
    "http/metrics",
    "reads the metrics, with the names of topics and groups",
    "broker",
    "GET",
    "/metrics",
    asset="topics and groups",
)
http_request(
    "http/openapi", "reads the description of all routes", "namesrv", "GET", "/openapi.json", asset=SETTINGS
)
http_request(
    "http/two-credentials",
    "sends two headers with credentials: wrong ones, and none",
    "namesrv",
    "GET",
    "/v1/config",
    headers=[("authorization", basic(ADMIN, "guessed")["authorization"]), ("authorization", "")],
    asset=SETTINGS,
)
http_request(
    "http/header-as-peer",
    "claims to be a member, by X-Forwarded-For and headers with certificates",
    "namesrv",
    "GET",
    "/v1/config",
    headers={
        "x-forwarded-for": "127.0.0.1",
        "x-real-ip": "127.0.0.1",
        "x-ssl-client-verify": "SUCCESS",
        "x-ssl-client-s-dn": "CN=cluster-member",
    },
    asset=SETTINGS,
)


async def every_operation(attacker: Attacker, headers: dict[str, str]) -> Outcome:
    """Posts the example of each operation in the broker's OpenAPI document, until one is not refused."""
    known = basic(ADMIN) if attacker.stage.is_closed else {}
    document = json.loads((await attacker.http("broker", "GET", "/openapi.json", headers=known)).body)
    tried, answer = 0, Answer(0)
    for path, methods in document["paths"].items():
        if CODE in methods.get("post", {}):
            example = methods["post"]["requestBody"]["content"]["application/json"]["example"]
            sent = {"topic": ORDERS, **example}  # 323 need not name it; most others ignore it
            answer = await attacker.http("broker", "POST", path, json=sent, headers=headers)
            if (outcome := answered_by_http(answer)).succeeded:
                return Outcome(True, f"{path}: {outcome.answer}")
            tried += 1
    return Outcome(tried < OPERATIONS_MIN, f"{tried} operations, the last one: {answer}")


@attack(
    "http/broker-operations",
    "posts every operation that the broker serves over HTTP",
    asset="topics, groups, users and settings",
    success="one of them is not refused",
    answer=FORBIDDEN,
)
async def broker_operations(attacker: Attacker) -> Outcome:
    return await every_operation(attacker, {})


@attack(
    "http/broker-operations-as-user",
    "a user with rights to other topics posts every operation that the broker serves over HTTP",
    asset="topics, groups, users and settings",
    success="one of them is not refused",
    answer="403",
)
async def broker_operations_as_user(attacker: Attacker) -> Outcome:
    return await every_operation(attacker, basic(MALLORY))


@attack(
    "http/basic-over-plain",
    "lets the administrator's password cross the network in clear: Basic without TLS",
    asset="the administrator's password",
    success="the server answers over plain HTTP",
    answer="closed",
)
async def basic_over_plain(attacker: Attacker) -> Outcome:
    return answered_by_http(
        await attacker.http("namesrv", "GET", "/v1/config", headers=basic(ADMIN), scheme="http")
    )


@attack(
    "http/cross-origin-post",
    "a web page of another site posts with the administrator's stored Basic credentials",
    asset=CONTROL,
    success="the request is carried out",
    answer="403",
    open=False,
)
async def cross_origin_post(attacker: Attacker) -> Outcome:
    headers = {**WEB_PAGE, **basic(ADMIN), "content-type": "text/plain"}
    body = json.dumps({"namespace": "n", "key": "k"}).encode()
    return answered_by_http(
        await attacker.http("namesrv", "POST", "/v1/deleteKVConfig", content=body, headers=headers)
    )


@attack(
    "http/cross-origin-patch",
    "a web page of another site changes settings with the administrator's stored Basic credentials",
    asset=SETTINGS,
    success="the setting is changed",
    answer="403",
    open=False,
)
async def cross_origin_patch(attacker: Attacker) -> Outcome:
    headers = {**WEB_PAGE, **basic(ADMIN)}
    return answered_by_http(
        await attacker.http("namesrv", "PATCH", "/v1/config", json=CHANGE, headers=headers)
    )


async def rebound(attacker: Attacker, method: str, **options: Any) -> Answer:
    """A request of a page of evil.example, whose name has just been given our address: for the browser it is
    of the same origin, and it sends the credentials that it has for this address."""
    port = attacker.stage.http_addresses["namesrv"].rpartition(":")[2]
    host = f"evil.example:{port}"
    scheme = "https" if attacker.stage.is_closed else "http"
    headers = {"host": host, "origin": f"{scheme}://{host}", "sec-fetch-site": "same-origin", **basic(ADMIN)}
    return await attacker.http("namesrv", method, "/v1/config", headers=headers, **options)


@attack(
    "http/readyz",
    "reads addresses, members or the state of parts from /readyz, which is open to everybody",
    asset=CONTROL,
    success="an answer has more than whether it is ready, and short reasons",
    open=False,
)
async def readyz(attacker: Attacker) -> Outcome:
    told = Answer(0)
    for server in ("namesrv", "controller", "broker"):
        told = await attacker.http(server, "GET", "/readyz")
        shown = json.loads(told.body)
        others = shown.keys() - {"ready", "reasons", "title", "status", "detail"}
        if others or re.search(r":\d|/", " ".join(shown["reasons"])):
            return Outcome(True, f"{server}: {told.body.decode()}"[:160])
    return Outcome(False, str(told))


@attack(
    "http/rebinding-patch",
    "DNS rebinding: a page of evil.example, which now has our address, changes settings",
    asset=SETTINGS,
    success="the setting is changed",
    answer="403",
    open=False,
)
async def rebinding_patch(attacker: Attacker) -> Outcome:
    return answered_by_http(await rebound(attacker, "PATCH", json=CHANGE))


@attack(
    "http/rebinding-read",
    "DNS rebinding: a page of evil.example, which now has our address, reads settings",
    asset=SETTINGS,
    success="the page gets the settings",
    answer="403",
    open=False,
)
async def rebinding_read(attacker: Attacker) -> Outcome:
    return answered_by_http(await rebound(attacker, "GET"))


HEAD: Final = f"Host: localhost\r\nAuthorization: {basic(ADMIN)['authorization']}\r\n"
"""Header lines of an administrator: what is attacked comes after the check of users."""


@attack(
    "http/paths",
    "asks for files outside of the web pages, as administrator: ../, encoded, absolute",
    asset="files of the machine",
    success="an answer has a file in it",
    open=False,
)
async def paths(attacker: Attacker) -> Outcome:
    answer = Answer(0)
    for path in (
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/dashboard/..%2f..%2fetc",
    ):
        for server in ("namesrv", "broker"):
            answer = await _raw(attacker, server, f"GET {path} HTTP/1.1\r\n{HEAD}\r\n".encode())
            if b"root:" in answer.body:
                return Outcome(True, path)
    return Outcome(False, str(answer))


async def _raw(attacker: Attacker, server: str, data: bytes) -> Answer:
    """Bytes as they are, since HTTP libraries normalise paths."""
    attacker.stage.addresses[f"http of {server}"] = attacker.stage.http_addresses[server]
    try:
        async with attacker.dial(f"http of {server}") as line:
            await line.send(data)
            got = await line.read(12)
            rest = b""
            while not rest.endswith(b"\r\n\r\n") and len(rest) < 65_536:
                rest += await line.read(1)
            return Answer(int(got.split()[1]), got.decode(), {}, got + rest + await line.read(_length(rest)))
    except (*GONE, TimeoutError, asyncio.IncompleteReadError):
        return Answer(-1, "connection closed")


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


@attack(
    "http/smuggling",
    "hides a second request in the body of the first one: two lengths",
    asset=CONTROL,
    success="the server answers two requests",
    open=False,
)
async def smuggling(attacker: Attacker) -> Outcome:
    hidden = f"GET /v1/config HTTP/1.1\r\n{HEAD}\r\n".encode()
    head = (
        b"POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    data = head % (5 + len(hidden)) + b"0\r\n\r\n" + hidden
    attacker.stage.addresses["http of namesrv"] = attacker.stage.http_addresses["namesrv"]
    got = b""
    try:
        async with attacker.dial("http of namesrv") as line:
            await line.send(data)
            while len(got) < 65_536:
                got += await line.read(1, 2.0)
    except (*GONE, TimeoutError):
        pass
    statuses = got.count(b"HTTP/1.1 ")
    leaked = b"supportActingMaster" in got
    return Outcome(leaked and statuses > 1, f"{statuses} answers, {got[9:12].decode()}")
