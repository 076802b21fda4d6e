"""Ports for programs that a test starts: below the range that the system takes for outgoing connections.

A port of that range may be in use as somebody's own end by the time the program listens on it; with hundreds
of connections in tests beside, that happens."""

from itertools import islice

from cli.lab.cluster import free_ports as unused_ports


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody listens on, no two alike."""
    return list(islice(unused_ports(), count))


def free_port() -> int:
    """Returns one of them."""
    return free_ports(1)[0]
