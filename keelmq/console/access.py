"""Who uses the console, and with whose rights it acts: log-in, cookies, and the credentials of a request.

A session holds the user's name and password, in memory. The HTTP guard gets them as the header Authorization
of each request that has the cookie (Sessions in keelmq/remoting/servers/http_access.py), so a user who is
removed, or has a new password, is logged out at the next request. Where the port does not know the users,
servers of the cluster are asked again every CHECK_AGAIN_MS while a session is used. Open streams are checked
like requests.
"""

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http.cookies import CookieError, SimpleCookie
from typing import Final, Protocol

import msgspec
from fastapi import Request, Response

from keelmq.client.admin import AdminClient
from keelmq.console.core.sessions import Session, SessionTable
from keelmq.console.pages import PAGE, is_built
from keelmq.remoting.operation import Peer, Role
from keelmq.remoting.servers.http_access import Forbidden, TooManyFailures, Unauthenticated
from keelmq.remoting.servers.http_call import call_of
from keelmq.runtime.clock import now_ms
from keelmq.runtime.tasks import cancel_all
from keelmq.runtime.tls.contexts import Tls
from keelmq.security.core.throttle import FailureThrottle
from keelmq.security.server_access import ip_of
from keelmq.security.signer import Credentials

COOKIE: Final = "keelmq_console"
SESSION_ID_BYTES: Final = 32
NAME_CHARS_MAX: Final = 256
API: Final = "/v1/console"
OPEN: Final = frozenset({f"{API}/session", f"{API}/login", f"{API}/logout"})
CHECKS_AT_ONCE: Final = 4
"""Concurrent checks of log-ins, and as many of sessions: neither waits for the other if servers are slow."""
CHECK_AGAIN_MS: Final = 10_000
"""How long a password that servers of the cluster have checked counts, where only they know it."""


class Verifier(Protocol):
    """Checks a name and a password."""

    async def verify(self, user: str, password: str, peer: Peer) -> None:
        """Raises Unauthenticated, Forbidden or TooManyFailures."""
        ...

    async def is_still_right(self, user: str, password: str) -> bool:
        """Returns whether a password that was right has not been refused since. Asked for sessions whose
        requests do not carry the password itself."""
        ...

    @property
    def is_required(self) -> bool:
        """Returns whether a session or other credentials are required to see anything."""
        ...


class Visitor(msgspec.Struct, frozen=True):
    """Who sends a request. user "": no user is logged in. credentials: sign the user's actions; None: nothing
    does."""

    user: str = ""
    credentials: Credentials | None = None
    session: Session | None = None


