"""Suite send_tls: CPU time of the broker per send over TLS, against the same sends over plain TCP.

One client for both, which writes requests in flight in one go and reads their replies: only the broker's CPU
time is measured. Lower is better; the goal for the ratio is 1.6.
"""

import os
import socket
import ssl
import struct
import tempfile
import time
from functools import partial
from pathlib import Path

from tests.bench.frames import send_frame
from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results, alternate
from tests.bench.servers import LOAD_CPU, Server, Shape, lone_broker

BODY_BYTES = 128
WARMUP_S, MEASURE_S = 0.3, 1.0
SHAPES = {"tls_1x1": Shape(1, 1), "tls_1x64": Shape(1, 64)}


def cpu_s(pid: int) -> float:
    """User and system time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Connection:
    def __init__(self, server: Server, in_flight: int, *, tls: bool, frame: bytes | None = None) -> None:
        plain = socket.create_connection(("127.0.0.1", server.port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = plain
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self._socket = context.wrap_socket(plain)
        self._frames = (frame or send_frame(BODY_BYTES)) * in_flight
        self._in_flight = in_flight
        self._buffer = b""

    def round(self) -> None:
        """Sends all and reads all replies."""
        self._socket.sendall(self._frames)
        left = self._in_flight
        while left:
            data = self._socket.recv(262_144)
            if not data:
                raise BenchError("the broker closed the connection")
            self._buffer += data
            while len(self._buffer) >= 4:
                size = 4 + struct.unpack_from(">i", self._buffer)[0]
                if len(self._buffer) < size:
                    break
                if b'"code":0' not in self._buffer[:size]:
                    raise BenchError(f"refused: {self._buffer[:size]!r}")
                self._buffer = self._buffer[size:]
                left -= 1

    def close(self) -> None:
        self._socket.close()


def cost_us(server: Server, shape: Shape, *, tls: bool, frame: bytes | None = None) -> float:
    """CPU microseconds of the broker per send. frame: None: an unsigned one."""
    connection = Connection(server, shape.in_flight, tls=tls, frame=frame)
    try:
        _rounds(connection, WARMUP_S)
        before = cpu_s(server.pid)
        rounds = _rounds(connection, MEASURE_S)
        return (cpu_s(server.pid) - before) / (rounds * shape.in_flight) * 1e6
    finally:
        connection.close()


def _rounds(connection: Connection, seconds: float) -> int:
    count, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        connection.round()
        count += 1
    return count


def run() -> Results:
    """The certificate is the self-signed one: its kind is that of `keelmq certificates`."""
    os.sched_setaffinity(0, {LOAD_CPU})
    found: Results = {}
    with (
        tempfile.TemporaryDirectory(prefix="keelmq-bench-") as directory,
        lone_broker(Path(directory)) as server,
    ):
        for name, shape in SHAPES.items():
            tls, plain = alternate(
                partial(cost_us, server, shape, tls=True), partial(cost_us, server, shape, tls=False)
            )
            found[name] = Measurement(tls, "us/send", plain, tls / plain)
    return found
