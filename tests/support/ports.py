"""Ports for servers that a test starts, where port 0 will not do because somebody must know the port before.

Such a port comes from here only (`test_house.py`): a port that the system chose, for a socket that was closed
again, may be another process's by the time the server listens on it."""

from itertools import islice

from cli.lab.ports import free_ports as unused_ports


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody listens on, and that no other call gets, in this or in another process."""
    return list(islice(unused_ports(), count))


def free_port() -> int:
    """Returns one of them."""
    return free_ports(1)[0]
