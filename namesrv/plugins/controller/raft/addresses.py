"""Host names to socket addresses, outside the raft thread: a slow resolver must not stop heartbeats."""

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Mapping

from namesrv.plugins.controller.raft.links import SocketAddress
from remoting.config import ConfigError

FRESH_S = 5.0  # a pod that moved is found after this long


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def resolve(host: str, port: int) -> SocketAddress:
    """Blocks. Raises ConfigError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"cannot resolve {host!r}: {error}") from None
    return family, address


class AddressBook:
    """lookup() never blocks: it answers what the last background look-up found."""

    def __init__(self, members: Mapping[str, tuple[str, int]]) -> None:
        self._members = dict(members)
        self._known: dict[str, SocketAddress] = {}
        self._asked_at: dict[str, float] = {}
        for member, (host, port) in self._members.items():
            with contextlib.suppress(ValueError):
                family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
                self._known[member] = family, (host, port)
        self._literal = frozenset(self._known)

    def lookup(self, member: str) -> SocketAddress | None:
        now = time.monotonic()
        if member not in self._literal and now - self._asked_at.get(member, float("-inf")) > FRESH_S:
            self._asked_at[member] = now
            threading.Thread(target=self._ask, args=(member,), name=f"resolve {member}", daemon=True).start()
        return self._known.get(member)

    def _ask(self, member: str) -> None:
        with contextlib.suppress(ConfigError):
            self._known[member] = resolve(*self._members[member])
