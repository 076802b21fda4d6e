"""The guard of an HTTP port: Host and origin, read-only ports, headers, and routes that declare no role."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import fastapi
import httpx
import pytest

from keelmq.remoting.operation import ANYBODY, Caller, Empty, Operation, OperationTable, Peer, Role
from keelmq.remoting.operation import Request as WireRequest
from keelmq.remoting.operations.health import Health
from keelmq.remoting.servers.health import add_health
from keelmq.remoting.servers.http import http_router
from keelmq.remoting.servers.http_access import Forbidden, Unauthenticated
from keelmq.remoting.servers.http_app import new_app
from keelmq.remoting.servers.http_call import needs
from keelmq.remoting.servers.http_guard import HEADERS, HttpGuard
from keelmq.remoting.servers.http_hosts import AllowedHosts, host_of, names_of
from keelmq.remoting.servers.http_settings import HttpConfig, http_policy
from keelmq.runtime.config import ConfigError, load_config
from tests.support.http_parts import served
from tests.support.server_parts import until

BROWSER = {"user-agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0", "accept-language": "en"}


class Recorded:
    """An app with a view, two operations, and what has run."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.table = OperationTable()
        for name, code in (("change", 318), ("look", 319)):
            self.table.bind(Operation(code, name, Empty, Empty), self._handler(name))
        self.app = new_app("test")
        add_health(self.app, health=lambda: Health(ready=True), example=Health(ready=True))
        self.app.include_router(
            http_router(self.table, lambda code: Role.ADMINISTER if code == 318 else Role.READ)
        )

        @self.app.get("/view", openapi_extra=needs(Role.READ))
        async def view() -> str:
            self.ran.append("view")
            return "seen"

    def _handler(self, name: str):  # type: ignore[no-untyped-def]
        async def handler(_: Empty, __: object) -> Empty:
            self.ran.append(name)
            return Empty()

        return handler


def config(**settings: object) -> HttpConfig:
    return HttpConfig.model_validate(settings)


async def status(of: httpx.AsyncClient, method: str, path: str, **headers: str) -> int:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return (await of.request(method, path, headers=sent)).status_code


# -- Host ----------------------------------------------------------------------------------------------------

OURS = [
    "127.0.0.1:19876",
    "127.0.0.1",
    "[::1]:19876",
    "[fe80::1%eth0]",
    "localhost",
    "LocalHost.:1",
    "a.localhost",
]
OURS += [socket.gethostname(), "bound.example.org", "console.example.com:443", "mq.prod.svc.cluster.local"]
STRANGE = [
    "evil.example",
    "evil.example:19876",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "example.com",
]
STRANGE += [
    socket.gethostname() + ".evil.example",
    "a b",
    "[::1",
    "evil.example/127.0.0.1",
    "user@localhost",
    "",
]


@pytest.mark.parametrize("host", OURS + STRANGE)
async def test_a_change_needs_a_host_of_ours(host: str) -> None:
    recorded = Recorded()
    allowed = config(httpAllowedHosts="console.example.com, *.svc.cluster.local")
    async with served(recorded.app, http_policy(allowed, "bound.example.org")) as client:
        answer = await client.post("/v1/change", headers={"host": host})
    assert answer.status_code == (200 if host in OURS else 403), answer.text
    assert recorded.ran == (["change"] if host in OURS else [])
    if host in STRANGE:
        assert "httpAllowedHosts" in answer.json()["detail"]


@pytest.mark.parametrize("sent", [{name: value} for name, value in BROWSER.items()] + [
    {"referer": "http://evil.example/"}, {"origin": "http://evil.example"}, {"sec-fetch-site": "same-origin"},
    {"cookie": "a=b"}, BROWSER,
])  # fmt: skip
async def test_a_page_that_has_rebound_its_name_reads_nothing(sent: dict[str, str]) -> None:
    recorded = Recorded()
    async with served(recorded.app, http_policy(config())) as client:
        strange = await client.get("/view", headers={"host": "evil.example:19876", **sent})
        assert (strange.status_code, recorded.ran) == (403, [])
        assert (await client.get("/view", headers=sent)).status_code == 200
        for path, wanted in (("/metrics", 403), ("/livez", 200), ("/readyz", 200)):
            answer = await client.get(path, headers={"host": "evil.example", **sent})
            assert answer.status_code == wanted


