"""What a connection attempt to a broker's address proves, after its heartbeat connection closed. Pure.

A process that dies closes its listener together with its connections. So if the address refuses a connection
now, the process that sent the heartbeats is dead, and an election need not wait for the grace. This holds
only if the refusal comes from the host of the heartbeats: behind address translation or a proxy another host
would refuse, so no attempt is made there. Every other answer proves nothing, and the grace is kept: a live
broker accepts, one with a full accept queue or behind a partition is silent, and another process may have
taken the port.

A proof applies to one close (HeartbeatTable.suspicion): a broker that has restarted and sent a heartbeat
meanwhile is not affected. A firewall that answers with a reset, or with ICMP "port unreachable", looks like a
dead process; the broker that it makes inactive would be inactive after the grace.
"""

import ipaddress
from enum import Enum

from keelmq.remoting.address_text import host_of, split_address

ATTEMPTS_MAX = 3
"""Attempts per close. Another one is made only if the connection was accepted and then closed."""


class ProbeAnswer(Enum):
    """How a connection attempt ended."""

    REFUSED = "refused"
    CLOSED = "closed"  # accepted, and closed by the other end before the deadline
    OPEN = "open"  # accepted, and still open at the deadline
    NOTHING = "nothing"  # no answer in time, unreachable, or this process has no descriptor left


class Verdict(Enum):
    """What to do after an answer."""

    DEAD = "dead"
    AGAIN = "again"
    UNPROVED = "unproved"


def probe_target(registered: str, heartbeats_from: str) -> tuple[str, int] | None:
    """Returns the host and port whose refusal proves the death of a broker; None: no refusal would.

    registered: the broker's listening address. heartbeats_from: the peer of the connection that carried its
    heartbeats. Both are "host:port" with an IP address as host; a name is never resolved.
    """
    try:
        host, port = split_address(registered)
    except ValueError:
        return None
    ours, theirs = _ip(host), _ip(host_of(heartbeats_from))
    if ours is None or ours != theirs or ours.is_unspecified or ours.is_multicast:
        return None
    return str(ours), port


def verdict_of(answer: ProbeAnswer, attempts: int) -> Verdict:
    """Returns what the answer means. `attempts`: how many were made, with this one.

    A connection that was accepted and then closed may have been in the accept queue of a dying process: the
    next attempt shows it.
    """
    if answer is ProbeAnswer.REFUSED:
        return Verdict.DEAD
    if answer is ProbeAnswer.CLOSED and attempts < ATTEMPTS_MAX:
        return Verdict.AGAIN
    return Verdict.UNPROVED


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped
