"""Who may log in to the console: PortVerifier where a program's own HTTP access check knows the users,
ClusterVerifier where only the cluster's servers do.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from keelmq.client.admin import AdminClient, AdminError
from keelmq.console.access import basic
from keelmq.remoting.addresses import is_loopback
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Caller, CommandError, Peer, Request, Role
from keelmq.remoting.servers.http_access import Forbidden, HttpAccess, Unauthenticated
from keelmq.remoting.servers.http_guard import SESSION_CHALLENGE
from keelmq.runtime.tls.contexts import Tls
from keelmq.security.server_access import ip_of
from keelmq.security.signer import Credentials

logger = logging.getLogger(__name__)

VERIFY_TIMEOUT_MS: Final = 3_000
ASKED_MAX: Final = 3
"""Servers that are asked about a password, one after the other, until one knows."""
PLAIN = (
    "passwords are taken over TLS and from this machine only: open the console through a reverse proxy with "
    "https on its machine, or through an SSH tunnel"
)


class PortVerifier:
    """Of a program whose HTTP port has an access check."""

    is_required = True

    def __init__(self, access: HttpAccess) -> None:
        self._access = access

    async def verify(self, user: str, password: str, peer: Peer) -> None:
        caller = self._access.authenticate(basic(user, password), peer)
        self._access.check_role(caller, Role.READ, peer)

    async def is_still_right(self, user: str, password: str) -> bool:
        """The port checks the password with every request."""
        return True


class ClusterVerifier:
    """Asks servers of the cluster with the user's own signature: their settings (26), which need the same
    right as the console's views. `brokers`: called for each log-in."""

    def __init__(
        self, brokers: Callable[[], Awaitable[Sequence[str]]], *, is_required: bool = False, tls: Tls = False
    ) -> None:
        self._brokers, self._tls = brokers, tls
        self.is_required = is_required

    async def verify(self, user: str, password: str, peer: Peer) -> None:
        if not (peer.is_tls or is_loopback(ip_of(peer.address))):
            raise Forbidden(PLAIN)
        try:
            credentials = Credentials(user, password)
        except ValueError as error:
            raise Unauthenticated(str(error), [SESSION_CHALLENGE]) from None
        why = await self._asked(credentials)
        if why is not None:
            raise CommandError(
                ResponseCode.SYSTEM_ERROR,
                f"nobody can check the password now: {why}; try again when it answers",
            )

    async def is_still_right(self, user: str, password: str) -> bool:
        """Users stay logged in while no broker answers."""
        try:
            await self._asked(Credentials(user, password))
        except Unauthenticated:
            return False
        except CommandError as error:
            logger.info("the password of %s cannot be checked again: %s", user, error.remark)
        return True

    async def _asked(self, credentials: Credentials) -> str | None:
        """Returns why no server can tell; None: the password is right. Raises Unauthenticated: it is not."""
        asked, why = list(await self._brokers())[:ASKED_MAX], "no broker answers"
        async with AdminClient(timeout_ms=VERIFY_TIMEOUT_MS, tls=self._tls, credentials=credentials) as admin:
            for address in asked:
                try:
                    await admin.brokers.broker_config(address)
                except AdminError as error:
                    if error.code == ResponseCode.NO_PERMISSION:
                        raise Unauthenticated(f"refused: {error.remark}", [SESSION_CHALLENGE]) from None
                    why = f"{address}: {error.remark}"
                else:
                    return None
        return why


class SessionCaller(Caller):
    """A user who is logged in to a console that runs alone."""

    def __init__(self, user: str) -> None:
        self.user = user


class SessionsOnly:
    """The HttpAccess of a console that runs alone for a cluster with security: every user who is logged in
    may see everything; the servers check what they do. `user_of`: header Authorization -> user of a session,
    None: it belongs to no session."""

    def __init__(self, user_of: Callable[[str], str | None]) -> None:
        self._user_of = user_of

    def authenticate(self, authorization: str | None, peer: Peer) -> Caller:
        user = None if authorization is None else self._user_of(authorization)
        if user is None:
            raise Unauthenticated("log in first: POST /v1/console/login", [SESSION_CHALLENGE])
        return SessionCaller(user)

    def check_role(self, caller: Caller, role: Role, peer: Peer) -> None:
        """Everything that changes the cluster is checked by its servers."""
        if not caller.user:
            raise Forbidden("log in first: POST /v1/console/login")

    def admit(self, caller: Caller, request: Request, peer: Peer) -> Caller:
        raise Forbidden("the console serves no operations")