async def test_programs_may_read_under_any_name() -> None:
    """Prometheus and probes come by the names of Kubernetes services."""
    async with served(Recorded().app, http_policy(config())) as client:
        for path in ("/view", "/metrics", "/livez", "/readyz"):
            assert await status(client, "GET", path, host="keelmq-0.keelmq.prod.svc:19876") == 200


async def test_any_host_may_be_allowed() -> None:
    async with served(Recorded().app, http_policy(config(httpAllowedHosts="*"))) as client:
        assert await status(client, "POST", "/v1/change", host="evil.example") == 200


async def raw_status(of: httpx.AsyncClient, *lines: str) -> bytes:
    """The first line of the answer to a change that is sent in these lines, with Connection: close."""
    reader, writer = await asyncio.open_connection(of.base_url.host, of.base_url.port)
    text = "\r\n".join((*lines, "Connection: close", "Content-Length: 0", "", ""))
    writer.write(text.encode())
    try:
        return await reader.readline()
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "hosts", [["evil.example", "localhost"], ["localhost", "evil.example"], [], ["localhost", "localhost"]]
)
async def test_every_host_must_be_ours_and_there_must_be_one(hosts: list[str]) -> None:
    recorded, lines = Recorded(), [f"Host: {host}" for host in hosts]
    async with served(recorded.app, http_policy(config())) as client:
        answer = await raw_status(client, "POST /v1/change HTTP/1.0", *lines)
    is_ours = set(hosts) == {"localhost"}
    assert (b" 200 " if is_ours else b" 403 ") in answer
    assert recorded.ran == (["change"] if is_ours else [])


async def test_of_two_credentials_the_last_counts() -> None:
    recorded = Recorded()
    good, bad = "Authorization: Bearer reader", "Authorization: Bearer other"
    async with served(recorded.app, http_policy(config(), access=Readers())) as client:
        for lines, wanted in (([good, bad], b" 401 "), ([bad, good], b" 200 ")):
            assert wanted in await raw_status(client, "POST /v1/look HTTP/1.1", "Host: localhost", *lines)


async def test_a_body_without_a_length_ends_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq.remoting.servers.http_guard.FRAME_BYTES_MAX", 1_000)
    recorded, json = Recorded(), {"content-type": "application/json"}

    async def pieces(count: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            yield b" " * 100
        yield b"{}"

    async with served(recorded.app, http_policy(config())) as client:
        assert (await client.post("/v1/change", content=pieces(9), headers=json)).status_code == 200
        assert recorded.ran == ["change"]
        with contextlib.suppress(httpx.TransportError):
            assert (await client.post("/v1/change", content=pieces(11), headers=json)).status_code == 413
    assert recorded.ran == ["change"]


def test_names_of_a_machine() -> None:
    assert names_of("Web.example.org.") == {"web.example.org", "web"}
    pod = "mq-0.mq.prod.svc.cluster.local"
    service = {"mq", "mq.prod.svc", "mq.prod.svc.cluster.local"}
    assert names_of(pod) == {pod, "mq-0", "mq-0.mq", "mq-0.mq.prod.svc", *service}
    assert names_of("web.svc.example.org") == {"web.svc.example.org", "web"}
    assert names_of("svc") == {"svc"}
    assert [host_of(each) for each in (b"A:1", b"[::1]:2", b"a:b", b"", b".")] == [
        "a",
        "::1",
        None,
        None,
        None,
    ]


async def test_the_full_name_of_the_machine_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "mq-0.mq.prod.svc.cluster.local")
    hosts = AllowedHosts()
    hosts.look_up()
    await until(lambda: "mq.prod.svc" in hosts, "found out")
    assert not any(host in hosts for host in ("mq-0.other", "mq.prod", "mq-0.mq.prod"))


# -- origin --------------------------------------------------------------------------------------------------

