"""Ports are chosen once: in this process, and among processes."""

import socket
import subprocess
import sys
from itertools import islice

from cli.lab import ports

CHOOSE = "import sys; from cli.lab.ports import free_ports; print(*free_ports([*map(int, sys.argv[1:])]))"


def test_no_port_is_chosen_twice() -> None:
    ours = set(islice(ports.free_ports(), 200)) | set(islice(ports.free_ports(), 200))
    assert len(ours) == 400
    others = [port for port in range(ports.PORT_MIN, ports.PORT_MIN + 200) if port not in ours]
    command = [sys.executable, "-c", CHOOSE, *map(str, [*ours, *others])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    theirs = {int(port) for port in done.stdout.split()}
    assert theirs and not ours & theirs


def test_a_port_that_somebody_listens_on_is_left_out() -> None:
    (port,) = islice(ports.free_ports(), 1)
    assert ports.is_free(port)
    with socket.create_server((ports.HOST, port)):
        assert not ports.is_free(port)
