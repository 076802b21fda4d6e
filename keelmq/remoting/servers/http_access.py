"""HttpAccess: the check of HTTP requests, whose senders have passwords and tokens instead of signatures.

Only interfaces and refusals, so that remoting knows no user, token or ACL: keelmq/security/http_access.py
implements them.
"""

from collections.abc import Sequence
from typing import Protocol

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Caller, CommandError, Peer, Request, Role


class Unauthenticated(CommandError):
    """401: no credentials, or wrong ones. `challenges`: values of WWW-Authenticate."""

    def __init__(self, remark: str, challenges: Sequence[str]) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.challenges = tuple(challenges)


class Forbidden(CommandError):
    """403: the sender is known, or need not be, and may not do this."""

    def __init__(self, remark: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)


class TooManyFailures(CommandError):
    """429: this address has sent too many wrong credentials."""

    def __init__(self, remark: str, wait_ms: int) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.wait_ms = wait_ms


class Sessions(Protocol):
    """Log-ins of a page: it needs no credentials itself, and its cookie replaces those of its user."""

    def is_open(self, path: str) -> bool:
        """Returns whether a path needs no credentials."""
        ...

    def has(self, path: str) -> bool:
        """Returns whether a path is one that the page asks: its refusals must not make a browser ask its user
        for a password by itself."""
        ...

    def authorization_of(self, path: str, cookie: str) -> str | None:
        """Returns the header Authorization for a Cookie header at this path; None: there is none."""
        ...


class HttpAccess(Protocol):
    """Who may send an HTTP request. A port without one serves all requests. All methods raise one of the
    errors above."""

    def authenticate(self, authorization: str | None, peer: Peer) -> Caller:
        """Returns who sends a request, by its header Authorization; called before the body is read."""
        ...

    def check_role(self, caller: Caller, role: Role, peer: Peer) -> None:
        """Called before a route that is no operation of RocketMQ's, with the role that the route needs."""
        ...

    def admit(self, caller: Caller, request: Request, peer: Peer) -> Caller:
        """Returns the caller of an operation, after the same check as over TCP."""
        ...