ORIGINS: Sequence[tuple[dict[str, str], int]] = [
    ({"origin": "https://console.example.org"}, 200),
    ({"origin": "HTTPS://Console.example.org", "sec-fetch-site": "cross-site"}, 200),
    ({"origin": "https://console.example.org:8443"}, 403),
    ({"origin": "http://console.example.org"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": ""}, 403),
    ({"origin": "http://{host}", "sec-fetch-site": "cross-site"}, 403),
    ({"sec-fetch-site": "same-origin"}, 200),
    ({"sec-fetch-site": "none"}, 200),
    ({"sec-fetch-site": "same-site"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403),
]


async def test_pages_of_a_reverse_proxy() -> None:
    allowed = config(httpAllowedOrigins="https://console.example.org;https://other.example.org")
    async with served(Recorded().app, http_policy(allowed)) as client:
        for headers, wanted in ORIGINS:
            host = client.base_url.netloc.decode()
            sent = {name: value.replace("{host}", host) for name, value in headers.items()}
            answer = await client.post("/v1/change", headers=sent)
            assert answer.status_code == wanted, (headers, answer.text)
    assert "httpAllowedOrigins" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("httpAllowedHosts", "http://a.example.org"),
        ("httpAllowedHosts", "a.example.org:80"),
        ("httpAllowedHosts", "a.*.org"),
        ("httpAllowedOrigins", "a.example.org"),
        ("httpAllowedOrigins", "https://a.example.org/"),
        ("httpAllowedOrigins", "*"),
    ],
)
def test_bad_lists_are_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}.*is not"):
        load_config(HttpConfig, path=None, environ={}, overrides={key: value})


# -- read-only -----------------------------------------------------------------------------------------------


async def test_a_read_only_port_changes_nothing() -> None:
    recorded = Recorded()

    @recorded.app.post("/undeclared")
    async def undeclared() -> None:
        recorded.ran.append("undeclared")

    async with served(recorded.app, http_policy(config(httpReadOnly=True))) as client:
        for path in ("/v1/change", "/undeclared"):
            answer = await client.post(path)
            assert answer.status_code == 403 and "httpReadOnly" in answer.json()["detail"]
        assert (await client.post("/v1/look")).status_code == 200
        assert (await client.get("/view")).status_code == 200
    assert recorded.ran == ["look", "view"]


async def test_who_needs_no_credentials_may_send_little() -> None:
    """A log-in is small; an anonymous client's 16 MiB would be read before anybody knows who they are."""
    for access, wanted in ((Readers(), 413), (None, 405)):
        async with served(Recorded().app, http_policy(config(), access=access)) as client:
            assert (await client.post("/livez", content=b"x" * 20_000)).status_code == wanted


# -- headers -------------------------------------------------------------------------------------------------


async def test_every_response_has_the_security_headers() -> None:
    async with served(Recorded().app, http_policy(config())) as client:
        answers = [
            await client.get("/livez"),
            await client.get("/metrics"),
            await client.get("/nothing"),
            await client.get("/openapi.json"),
            await client.post("/v1/change", json=[]),
            await client.post("/v1/change", headers={"host": "evil.example"}),
        ]
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        writer.write(b"POST /v1/change HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    assert [answer.status_code for answer in answers] == [200, 200, 404, 200, 422, 403]
    assert b" 413 " in head and all(b"%s: %s\r\n" % each in head for each in HEADERS.items())
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name.decode()] == value.decode(), (answer.url, name)
        assert "server" not in answer.headers


# -- roles ---------------------------------------------------------------------------------------------------


class Readers:
    """HttpAccess that knows one reader."""

    def authenticate(self, authorization: str | None, peer: Peer) -> Caller:
        if authorization != "Bearer reader":
            raise Unauthenticated("who are you?", ["Bearer", "Basic"])
        return ANYBODY

    def check_role(self, caller: Caller, role: Role, peer: Peer) -> None:
        if role > Role.READ:
            raise Forbidden("readers only read")

    def admit(self, caller: Caller, request: WireRequest, peer: Peer) -> Caller:
        self.check_role(caller, Role.ADMINISTER if request.code == 318 else Role.READ, peer)
        return caller


