"""Ports for the programs of a cluster on this machine: free, and chosen by no other process meanwhile.

They are below the range of outgoing connections: a port of that range may be taken by another connection
while its server is dead, and a client that connects to it then may connect to itself. Between the choice of a
port and its bind, another process could choose it as well. So each process that chooses one locks the byte of
that number in a file that all processes of the user share; the locks end with the process.
"""

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

HOST = "127.0.0.1"
PORT_MIN = 12_000
PORT_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
EPHEMERAL_PORT_MIN_DEFAULT = 32_768

_chosen: set[tuple[int, int]] = set()  # (process, port): a lock does not exclude its own process


def free_ports(among: Sequence[int] | None = None) -> Iterator[int]:
    """Yields free ports in random order, each to one process, and there only once. `among` None: all that
    are below those of outgoing connections."""
    candidates = range(PORT_MIN, _ephemeral_port_min()) if among is None else among
    for port in random.sample(candidates, len(candidates)):
        if (os.getpid(), port) not in _chosen and _is_reserved(port):
            _chosen.add((os.getpid(), port))
            if is_free(port):
                yield port


def is_free(port: int) -> bool:
    """Returns whether no process listens on the port of this host."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _is_reserved(port: int) -> bool:
    """Returns whether this process has the port's lock now; without a lock file, it counts as locked."""
    file = _lock_file(os.getpid())
    try:
        if file is not None:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _lock_file(_process: int) -> int | None:
    """Returns the descriptor, open until the process ends: closing any other one would end the locks. None:
    the file is not ours, or cannot be made."""
    path = Path(tempfile.gettempdir()) / f"keelmq-ports.{os.getuid()}"
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        return None


def _ephemeral_port_min() -> int:
    try:
        lowest = int(PORT_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return EPHEMERAL_PORT_MIN_DEFAULT
    return lowest if lowest > PORT_MIN + 1_000 else EPHEMERAL_PORT_MIN_DEFAULT
