"""ServerAccess: the check of access.py as a server's Access. One for each program; its ports share it.

It reads the clock, asks AccessControl, turns a refusal into the response that clients know, and counts
refusals for /metrics."""

from collections import Counter
from collections.abc import Callable
from typing import NoReturn

from keelmq.remoting.operation import Caller, CommandError, Peer, Request
from keelmq.runtime.clock import wall_ms
from keelmq.security.core.access import AccessControl, AccessRequest, Granted, Reason, Refused
from keelmq.security.core.acls import Action
from keelmq.security.core.contexts import Lookup, LookupKind


def ip_of(address: str) -> str:
    """Returns the IP of "host:port" or "[host]:port", without the zone of a link-local one. A text without a
    port is returned as it is: it matches no source IP."""
    host, colon, _ = address.rpartition(":")
    return host.strip("[]").partition("%")[0] if colon else address


class ServerAccess:
    """Access of an OperationTable. Owned by the event loop's thread. `clock`: wall clock in ms, since clients
    write its time into their proofs."""

    def __init__(self, control: AccessControl, *, clock: Callable[[], int] = wall_ms) -> None:
        self.control = control
        self.refusals: Counter[Reason] = Counter()
        """How many requests were refused, by reason."""
        self._clock = clock

    def admit(self, request: Request, peer: Peer) -> Caller:
        """Returns the user of the request. Raises CommandError."""
        peer_ip = ip_of(peer.address)
        asked = AccessRequest(
            request.code,
            request.version,
            request.ext_fields,
            request.body,
            peer_ip,
            peer.connection_id,
            peer.is_tls,
            peer.certificate_names,
        )
        granted = self.control.check(asked, self._clock())
        if isinstance(granted, Refused):
            self.refuse(granted)
        return UserCaller(self, granted, peer_ip)

    def refuse(self, refused: Refused) -> NoReturn:
        """Counts a refusal and raises it as CommandError."""
        self.refusals[refused.reason] += 1
        raise CommandError(refused.code, refused.remark)


class UserCaller(Caller):
    """A user whose request was admitted; `user` is empty if nobody was asked."""

    def __init__(self, access: ServerAccess, granted: Granted, peer_ip: str) -> None:
        self.user = granted.username
        self.is_member = granted.is_member
        self.checks_topics = bool(granted.lookups)
        self._access, self._granted, self._peer_ip = access, granted, peer_ip

    def may_publish(self, topic: str) -> bool:
        """As check_topic() of a send would decide now, whatever the request was."""
        to_send = Lookup(LookupKind.HALF_MESSAGE, "", (Action.PUB,))
        checked = self._access.control.check_topic(self._granted, to_send, topic, self._peer_ip)
        return not isinstance(checked, Refused)

    def check_topic(self, topic: str) -> None:
        """Raises CommandError unless the user may do with this topic what the request does. Requests without
        look-ups were checked as a whole by admit()."""
        for lookup in self._granted.lookups:
            checked = self._access.control.check_topic(self._granted, lookup, topic, self._peer_ip)
            if isinstance(checked, Refused):
                self._access.refuse(checked)
