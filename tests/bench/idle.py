"""Suite idle: what a connection costs the broker's memory while nothing happens on it.

Kernel socket memory is not in it. Two kinds: one that was only opened, and one of a consumer that has told
who it is, as most connections of a broker are.
"""

import json
import resource
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results
from tests.bench.resident import own_kib
from tests.bench.servers import Server, lone_broker

CONNECTIONS = 5_000
FIRST_ONES = 200
"""They make tables and pools grow that the next ones find."""
GOAL_KIB = 4.0
SPARE_FILES = 200
UNKNOWN_CODE = 29_999


def allow_open_files(connections: int) -> None:
    """Raises this process's limit, which a broker inherits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BenchError(f"{needed} open files are needed, the limit is {hard}: raise it (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))


def run() -> Results:
    allow_open_files(CONNECTIONS + FIRST_ONES)
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as place:
        results = {}
        for name, registers in (("idle_connection", False), ("idle_consumer", True)):
            with lone_broker(Path(place) / name, {"maxConnectionsPerAddress": "0"}) as broker:
                each = _kib_each(broker, registers)
                results[name] = Measurement(each, "KiB", GOAL_KIB, each / GOAL_KIB)
        return results


def _kib_each(broker: Server, registers: bool) -> float:
    with _open(broker, 0, FIRST_ONES, registers):
        before = own_kib(broker.pid)
        with _open(broker, FIRST_ONES, CONNECTIONS, registers):
            return (own_kib(broker.pid) - before) / CONNECTIONS


@contextmanager
def _open(broker: Server, first: int, count: int, registers: bool) -> Iterator[None]:
    """Each has been answered once: by then the broker knows of it."""
    with ExitStack() as stack:
        for number in range(first, first + count):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
            connection.sendall(_heartbeat(number) if registers else _frame(UNKNOWN_CODE))
            _answer(connection)
        yield


def _heartbeat(number: int) -> bytes:
    body = {
        "clientID": f"127.0.0.1@{number}",
        "consumerDataSet": [
            {
                "groupName": "idle_consumers",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "BROADCASTING",  # nobody is told of newcomers
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionDataSet": [{"topic": "BenchmarkTest", "subString": "*", "subVersion": 1}],
            }
        ],
    }
    return _frame(34, json.dumps(body).encode())


def _frame(code: int, body: bytes = b"") -> bytes:
    header = {"code": code, "flag": 0, "language": "JAVA", "opaque": 1, "version": 479}
    raw = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(raw) + len(body), len(raw)) + raw + body


def _answer(connection: socket.socket) -> None:
    """A short one: it comes at once."""
    if len(connection.recv(65_536)) < 8:
        raise BenchError("the broker closed a connection")
