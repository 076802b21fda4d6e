"""What is known about one HTTP request before its route runs: the other end, who sends it, and what it needs.

http_guard.py makes an HttpCall and puts it into the ASGI scope. A route declares its role with
openapi_extra=needs(...), and check_route(), a dependency of every application, compares the two. A route that
declares nothing is refused on a port with an access check. Imports FastAPI: see http_late.py.
"""

from collections.abc import MutableMapping
from typing import Any, Final

import msgspec
from fastapi import Request

from keelmq.remoting.address_text import join_address
from keelmq.remoting.operation import ANYBODY, Caller, OperationTable, Role
from keelmq.remoting.operation import Request as WireRequest
from keelmq.remoting.servers.http_access import Forbidden, Sessions
from keelmq.remoting.servers.http_settings import HttpPolicy

READING: Final = ("GET", "HEAD", "OPTIONS")
OPEN: Final = "open"
METRICS: Final = "/metrics"
PROM_HEALTHY: Final = "/-/healthy"
_PROBES: Final = ("/livez", PROM_HEALTHY)
_BROKER_PROBES: Final = ("readyz", "master", "slave")

ROLE: Final = "x-keelmq-role"
CODE: Final = "x-rocketmq-code"
SCHEMES: Final = {
    "user": {"type": "http", "scheme": "basic", "description": "a user, with the password of its signatures"},
    "token": {"type": "http", "scheme": "bearer", "description": "a token of httpTokensFile"},
}

_CALL: Final = "keelmq.call"
CERTIFICATE_NAMES: Final = "keelmq.certificate_names"
"""Key of the ASGI scope: the names of the client's certificate, see http_limits.py."""


class HttpPeer:
    """The Peer of an HTTP request: nothing can be pushed to it."""

    connection_id = 0

    def __init__(
        self, address: str = "?", *, is_tls: bool = False, certificate_names: tuple[str, ...] = ()
    ) -> None:
        self.address, self.is_tls, self.certificate_names = address, is_tls, certificate_names

    def is_closing(self) -> bool:
        """Returns False: the response is not sent through this Peer."""
        return False

    def send(self, frame: bytes) -> bool:
        """Returns False: nothing can be pushed."""
        return False


class HttpCall(msgspec.Struct):
    """`policy` None: no guard is before the application, as in tests. is_checked: check_route() has let it
    pass."""

    peer: HttpPeer
    policy: HttpPolicy | None = None
    caller: Caller = ANYBODY
    is_checked: bool = False

    def admitted(self, table: OperationTable, request: WireRequest) -> Caller:
        """Returns the caller of an operation. Raises CommandError."""
        access = None if self.policy is None else self.policy.access
        if access is not None:
            return access.admit(self.caller, request, self.peer)
        if table.access is not None:
            raise Forbidden(
                "this HTTP port has no access check, but the remoting port has one: that is a bug"
            )
        return self.caller


def needs(role: Role | None, *, code: int | None = None) -> dict[str, Any]:
    """Returns the openapi_extra of a route. role None: anyone may ask. code: of the operation that the route
    carries out, which is checked then, with its resources."""
    named = OPEN if role is None else role.name.lower()
    return {ROLE: named} if code is None else {ROLE: named, CODE: int(code)}


def peer_of(scope: MutableMapping[str, Any]) -> HttpPeer:
    """Returns the other end of the connection that an ASGI request came over."""
    host, port = scope.get("client") or ("?", 0)
    return HttpPeer(
        join_address(host, port),
        is_tls=scope.get("scheme") == "https",
        certificate_names=scope.get(CERTIFICATE_NAMES, ()),
    )


def call_of(scope: MutableMapping[str, Any]) -> HttpCall:
    """Returns the HttpCall that the guard has put into the scope."""
    call = scope.get(_CALL)
    return call if isinstance(call, HttpCall) else HttpCall(peer_of(scope))


def put_call(scope: MutableMapping[str, Any], call: HttpCall) -> None:
    scope[_CALL] = call


def is_open(path: str, policy: HttpPolicy) -> bool:
    """Returns whether a path needs no credentials."""
    if is_probe(path) or (path == METRICS and policy.metrics_open):
        return True
    return policy.sessions is not None and policy.sessions.is_open(path)


def is_probe(path: str) -> bool:
    """Returns whether orchestrators and load balancers, which have no credentials, ask it: /livez, /readyz,
    /master, /slave, and of one of several brokers /readyz/<its name> and so on."""
    return path in _PROBES or path.removeprefix("/").partition("/")[0] in _BROKER_PROBES


def operations_of(app: Any) -> dict[str, tuple[OperationTable, int]]:
    """Returns path -> table and request code of an application's operations."""
    return dict(getattr(getattr(app, "state", None), "operations", {}))


def sessions_of(app: Any) -> Sessions | None:
    """Returns the log-ins of an application's page; None: it has none."""
    found: Sessions | None = getattr(getattr(app, "state", None), "sessions", None)
    return found


async def check_route(request: Request) -> None:
    """Lets a request reach its route, or raises Forbidden. A dependency of every application."""
    call = call_of(request.scope)
    policy = call.policy
    if policy is None:
        return
    declared = getattr(request.scope.get("route"), "openapi_extra", None) or {}
    # Not request.url, which is made with the header Host: "x/livez?" there would name another path.
    name, path = declared.get(ROLE), request.scope["path"]
    role = Role[name.upper()] if name not in (None, OPEN) else None
    changes = request.method not in READING and role is not Role.READ and name != OPEN
    if policy.read_only and changes:
        raise Forbidden(
            "this HTTP port changes nothing (httpReadOnly=true): use the remoting port and mqadmin"
        )
    if policy.access is not None and not is_open(path, policy):
        if role is None:
            raise Forbidden(f"{path} is refused: it does not declare who may ask for it, which is a bug")
        if CODE not in declared:
            policy.access.check_role(call.caller, role, call.peer)
    call.is_checked = True
