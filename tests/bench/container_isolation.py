"""Part of the suite container: what a master of a container feels of a neighbour in the same process.

One neighbour recovers: its log of RECOVERED_ROUNDS seconds of sends is read, checked and dispatched again,
as after kill -9 with the checkpoint and all queues lost. Another one serves pulls of old messages, 32 to a
reply. Measured: p99 of sends with one in flight, and sends per second with 4 x 64 in flight, with the
neighbour against without. Goals: p99 at most 10 x, or 10 ms if that is more, as a quiet machine's p99 is
below the lock's 0.5 ms; a quarter of the sends per second at least, as both want the one core that a Python
process has.
"""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.container import ADD_BROKER, AddBrokerRequest
from tests.bench.native import BenchError
from tests.bench.pull import fill_queues, pull_rate
from tests.bench.report import Measurement, Results
from tests.bench.servers import Server, Shape, container, load, lone_broker

ONE, MANY = Shape(1, 1), Shape(4, 64)
RECOVERED_ROUNDS = 4
ROUND_MS = 1_000
SAMPLES = 3
ADD_TIMEOUT_MS = 120_000
TOPIC = "adjacent"


def neighbours() -> Results:
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as place:
        directory = Path(place)
        store = _crashed_store(directory / "crashed")
        more = {"brokerConfigDirectories": str(directory)}
        with container(directory / "container", 2, more) as (pid, ports):
            master, neighbour = [Server("container", pid, port) for port in ports]
            fill_queues(neighbour.port, TOPIC, 1)
            alone = _felt(master, lambda: True)
            with ThreadPoolExecutor(1) as pool, _pulls(pool, neighbour) as pulls:
                while_pulls = _felt(master, lambda: not pulls.done())
            with ThreadPoolExecutor(1) as pool:
                added = pool.submit(lambda: asyncio.run(_add(directory, store)))
                while_recovery = _felt(master, lambda: not added.done())
                added.result()
    return {**_compared("recovery", while_recovery, alone), **_compared("pulls", while_pulls, alone)}


def _compared(name: str, felt: tuple[float, float], alone: tuple[float, float]) -> Results:
    return {
        f"neighbour_{name}_p99": Measurement(felt[0], "us", alone[0], felt[0] / alone[0]),
        f"neighbour_{name}_rate": Measurement(felt[1], "replies/s", alone[1], felt[1] / alone[1]),
    }


def _felt(server: Server, is_valid: Callable[[], bool]) -> tuple[float, float]:
    """(p99 in us of one in flight, replies per second of many); only samples that end while is_valid()."""
    p99, rates = list[float](), list[float]()
    for _ in range(SAMPLES):
        for shape, samples in ((ONE, p99), (MANY, rates)):
            result = load(server, shape, measure_ms=ROUND_MS)
            if is_valid():
                samples.append(result["p99_us"] if shape is ONE else result["replies"] / result["wall_s"])
    if not p99 or not rates:
        raise BenchError("the neighbour was done before it was felt: give it more to do")
    return median(p99), median(rates)


@contextmanager
def _pulls(pool: ThreadPoolExecutor, neighbour: Server) -> Iterator[Future[None]]:
    ending = list[bool]()

    def pull() -> None:
        while not ending:
            pull_rate(neighbour, TOPIC)

    future = pool.submit(pull)
    try:
        yield future
    finally:
        ending.append(True)
        future.result()


def _crashed_store(directory: Path) -> Path:
    with lone_broker(directory) as server:
        for _ in range(RECOVERED_ROUNDS):
            load(server, MANY, measure_ms=ROUND_MS)
        os.kill(server.pid, signal.SIGKILL)
    store = directory / "store"
    (store / "checkpoint").unlink(missing_ok=True)
    for name in ("consumequeue", "index"):
        shutil.rmtree(store / name, ignore_errors=True)
    return store


async def _add(directory: Path, store: Path) -> None:
    lines = (directory / "container" / "container.conf").read_text().splitlines()
    port = next(line.partition("=")[2] for line in lines if line.startswith("listenPort="))
    path = directory / "crashed.conf"
    settings = {
        "brokerName": "broker",
        "listenPort": "0",
        "fastListenPort": "-1",
        "storePathRootDir": str(store),
        "mappedFileSizeCommitLog": str(256 << 20),
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    client = RemotingClient()
    try:
        outcome = await client.call(
            f"127.0.0.1:{port}",
            ADD_BROKER,
            AddBrokerRequest(config_path=str(path)),
            timeout_ms=ADD_TIMEOUT_MS,
        )
    finally:
        await client.close()
    if not isinstance(outcome, Ok):
        raise BenchError(f"the crashed broker is not added: {outcome}")
