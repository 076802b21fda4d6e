"""AddressBook: resolves host names outside the raft thread, so that a slow resolver delays no heartbeat."""

import contextlib
import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Mapping

from keelmq.remoting.addresses import is_loopback
from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.raft.transport.link import SocketAddress

logger = logging.getLogger(__name__)

FRESH_S = 1.0  # minimum time between two look-ups of a member
ANY_ADDRESS = "0.0.0.0"


def is_literal(host: str) -> bool:
    """Returns whether the host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def listen_host(host: str) -> str:
    """Returns the address that a member binds: `host` if it is an address, else 0.0.0.0.

    When a pod starts, its name may not resolve yet, or may resolve to its previous address.
    """
    return host if is_literal(host) or is_loopback(host) else ANY_ADDRESS


def resolve(host: str, port: int) -> SocketAddress:
    """Resolves a name; blocks. Prefers IPv4, because members with a name listen on it. Raises ConfigError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"cannot resolve {host!r}: {error}") from None
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, address


class AddressBook:
    """lookup() never blocks: it returns the result of the last look-up in the background."""

    def __init__(self, members: Mapping[str, tuple[str, int]]) -> None:
        self._members = dict(members)
        self._known: dict[str, SocketAddress] = {}
        self._asked_at: dict[str, float] = {}
        self._asking: set[str] = set()  # a resolver that hangs costs one thread, not one each second
        self._literal: set[str] = set()
        for member, (host, port) in self._members.items():
            self._note_literal(member, host, port)

    def learn(self, member: str, address: tuple[str, int]) -> None:
        """Sets the address of a member that joined later, or now has another address."""
        if self._members.get(member) != address:
            self._members[member] = address
            self._known.pop(member, None)
            self._asked_at.pop(member, None)
            self._literal.discard(member)
            self._note_literal(member, *address)

    def _note_literal(self, member: str, host: str, port: int) -> None:
        with contextlib.suppress(ValueError):
            family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
            self._known[member] = family, (host, port)
            self._literal.add(member)

    def lookup(self, member: str) -> SocketAddress | None:
        """Returns the member's address; None: not resolved yet. Starts a look-up if the last one is old."""
        now = time.monotonic()
        due = now - self._asked_at.get(member, float("-inf")) > FRESH_S
        if due and member not in self._literal and member not in self._asking:
            self._asked_at[member] = now
            self._asking.add(member)
            threading.Thread(target=self._ask, args=(member,), name=f"resolve {member}", daemon=True).start()
        return self._known.get(member)

    def _ask(self, member: str) -> None:
        address = self._members[member]
        try:
            found = resolve(*address)
            if self._members[member] == address:
                self._known[member] = found
        except ConfigError as error:
            logger.debug("raft member %s: %s", member, error)
        finally:
            self._asking.discard(member)
