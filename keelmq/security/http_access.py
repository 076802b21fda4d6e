"""HttpServerAccess: who may send a request over HTTP. Users with their passwords, and tokens of a file.

Passwords come as `Authorization: Basic`, and only over TLS or from this machine, unless httpBasicOverPlain
says otherwise: unlike a signature, a password that is read on the way is lost. Tokens come as
`Authorization: Bearer`; their role counts for the whole cluster."""

import base64
import hashlib
from collections.abc import Callable
from typing import Final, NoReturn

from keelmq.remoting.addresses import is_loopback
from keelmq.remoting.operation import ANYBODY, Access, Caller, Peer, Request, Role
from keelmq.remoting.servers.http_access import Forbidden, TooManyFailures, Unauthenticated
from keelmq.remoting.servers.http_settings import HttpConfig, HttpPolicy, http_policy
from keelmq.runtime.clock import wall_ms
from keelmq.security.core.access import AccessRequest, Granted, Refused
from keelmq.security.core.http_check import WRONG_PASSWORD, HttpControl
from keelmq.security.core.refusals import Reason
from keelmq.security.core.rules import role_of
from keelmq.security.core.throttle import FailureThrottle
from keelmq.security.core.tokens import Token
from keelmq.security.server_access import ServerAccess, UserCaller, ip_of
from keelmq.security.tokens_file import TokensFile

REALM: Final = 'realm="keelmq"'
BASIC_CHALLENGE: Final = f'Basic {REALM}, charset="UTF-8"'
BEARER_CHALLENGE: Final = f"Bearer {REALM}"
GOOD_MAX: Final = 1_000
"""Credentials that were right lately, and so are not refused with others of the same address."""


class TokenCaller(Caller):
    """Who sends a token. A user's name has no colon, so it cannot be one."""

    def __init__(self, token: Token) -> None:
        self.user = f"token:{token.name}"
        self.token = token


class HttpServerAccess:
    """HttpAccess of one program. Owned by the event loop's thread.

    `server` None: there are no users, only tokens. `tokens` None: no tokens. `clock`: wall clock in ms, the
    same as that of `server`, with whom it shares the throttle."""

    def __init__(
        self,
        server: ServerAccess | None,
        tokens: TokensFile | None,
        *,
        basic_over_plain: bool = False,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._server, self._tokens, self._clock = server, tokens, clock
        self._control = None if server is None else HttpControl(server.control)
        self._basic_over_plain = basic_over_plain
        self._throttle = FailureThrottle() if server is None else server.control.throttle
        self._good: dict[bytes, None] = {}

    @property
    def remembered(self) -> int:
        """How many credentials were right lately."""
        return len(self._good)

    # -- HttpAccess --------------------------------------------------------------------------------------

    def authenticate(self, authorization: str | None, peer: Peer) -> Caller:
        control, server, peer_ip = self._control, self._server, ip_of(peer.address)
        if control is not None and server is not None:
            name = control.member_of(peer.certificate_names)
            if name is not None:
                return UserCaller(server, Granted(name, Role.ADMINISTER, is_member=True), peer_ip)
        if authorization is None:
            if self._tokens is None and (control is None or not control.needs_user(peer_ip)):
                return ANYBODY
            self._unauthenticated("this needs credentials", "unsigned", peer)
        scheme, _, text = authorization.strip().partition(" ")
        known = hashlib.sha256(f"{peer_ip} {authorization}".encode()).digest()
        if scheme.lower() == "bearer":
            caller = self._of_token(text.strip(), known, peer)
        elif scheme.lower() == "basic":
            caller = self._of_password(text.strip(), known, peer)
        else:
            self._unauthenticated("the header Authorization is neither Basic nor Bearer", "unsigned", peer)
        if known not in self._good and len(self._good) >= GOOD_MAX:
            del self._good[next(iter(self._good))]
        self._good[known] = None
        return caller

    def check_role(self, caller: Caller, role: Role, peer: Peer) -> None:
        if isinstance(caller, TokenCaller):
            self._check_token(caller.token, role)
        elif not caller.is_member and self._control is not None:
            self._granted(self._control.check_view(caller.user, role, ip_of(peer.address)))

    def admit(self, caller: Caller, request: Request, peer: Peer) -> Caller:
        control, server = self._control, self._server
        if isinstance(caller, TokenCaller):
            self._check_token(caller.token, role_of(request.code))
            if control is not None:
                self._granted(control.check_members(request.code))
            return caller
        if caller.is_member or control is None or server is None:
            return caller
        peer_ip = ip_of(peer.address)
        asked = AccessRequest(request.code, request.version, request.ext_fields, request.body, peer_ip)
        granted = control.check_request(caller.user, asked)
        if isinstance(granted, Refused):
            self._forbidden(granted.remark, granted.reason)
        return UserCaller(server, granted, peer_ip)

    # -- credentials -------------------------------------------------------------------------------------

    def _of_token(self, text: str, known: bytes, peer: Peer) -> Caller:
        """A right token is always let in: it is random, so it cannot be guessed."""
        token = None if self._tokens is None else self._tokens.find(text)
        if token is None:
            self._refuse_throttled(known, ip_of(peer.address), "")
            self._failed("the token is wrong, or has been removed", peer)
        return TokenCaller(token)

    def _of_password(self, text: str, known: bytes, peer: Peer) -> Caller:
        peer_ip = ip_of(peer.address)
        if not self._takes_passwords(peer):
            self._forbidden(
                "passwords are taken over TLS and from this machine only: use https, or a token, or set "
                "httpBasicOverPlain=true",
                "unsigned",
            )
        try:
            username, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
        except ValueError:  # no base64, no ASCII, or no UTF-8 inside
            username = colon = password = ""
        if not colon:
            self._failed("Authorization: Basic needs base64 of user:password", peer)
        control, server = self._control, self._server
        if control is None or server is None or not control.has_users:
            self._failed("there are no users here", peer)
        self._refuse_throttled(known, peer_ip, username)
        why = control.check_password(username, password, peer_ip)
        if why is not None:
            self._failed(why, peer, username)
        return UserCaller(server, Granted(username, Role.READ), peer_ip)

    def _takes_passwords(self, peer: Peer) -> bool:
        return peer.is_tls or self._basic_over_plain or is_loopback(ip_of(peer.address))

    def _refuse_throttled(self, known: bytes, peer_ip: str, who: str) -> None:
        wait_ms = self._throttle.wait_ms(peer_ip, self._clock(), who)
        if wait_ms and known not in self._good:
            self._count("throttled")
            raise TooManyFailures(
                f"too many failed authentications from {peer_ip}; try again in {wait_ms // 1_000 + 1} s",
                wait_ms,
            )

    # -- refusals ----------------------------------------------------------------------------------------

    def _check_token(self, token: Token, role: Role) -> None:
        if token.role < role:
            self._forbidden(
                f"token {token.name} has the role {token.role.name.lower()}, and this needs "
                f"{role.name.lower()}: use another token of httpTokensFile"
            )

    def _granted(self, refused: Refused | None) -> None:
        if refused is not None:
            self._forbidden(refused.remark, refused.reason)

    def _forbidden(self, remark: str, reason: Reason = "rights") -> NoReturn:
        self._count(reason)
        raise Forbidden(remark)

    def _failed(self, remark: str, peer: Peer, who: str = "") -> NoReturn:
        """Wrong credentials: the throttle counts them."""
        self._throttle.failed(ip_of(peer.address), self._clock(), who)
        self._unauthenticated(remark, "signature" if remark == WRONG_PASSWORD else "user", peer)

    def _unauthenticated(self, remark: str, reason: Reason, peer: Peer) -> NoReturn:
        self._count(reason)
        challenges, ways = [], []
        if self._control is not None and self._control.has_users:
            # A browser asks its user for a password then, and must not send it where others can read it.
            if self._takes_passwords(peer):
                challenges.append(BASIC_CHALLENGE)
                ways.append("a user's password (Authorization: Basic)")
            else:
                ways.append("a user's password over https (Authorization: Basic)")
        if self._tokens is not None:
            ways.append("a token of httpTokensFile (Authorization: Bearer)")
            challenges.append(BEARER_CHALLENGE)
        if not challenges:
            challenges.append(BEARER_CHALLENGE)
        raise Unauthenticated(f"{remark}; send {' or '.join(ways) or 'no credentials'}", challenges)

    def _count(self, reason: Reason) -> None:
        if self._server is not None:
            self._server.refusals[reason] += 1


def http_access(config: HttpConfig, server: Access | None) -> HttpServerAccess | None:
    """Returns the check of a program's HTTP port; None: all requests are served. `server`: the access of its
    remoting ports. Raises ConfigError."""
    tokens = None if config.http_tokens_file is None else TokensFile(config.http_tokens_file)
    users = server if isinstance(server, ServerAccess) else None
    if tokens is None and users is None:
        return None
    return HttpServerAccess(users, tokens, basic_over_plain=config.http_basic_over_plain)


def program_policy(config: HttpConfig, server: Access | None, *names: str) -> HttpPolicy:
    """Returns which requests a program's HTTP port takes. `names`: hosts that it binds or announces. Raises
    ConfigError."""
    return http_policy(config, *names, access=http_access(config, server))
