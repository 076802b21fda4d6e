"""The guard before every application: size, Host, origin, credentials; and the headers of every response.

It refuses before the body is read and before any route runs. check_route() and the operations (http_call.py)
decide what a known sender may do; a success that none of them has let pass is not sent. Imports FastAPI: see
http_late.py.
"""

import logging
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from fastapi import Response
from starlette.exceptions import HTTPException

from keelmq.remoting.codes import VERSION
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.dispatch import record
from keelmq.remoting.frame import FRAME_BYTES_MAX
from keelmq.remoting.operation import ANYBODY, Caller, CommandError
from keelmq.remoting.servers.http_access import Forbidden, HttpAccess, TooManyFailures, Unauthenticated
from keelmq.remoting.servers.http_answers import problem, refusal
from keelmq.remoting.servers.http_call import (
    READING,
    HttpCall,
    is_open,
    is_probe,
    operations_of,
    peer_of,
    put_call,
)
from keelmq.remoting.servers.http_hosts import host_of
from keelmq.remoting.servers.http_settings import HttpPolicy
from keelmq.runtime.clock import now_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

HEADERS: Final = {
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
"""Of every response that does not say otherwise itself, as the pages do."""
BROWSER_HEADERS: Final = (b"origin", b"referer", b"cookie", b"accept-language")
"""Browsers send some of these with every request, and no page can prevent all of them; programs send none."""


BODIES_BYTES_MAX: Final = 4 * FRAME_BYTES_MAX
"""Limit of all requests of a port together, until they are answered."""
SMALL_BODY_BYTES: Final = 64 * 1024
"""Bodies up to this size are taken also when there is no room for more."""
NO_ROOM: Final = "other requests have large bodies at the moment: repeat it"
OPEN_BODY_BYTES_MAX: Final = 16 * 1024
"""Limit where no credentials are needed: of a log-in."""

SESSION_CHALLENGE: Final = 'Session realm="keelmq"'
"""Of a page with its own log-in."""


class HttpGuard:
    """An ASGI application around another one."""

    def __init__(self, app: Any, policy: HttpPolicy) -> None:
        self._app, self._policy = app, policy
        self._operations = operations_of(app)
        self._refused = RateLimitedLogger(logger)
        self._bodies = _Bodies()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        call = HttpCall(peer_of(scope), self._policy)
        put_call(scope, call)
        answer = _Answer(scope, call, send)
        try:
            refused = self._refusal(scope["headers"], scope, call)
        except (Forbidden, Unauthenticated, TooManyFailures) as error:
            self._refused.tell(
                now_ms(),
                "http: %s %r of %s: %s",
                scope["method"],
                scope["path"],
                call.peer.address,
                error.remark,
            )
            self._audit(scope, call, error)
            refused = refusal(error, "http")
        if refused is not None:
            call.is_checked = True
            await refused(scope, receive, answer.send)
            return
        body = _Body(receive, answer, self._body_bytes_max(scope["path"]), self._bodies)
        try:
            await self._app(scope, body.receive, answer.send)
        finally:
            body.end()

    def _refusal(self, headers: Headers, scope: Scope, call: HttpCall) -> Response | None:
        """Returns the response to a body that is too large; None: the request may go on. Raises the errors of
        http_access.py."""
        declared, most = _one(headers, b"content-length") or b"0", self._body_bytes_max(scope["path"])
        if declared.isdigit() and int(declared) > most:
            return problem(413, _too_large(most))
        changes = scope["method"] not in READING
        if changes or (not is_probe(scope["path"]) and _is_from_browser(headers)):
            self._check_host(headers)
        if changes:
            self._check_origin(headers)
        access = self._policy.access
        if access is not None and not is_open(scope["path"], self._policy):
            call.caller = self._authenticated(access, headers, scope["path"], call)
        return None

    def _body_bytes_max(self, path: str) -> int:
        is_anonymous = self._policy.access is not None and is_open(path, self._policy)
        return OPEN_BODY_BYTES_MAX if is_anonymous else FRAME_BYTES_MAX

    def _authenticated(self, access: HttpAccess, headers: Headers, path: str, call: HttpCall) -> Caller:
        sent, sessions = _one(headers, b"authorization"), self._policy.sessions
        text = None if sent is None else sent.decode("latin-1")
        if sessions is None or not sessions.has(path):
            return access.authenticate(text, call.peer)
        if text is None:
            cookies = b"; ".join(value for name, value in headers if name == b"cookie")
            text = sessions.authorization_of(path, cookies.decode("latin-1"))
        try:
            return access.authenticate(text, call.peer)
        except Unauthenticated as error:
            # A browser would ask for a password itself: the page does that.
            raise Unauthenticated(error.remark, [SESSION_CHALLENGE]) from None

    def _audit(self, scope: Scope, call: HttpCall, error: CommandError) -> None:
        """As for a refused request over TCP; what an anonymous client sends besides the code is not read."""
        table, code = self._operations.get(scope["path"], (None, 0))
        if table is not None:
            request = RemotingCommand(code, 0, version=VERSION)
            record(table, request, call.peer, ANYBODY, error.code, error.remark, {})
            return
        page, peer = f"{scope['method']} {scope['path']}", call.peer
        audit = next((table.audit for table, _ in self._operations.values() if table.audit is not None), None)
        if audit is not None:
            audit.refused(page, address=peer.address, is_tls=peer.is_tls, remark=error.remark)

    def _check_host(self, headers: Headers) -> None:
        """Refuses a name that is not known to be ours (DNS rebinding, see http_hosts.py)."""
        sent = [value for name, value in headers if name == b"host"]
        for value in sent or [b""]:
            host = host_of(value)
            if host is None or host not in self._policy.hosts:
                raise Forbidden(
                    f"the header Host names {_shown(value)}, which is not known to be this server: use its "
                    "IP address, or add the name to httpAllowedHosts"
                )

    def _check_origin(self, headers: Headers) -> None:
        """Refuses changes that a page of another site requests from its visitor's browser. Browsers send
        where a request comes from; programs do not."""
        site, origin = _one(headers, b"sec-fetch-site"), _one(headers, b"origin")
        if site in (b"same-origin", b"none") or (site is None and origin is None):
            return
        page = (origin or b"").decode("latin-1")
        if page.lower() in self._policy.origins:
            return
        if site is None and _address_of(page) == (_one(headers, b"host") or b"").decode("latin-1"):
            return
        where = _shown(origin) if origin else "another site"
        raise Forbidden(
            f"only programs and pages of this server may change anything, not {where}; for pages that a "
            "reverse proxy serves, add their origin to httpAllowedOrigins"
        )


class _Answer:
    """Adds the security headers, and turns the success of an unchecked route into a 403."""

    def __init__(self, scope: Scope, call: HttpCall, send: Send) -> None:
        self._scope, self._call, self._send = scope, call, send
        self._is_withheld = self.has_started = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            if message["status"] < 300 and self._is_unchecked():
                self._is_withheld = True
                logger.error(
                    "http: the answer of %r is withheld: nothing has checked it", self._scope["path"]
                )
                await refusal(Forbidden("refused: this path declares no role, which is a bug"), "http")(
                    self._scope, _nothing, self._secured
                )
            else:
                await self._secured(message)
        elif not self._is_withheld:
            await self._send(message)

    def _is_unchecked(self) -> bool:
        call, policy = self._call, self._call.policy
        if policy is None or policy.access is None or call.is_checked:
            return False
        return not is_open(self._scope["path"], policy)

    async def _secured(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            there = {name.lower() for name, _ in headers}
            headers += [each for each in HEADERS.items() if each[0] not in there]
            message = {**message, "headers": headers}
        await self._send(message)


class _Bodies:
    """The bodies of a port's requests that are not answered yet."""

    held_bytes = 0


class _Body:
    """The body of one request, with its limit. Call end() when the request is answered."""

    def __init__(self, receive: Receive, answer: _Answer, bytes_max: int, bodies: _Bodies) -> None:
        self._receive, self._answer, self._bytes_max, self._bodies = receive, answer, bytes_max, bodies
        self._bytes = 0

    async def receive(self) -> Any:
        """Returns the next ASGI message. Raises HTTPException if a limit is exceeded and nothing is answered
        yet."""
        message = await self._receive()
        size = len(message.get("body", b""))
        self._bytes += size
        self._bodies.held_bytes += size
        is_too_large = self._bytes > self._bytes_max
        if not is_too_large and not (
            self._bytes > SMALL_BODY_BYTES and self._bodies.held_bytes > BODIES_BYTES_MAX
        ):
            return message
        if self._answer.has_started:
            return {"type": "http.disconnect"}
        if is_too_large:
            raise HTTPException(413, _too_large(self._bytes_max))
        raise HTTPException(503, NO_ROOM, headers={"Retry-After": "2"})

    def end(self) -> None:
        """Releases the room."""
        self._bodies.held_bytes -= self._bytes


def _too_large(bytes_max: int) -> str:
    return f"body above {bytes_max} bytes"


async def _nothing() -> Any:
    return {"type": "http.disconnect"}


def _is_from_browser(headers: Headers) -> bool:
    return any(
        name in BROWSER_HEADERS
        or name.startswith(b"sec-fetch-")
        or (name == b"user-agent" and b"mozilla/" in value.lower())
        for name, value in headers
    )


def _one(headers: Headers, name: bytes) -> bytes | None:
    """Returns the value of a header; of several, the last one."""
    return next((value for key, value in reversed(headers) if key == name), None)


def _address_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _shown(value: bytes) -> str:
    return repr(value[:100].decode("latin-1"))