async def test_a_route_without_a_role_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    recorded = Recorded()
    routes = fastapi.APIRouter()

    @routes.get("/undeclared")
    @routes.post("/undeclared")
    async def undeclared() -> str:
        recorded.ran.append("undeclared")
        return "secret"

    async def mounted(scope: object, receive: object, send: object) -> None:
        await fastapi.Response("secret")(scope, receive, send)  # type: ignore[arg-type]

    recorded.app.include_router(routes)
    recorded.app.mount("/mounted", mounted)
    reader = {"authorization": "Bearer reader"}
    async with served(recorded.app, http_policy(config(), access=Readers())) as client:
        with caplog.at_level(logging.ERROR):
            for method, path in (("GET", "/undeclared"), ("POST", "/undeclared"), ("GET", "/mounted/")):
                answer = await client.request(method, path, headers=reader)
                assert answer.status_code == 403 and "secret" not in answer.text
                assert answer.headers["x-content-type-options"] == "nosniff"
        assert recorded.ran == []
        assert (await client.get("/view", headers=reader)).status_code == 200
        assert (await client.get("/nothing", headers=reader)).status_code == 404
        assert (await client.get("/nothing")).status_code == 401
        assert (await client.post("/v1/look", headers=reader)).status_code == 200
        assert (await client.post("/v1/change", headers=reader)).status_code == 403
    assert recorded.ran == ["view", "look"]


async def test_nothing_of_a_withheld_answer_is_sent() -> None:
    async def mounted(scope: object, receive: object, send: object) -> None:
        await fastapi.Response("secret")(scope, receive, send)  # type: ignore[arg-type]

    recorded, sent = Recorded(), list[Any]()
    recorded.app.mount("/mounted", mounted)
    guard = HttpGuard(recorded.app, http_policy(config(), access=Readers()))

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {
        "type": "http", "method": "GET", "path": "/mounted/", "raw_path": b"/mounted/", "query_string": b"",
        "root_path": "", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        "headers": [(b"host", b"localhost"), (b"authorization", b"Bearer reader")],
    }  # fmt: skip
    await guard(scope, receive, send)
    start, *bodies = sent
    assert start["status"] == 403
    assert len(bodies) == 1 and b"declares no role" in bodies[0]["body"]


async def test_an_anonymous_client_is_told_how_to_authenticate_before_the_body_is_read() -> None:
    recorded = Recorded()
    async with served(recorded.app, http_policy(config(), access=Readers())) as client:
        answer = await client.post("/v1/change", content=b"not JSON")
        assert answer.status_code == 401
        assert answer.headers.get_list("www-authenticate") == ["Bearer", "Basic"]
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json() == {
            "title": "Unauthorized", "status": 401, "detail": "who are you?", "code": 16,
        }  # fmt: skip
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await client.get(path)).status_code == 200
        for path in ("/livez/", "/v1/health"):
            assert (await client.get(path)).status_code == 401
    closed = http_policy(config(httpMetricsOpen=False), access=Readers())
    async with served(recorded.app, closed) as client:
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers={"authorization": "Bearer reader"})).status_code == 200
        assert (await client.get("/livez")).status_code == 200
    assert recorded.ran == []


async def test_a_checked_table_behind_an_open_port_is_refused() -> None:
    """Whoever makes a port and forgets its check has a closed one."""

    class Nobody:
        def admit(self, request: WireRequest, peer: Peer) -> Caller:
            raise AssertionError("HTTP requests have no signature")

    recorded = Recorded()
    recorded.table.access = Nobody()
    async with served(recorded.app, http_policy(config())) as client:
        assert (await client.post("/v1/look")).status_code == 403
    assert recorded.ran == []


async def test_the_document_says_what_a_route_needs() -> None:
    document = Recorded().app.openapi()
    assert document["security"] == [{"user": []}, {"token": []}]
    schemes = document["components"]["securitySchemes"]
    assert {each["scheme"] for each in schemes.values()} == {"basic", "bearer"}
    paths = document["paths"]
    assert paths["/livez"]["get"]["security"] == [] and "security" not in paths["/view"]["get"]
    roles = {path: next(iter(methods.values()))["x-keelmq-role"] for path, methods in paths.items()}
    assert roles == {
        "/livez": "open",
        "/readyz": "open",
        "/v1/health": "read",
        "/metrics": "read",
        "/v1/change": "administer",
        "/v1/look": "read",
        "/view": "read",
    }
    assert paths["/v1/change"]["post"]["x-rocketmq-code"] == 318


async def test_a_bug_of_a_route_is_a_problem_too() -> None:
    app = new_app("test")

    @app.get("/broken", openapi_extra=needs(Role.READ))
    async def broken() -> None:
        raise KeyError("bug")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as of:
        answer = await of.get("/broken")
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["detail"]) == (500, "internal error: KeyError: 'bug'")
