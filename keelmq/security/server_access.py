"""ServerAccess: the check of access.py as a server's Access. One for each program; its ports share it.

It reads the clock, asks AccessControl, turns a refusal into the response that clients know, and counts
refusals for /metrics."""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, NoReturn

from keelmq.remoting.address_text import host_of
from keelmq.remoting.frame import Frame
from keelmq.remoting.operation import Caller, CommandError, Peer, RememberingPeer, Request
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.security.core.access import AccessControl, AccessRequest, Granted, Refused
from keelmq.security.core.acls import Action
from keelmq.security.core.contexts import Lookup, LookupKind
from keelmq.security.core.known_requests import KnownRequests, key_for_more
from keelmq.security.core.member_proof import CLOCKS, MemberProofs
from keelmq.security.core.refusals import Reason
from keelmq.security.core.rules import RULES, UNKNOWN
from keelmq.security.signed_headers import count_signed

logger = logging.getLogger(__name__)

LOGGED: Final = ("proof", "member")
"""Reasons that an operator must see: the cluster is misconfigured, or an anonymous client poses as a
member."""
SKEW_PERIOD_MS: Final = 60_000


def ip_of(address: str) -> str:
    """Returns the IP of "host:port" or "[host]:port", without the zone of a link-local one. A text without a
    port is returned as it is: it matches no source IP."""
    return host_of(address).partition("%")[0]


def _asked(request: Request, peer: Peer, peer_ip: str) -> AccessRequest:
    return AccessRequest(
        request.code,
        request.version,
        request.ext_fields,
        request.body,
        peer_ip,
        peer.connection_id,
        peer.is_tls,
        peer.certificate_names,
        getattr(peer, "own_address", ""),  # HTTP requests have none
        getattr(peer, "credential", None),  # only clients of gRPC have one
    )


class ServerAccess:
    """Access of an OperationTable. Owned by the event loop's thread. `clock`: wall clock in ms, since clients
    write its time into their proofs."""

    def __init__(
        self,
        control: AccessControl,
        *,
        clock: Callable[[], int] = wall_ms,
        proofs: MemberProofs | None = None,
    ) -> None:
        """proofs: those that `control` checks, to warn before clocks differ too much."""
        self.control = control
        self.refusals: Counter[Reason] = Counter()
        """How many requests were refused, by reason."""
        self._clock, self._proofs = clock, proofs
        settings = control.settings
        self._stateful_ms = settings.stateful_expired_ms if settings.stateful_authentication else 0
        self._log = RateLimitedLogger(logger)
        self._skewed = RateLimitedLogger(logger, period_ms=SKEW_PERIOD_MS)

    def admit(self, request: Request, peer: Peer) -> Caller:
        """Returns the user of the request. Raises CommandError."""
        peer_ip = ip_of(peer.address)
        if self._proofs is not None:
            self._proofs.skew_ms = 0  # of an earlier request
        granted = self.control.check(_asked(request, peer, peer_ip), self._clock())
        if isinstance(granted, Refused):
            if granted.reason in LOGGED or RULES.get(request.code, UNKNOWN).members_only:
                self._log.tell(
                    now_ms(), "refused request %d of %s: %s", request.code, peer.address, granted.remark
                )
            self.refuse(granted)
        if self._proofs is not None and self._proofs.is_skewed:
            self._skewed.tell(
                now_ms(),
                "%s: its clock and this one differ by %.1f s; beyond %d s its requests are refused, those of "
                "a member from the next start of either on: %s",
                peer.address,
                self._proofs.skew_ms / 1000,
                self._proofs.window_ms // 1000,
                CLOCKS,
            )
        return UserCaller(self, granted, peer_ip)

    def is_open(self, code: int) -> bool:
        """Whether anyone may send it, whatever it contains."""
        return self.control.plain is None and self.control.settings.is_open(code)

    def remember(self, request: Request, peer: RememberingPeer, caller: Caller) -> None:
        """Requests of this kind are known to admit_again() from now on."""
        if not isinstance(caller, UserCaller) or getattr(peer, "credential", None) is not None:
            return
        found = key_for_more(self.control, _asked(request, peer, ip_of(peer.address)), caller.granted)
        if found is None:
            return
        key, resources = found
        known, state = peer.known_requests, self.control.state
        if not isinstance(known, KnownRequests) or known.state is not state:
            known = peer.known_requests = KnownRequests(state)
        known.add(request.code, request.ext_fields, resources, key)

    def admit_again(self, code: int, header: bytes, body: bytes, peer: RememberingPeer) -> bool:
        """Whether the request is of a kind that was admitted on this connection, and its signature is right;
        False: admit() decides. Has no other effect."""
        known: KnownRequests | None = peer.known_requests
        if known is None or known.state is not self.control.state:
            return False
        kind = known.kinds.get(code)
        if kind is None:
            return False
        if not self._stateful_ms or self.control.plain is not None:
            return kind.has(header, body)
        key, wall_now_ms = kind.key_of(header), self._clock()
        if key is None:
            return False
        if known.signed_until_ms.get(key, 0) > wall_now_ms:
            return True
        if not kind.has(header, body):
            return False
        known.signed_until_ms[key] = wall_now_ms + self._stateful_ms
        return True

    def admit_first(self, code: int, frames: list[Frame], peer: RememberingPeer) -> int:
        """How many of the frames, from the first one on, admit_again() admits."""
        known: KnownRequests | None = peer.known_requests
        if known is None or known.state is not self.control.state:
            return 0
        kind = known.kinds.get(code)
        if kind is None:
            return 0
        admitted, trusted = 0, None
        if self._stateful_ms and self.control.plain is None:
            if not frames or not self.admit_again(code, frames[0][1], frames[0][2], peer):
                return 0
            admitted, trusted = 1, kind.key_of(frames[0][1])
        if kind.form is not None:
            admitted += count_signed(frames, admitted, kind.form, kind.keys, trusted)
        for _, header, body, _ in frames[admitted:]:
            if not self.admit_again(code, header, body, peer):
                break
            admitted += 1
        return admitted

    def refuse(self, refused: Refused) -> NoReturn:
        """Counts a refusal and raises it as CommandError."""
        self.refusals[refused.reason] += 1
        raise CommandError(refused.code, refused.remark)


class UserCaller(Caller):
    """A user whose request was admitted; `user` is empty if nothing was checked."""

    def __init__(self, access: ServerAccess, granted: Granted, peer_ip: str) -> None:
        self.user = granted.username
        self.is_member = granted.is_member
        self.checks_topics = bool(granted.lookups)
        self.granted = granted
        self._access, self._peer_ip = access, peer_ip

    def may_publish(self, topic: str) -> bool:
        """As check_topic() of a send would decide now, whatever the request was."""
        to_send = Lookup(LookupKind.HALF_MESSAGE, "", (Action.PUB,))
        checked = self._access.control.check_topic(self.granted, to_send, topic, self._peer_ip)
        return not isinstance(checked, Refused)

    def check_topic(self, topic: str) -> None:
        """Raises CommandError unless the user may do with this topic what the request does. Requests without
        look-ups were checked as a whole by admit()."""
        for lookup in self.granted.lookups:
            checked = self._access.control.check_topic(self.granted, lookup, topic, self._peer_ip)
            if isinstance(checked, Refused):
                self._access.refuse(checked)
