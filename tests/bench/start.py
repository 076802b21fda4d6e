"""Suite start: the CPU time until a server is ready, and its memory while it has nothing to do.

A broker alone, and a name server with the controller, both without data: once without an HTTP port, once with
one that has been asked. Memory is all that is resident, and without the pages of mapped files. The yardstick
is an interpreter that has only imported asyncio, in the same rounds.
"""

import http.client
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results
from tests.bench.resident import own_kib, resident_kib
from tests.bench.servers import Server, bare_python, lone_broker, lone_controller
from tests.support.ports import free_port

ROUNDS: Final = 5
SETTLE_S: Final = 2
"""From ready, or from the first answer over HTTP, to the look at the memory."""
HTTP_SECONDS_MAX: Final = 60
NS_PER_S: Final = 1e9

Start = Callable[[Path, Mapping[str, str]], AbstractContextManager[Server]]
SERVERS: Final[Mapping[str, Start]] = {"broker": lone_broker, "controller": lone_controller}


class _Cost(NamedTuple):
    cpu_s: float
    resident_mib: float
    own_mib: float


def run() -> Results:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    _round()  # writes the bytecode of all modules
    rounds = [_round() for _ in range(ROUNDS)]
    results: Results = {}
    for name in rounds[0]:
        if name == "bare":
            continue
        for at, (what, unit) in enumerate((("cpu", "s"), ("resident", "MiB"), ("own", "MiB"))):
            value = median(each[name][at] for each in rounds)
            yardstick = median(each["bare"][at] for each in rounds)
            ratio = median(each[name][at] / each["bare"][at] for each in rounds)
            results[f"{name}_{what}"] = Measurement(value, unit, yardstick, ratio)
    return results


def _round() -> dict[str, _Cost]:
    with bare_python() as bare:
        costs = {"bare": _cost(bare)}
    for name, start in SERVERS.items():
        with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as place:
            with start(Path(place) / "plain", {}) as server:
                costs[name] = _cost(server)
            port = free_port()
            with start(Path(place) / "http", {"httpPort": str(port)}) as server:
                _wait_for_http(port)
                costs[name + "_http"] = _cost(server)
    return costs


def _cost(server: Server) -> _Cost:
    cpu_s = _cpu_s(server.pid)
    time.sleep(SETTLE_S)
    return _Cost(cpu_s, resident_kib(server.pid) / 1024, own_kib(server.pid) / 1024)


def _cpu_s(pid: int) -> float:
    """Of all threads that the process has. /proc/PID/stat counts in steps of 10 ms."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / NS_PER_S


def _wait_for_http(port: int) -> None:
    """The port is bound before the server is ready, and answers when its server is loaded."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HTTP_SECONDS_MAX)
    try:
        connection.request("GET", "/livez")
        if (answer := connection.getresponse()).status != 200:
            raise BenchError(f"/livez answered {answer.status}")
    except OSError as error:
        raise BenchError(f"/livez did not answer: {error}") from None
    finally:
        connection.close()
