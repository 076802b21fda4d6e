"""Who was removed, or has another password, sees nothing more: sessions, and streams that are open."""

import asyncio
import base64
import hashlib
from pathlib import Path

from fastapi import Request, Response

from keelmq.console.access import CHECK_AGAIN_MS, ConsoleAccess, Visitor
from keelmq.remoting.operation import Peer
from keelmq.remoting.servers.http_access import Unauthenticated
from keelmq.remoting.servers.http_call import HttpCall, HttpPeer, call_of, put_call
from keelmq.remoting.servers.http_settings import HttpPolicy
from keelmq.runtime.clock import now_ms
from keelmq.security.http_access import HttpServerAccess
from keelmq.security.server_access import ServerAccess
from keelmq.security.tokens_file import TokensFile
from tests.unit.keelmq.security.parts import Tables, control, tables

PATH = "/v1/console/events"
HERE = HttpPeer("127.0.0.1:4000")
TOKEN = "the-token-that-reads-0123456789"


class Servers:
    """A Verifier: brokers that know alice. asked: how often they were, since the log-in."""

    is_required = True

    def __init__(self) -> None:
        self.password = "right"
        self.asked = 0
        self.answer = asyncio.Event()
        self.answer.set()

    async def verify(self, user: str, password: str, peer: Peer) -> None:
        if password != self.password:
            raise Unauthenticated("wrong", [])

    async def is_still_right(self, user: str, password: str) -> bool:
        self.asked += 1
        await self.answer.wait()
        return password == self.password


class Alone:
    """A console that runs alone, where only the cluster knows the passwords; alice is logged in."""

    def __init__(self) -> None:
        self.now_ms, self.servers = 1_000_000, Servers()
        self.access = ConsoleAccess(self.servers, as_password=False, clock=lambda: self.now_ms)
        self.access.sessions.begin("an-id", "alice", "right", self.now_ms)

    async def is_let_in(self) -> bool:
        """Whether a request is, after what it began in the background has ended."""
        text = self.access.authorization_of(PATH, "keelmq_console=an-id")
        await others()
        return text is not None


async def others() -> None:
    running = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait_for(asyncio.gather(*running), 10)


def opened(policy: HttpPolicy | None, **headers: str) -> Request:
    """The request of an open stream, which the guard has let pass."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "method": "GET", "path": PATH, "headers": raw})
    call = HttpCall(HERE, policy)
    if policy is not None and policy.access is not None and "authorization" in headers:
        call.caller = policy.access.authenticate(headers["authorization"], HERE)
    put_call(request.scope, call)
    return request


async def test_the_cluster_is_asked_again_whether_a_password_is_right() -> None:
    console = Alone()
    assert await console.is_let_in()
    assert console.servers.asked == 0
    console.now_ms += CHECK_AGAIN_MS
    assert await console.is_let_in() and await console.is_let_in()
    assert console.servers.asked == 1
    console.servers.password = "another"
    assert await console.is_let_in()
    console.now_ms += CHECK_AGAIN_MS
    await console.is_let_in()
    assert not await console.is_let_in()


async def test_nobody_waits_at_the_log_in_while_sessions_are_asked_about() -> None:
    """Servers that hang are asked for seconds, and just then operators want to log in."""
    console = Alone()
    console.servers.answer.clear()
    console.now_ms += CHECK_AGAIN_MS
    for number in range(20):
        console.access.sessions.begin(f"id-{number}", "alice", "right", console.now_ms - CHECK_AGAIN_MS)
        console.access.authorization_of(PATH, f"keelmq_console=id-{number}")
    await asyncio.wait_for(console.access.login(opened(None), Response(), "alice", "right"), 10)
    console.servers.answer.set()
    await others()
    assert console.servers.asked == 20


async def test_a_stream_of_a_former_user_ends() -> None:
    console = Alone()
    request = opened(None, cookie="keelmq_console=an-id")
    visitor = console.access.visitor(request)
    console.now_ms += CHECK_AGAIN_MS
    assert console.access.is_still_in(visitor, request)
    await others()
    assert console.access.is_still_in(visitor, request)
    console.servers.password = "another"
    console.now_ms += CHECK_AGAIN_MS
    console.access.is_still_in(visitor, request)
    await others()
    assert not console.access.is_still_in(visitor, request)


def with_users(made: Tables) -> tuple[ConsoleAccess, HttpPolicy]:
    """The console of a program whose HTTP port knows the users."""
    access = ConsoleAccess(Servers(), as_password=True)
    return access, HttpPolicy(access=HttpServerAccess(ServerAccess(control(made)), None))


def test_a_stream_with_a_password_ends_with_its_user() -> None:
    made = tables()
    access, policy = with_users(made)
    request = opened(policy, authorization="Basic " + base64.b64encode(b"root:root-secret").decode())
    visitor = access.visitor(request)
    assert (visitor.user, visitor.session) == ("root", None)
    assert access.is_still_in(visitor, request)
    del made.users["root"]
    made.generation += 1
    assert not access.is_still_in(visitor, request)


def test_a_stream_with_a_cookie_ends_with_its_user() -> None:
    made = tables()
    access, policy = with_users(made)
    access.sessions.begin("an-id", "root", "root-secret", now_ms())
    request = opened(policy, cookie="keelmq_console=an-id")
    visitor = access.visitor(request)
    assert visitor.user == "root"
    assert access.is_still_in(visitor, request)
    del made.users["root"]
    made.generation += 1
    assert not access.is_still_in(visitor, request)


def test_a_stream_with_a_token_ends_with_the_token(tmp_path: Path) -> None:
    path, now = tmp_path / "tokens", [0]
    path.write_text(f"read dashboards sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}\n")
    path.chmod(0o600)
    tokens = TokensFile(path, clock=lambda: now[0])
    access, policy = (
        ConsoleAccess(Servers(), as_password=True),
        HttpPolicy(access=HttpServerAccess(None, tokens)),
    )
    request = opened(policy, authorization=f"Bearer {TOKEN}")
    visitor = Visitor(call_of(request.scope).caller.user)
    assert access.is_still_in(visitor, request)
    path.unlink()
    now[0] += 1_000
    assert not access.is_still_in(visitor, request)