class ConsoleAccess:
    """The sessions of one console. Implements Sessions of keelmq/remoting/servers/http_access.py.
    `as_password`: a session is passed on as Authorization: Basic, where the port knows the users; else as its
    id (user_of())."""

    def __init__(
        self,
        verifier: Verifier,
        *,
        as_password: bool,
        tls: Tls = False,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._verifier, self._tls, self._clock = verifier, tls, clock
        self._as_password = as_password
        self.sessions = SessionTable()
        self._throttle = FailureThrottle()
        self._checking = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._checking_again = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._asking: dict[str, asyncio.Task[None]] = {}
        """Session id -> the task that asks whether its password is still right."""

    @property
    def is_required(self) -> bool:
        """Returns whether a visitor must log in, or send credentials."""
        return self._verifier.is_required

    # -- Sessions ----------------------------------------------------------------------------------------

    def is_open(self, path: str) -> bool:
        """Returns whether a path needs no credentials: the page itself, what leads there, and what it needs
        to log in."""
        return path in OPEN or path == PAGE or path.startswith(f"{PAGE}/") or (path == "/" and is_built())

    def has(self, path: str) -> bool:
        """Returns whether a path is one of the console's own."""
        return path.startswith(f"{API}/")

    def authorization_of(self, path: str, cookie: str) -> str | None:
        """Returns the header Authorization for a cookie; None: there is none. Cookies are for the console's
        own routes only."""
        if not self.has(path):
            return None
        session_id = _id_of(cookie)
        session = self.sessions.use(session_id, self._clock())
        if session is None:
            return None
        self._look_again(session_id, session)
        return self._authorization(session_id, session)

    def _authorization(self, session_id: str, session: Session) -> str:
        return basic(session.user, session.secret.text) if self._as_password else f"Session {session_id}"

    def user_of(self, authorization: str) -> str | None:
        """Returns the user of a header that authorization_of() made; None: it belongs to no session."""
        scheme, _, session_id = authorization.partition(" ")
        session = self.sessions.look(session_id, self._clock()) if scheme == "Session" else None
        return None if session is None else session.user

    def _look_again(self, session_id: str, session: Session) -> None:
        """Checks the password of a session at the cluster in the background, if that is due."""
        is_due = self._clock() - session.checked_ms >= CHECK_AGAIN_MS
        if is_due and not self._as_password and session_id not in self._asking:
            task = asyncio.get_running_loop().create_task(self._ask_again(session_id, session))
            self._asking[session_id] = task
            task.add_done_callback(lambda _: self._asking.pop(session_id, None))

    async def _ask_again(self, session_id: str, session: Session) -> None:
        async with self._checking_again:
            is_right = await self._verifier.is_still_right(session.user, session.secret.text)
        if is_right:
            self.sessions.checked(session_id, self._clock())
        else:
            self.sessions.end(session_id)

    async def stop(self) -> None:
        """Ends what runs in the background. Safe to repeat."""
        await cancel_all(self._asking.values())

    # -- log-in ------------------------------------------------------------------------------------------

    async def login(self, request: Request, response: Response, user: str, password: str) -> Session:
        """Begins a session, and sets its cookie. Raises the refusals of http_access.py."""
        peer = call_of(request.scope).peer
        address, now = ip_of(peer.address), self._clock()
        if wait_ms := self._throttle.wait_ms(address, now, user):
            raise TooManyFailures(
                f"too many failed log-ins from {address}; try again in {wait_ms // 1_000 + 1} s", wait_ms
            )
        self._throttle.failed(address, now, user)  # a success counts as well: it is rare
        async with self._checking:
            await self._verifier.verify(user, password, peer)
        self.logout(request)
        session_id = secrets.token_urlsafe(SESSION_ID_BYTES)
        session = self.sessions.begin(session_id, user, password, self._clock())
        response.set_cookie(
            COOKIE, session_id, httponly=True, samesite="strict", secure=peer.is_tls, path="/"
        )
        return session

    def logout(self, request: Request) -> None:
        """Ends the session of a request. Safe to repeat."""
        self.sessions.end(_id_of(request.headers.get("cookie", "")))

    # -- requests ----------------------------------------------------------------------------------------

    def visitor(self, request: Request) -> Visitor:
        """Returns who sends a request. With a password in the header instead of a session, it is that user,
        once the guard has checked it."""
        session = self.sessions.look(_id_of(request.headers.get("cookie", "")), self._clock())
        if session is not None:
            return Visitor(session.user, Credentials(session.user, session.secret.text), session)
        caller = call_of(request.scope).caller
        given = _credentials_in(request.headers.get("authorization", ""))
        if given is not None and given.access_key == caller.user:
            return Visitor(caller.user, given)
        return Visitor(caller.user)

    def left_ms(self, session: Session) -> int:
        """Returns how long a session still lasts if it is not used."""
        return max(0, session.ends_ms - self._clock())

    def is_still_in(self, visitor: Visitor, request: Request) -> bool:
        """Returns whether the reader of a stream may still read it."""
        text = request.headers.get("authorization")
        if visitor.session is not None:
            session_id = _id_of(request.headers.get("cookie", ""))
            session = self.sessions.look(session_id, self._clock())
            if session is None:
                return False
            self._look_again(session_id, session)
            text = text or self._authorization(session_id, session)
        call = call_of(request.scope)
        access = None if call.policy is None else call.policy.access
        try:
            if access is not None:
                access.check_role(access.authenticate(text, call.peer), Role.READ, call.peer)
        except (Forbidden, TooManyFailures, Unauthenticated):
            return False
        return True

    @asynccontextmanager
    async def admin_of(
        self, request: Request, *, timeout_ms: int | None = None
    ) -> AsyncIterator[AdminClient]:
        """Yields an AdminClient that signs as the sender of a request; it does not sign without a log-in."""
        credentials = self.visitor(request).credentials
        async with AdminClient(timeout_ms=timeout_ms, tls=self._tls, credentials=credentials) as admin:
            yield admin


def _id_of(header: str) -> str:
    """Returns the session id in a Cookie header, "" if there is none."""
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return "" if morsel is None else morsel.value


def basic(user: str, password: str) -> str:
    """Returns the header Authorization with a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _credentials_in(authorization: str) -> Credentials | None:
    scheme, _, text = authorization.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, _, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
        return Credentials(user, password)
    except ValueError:
        return None
