"""The names under which an HTTP port may be addressed: the defence against DNS rebinding.

A web page of evil.example can let its own name resolve to our address. Its requests then have its own origin,
and only the header Host shows that they were meant for another name. So a request that changes something, or
comes from a browser, must name this machine by its IP address, by a name of this machine, or by one that the
operator has listed. Imports no FastAPI.
"""

import re
import socket
import threading
from collections.abc import Iterable, Iterator

from keelmq.remoting.address_text import is_ip

LOCALHOST = "localhost"
SERVICE = "svc"
"""The label between namespace and cluster domain in Kubernetes: POD.SERVICE.NAMESPACE.svc.cluster.local."""


def host_of(header: bytes) -> str | None:
    """Returns the host of a header Host in lower case, without port, brackets and the final dot; None: it is
    not a host."""
    text = header.decode("latin-1").strip().lower()
    found = re.fullmatch(r"(?:\[([0-9a-f:.%a-z]+)\]|([a-z0-9._-]+))(?::[0-9]*)?", text)
    return (found[1] or found[2]).rstrip(".") or None if found else None


class AllowedHosts:
    """IP addresses, localhost, the names of this machine, and `names`; "*.domain" is all below a domain, "*"
    any host."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        listed = {name.lower().rstrip(".") for name in names if name}
        self._any = "*" in listed
        self._domains = tuple(name[1:] for name in listed if name.startswith("*."))
        self._names = {LOCALHOST, *names_of(socket.gethostname()), *listed}

    def __contains__(self, host: str) -> bool:
        return (
            self._any or is_ip(host) or host in self._names or host.endswith((".localhost", *self._domains))
        )

    def look_up(self) -> None:
        """Adds this machine's full name, once it is found out. A resolver may take long to say that it does
        not know it, so this is done by a thread that nothing waits for."""
        threading.Thread(target=self._look_up, daemon=True, name="full name of this machine").start()

    def _look_up(self) -> None:
        self._names |= names_of(socket.getfqdn())


def names_of(full_name: str) -> set[str]:
    """Returns a machine's full name and its first label. Of a pod in Kubernetes also the shorter forms, and
    those of its service, but for those that end with the namespace: this may be a public domain, such as dev,
    where others can have a name."""
    return set(_names_of(full_name.lower().rstrip(".").split(".")))


def _names_of(labels: list[str]) -> Iterator[str]:
    yield ".".join(labels)
    yield labels[0]
    if labels[3:4] == [SERVICE]:
        pod, service, namespace = labels[:3]
        yield from (f"{pod}.{service}", f"{pod}.{service}.{namespace}.{SERVICE}")
        yield from (service, f"{service}.{namespace}.{SERVICE}", ".".join(labels[1:]))
