"""Part of the suite container: what a master of a container feels of a neighbour in the same process.

One neighbour recovers: its log of RECOVERED_ROUNDS seconds of sends is read, checked and dispatched again,
as after kill -9 with the checkpoint and all queues lost. Another one serves pulls of old messages, 32 to a
reply. A third is a slave that copies the log of a master in another process, COPIED_ROUNDS seconds of sends.
Measured: p99 of sends with one in flight, and sends per second with 4 x 64 in flight, with the neighbour
against without. Goals: p99 at most 10 x, or 10 ms if that is more, as a quiet machine's p99 is below the
lock's 0.5 ms; a quarter of the sends per second at least, as both want the one core that a process has.
"""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Ok
from keelmq.remoting.operations.broker import GET_BROKER_HA_STATUS
from keelmq.remoting.operations.container import ADD_BROKER, AddBrokerRequest
from tests.bench.native import BenchError
from tests.bench.pull import fill_queues, pull_rate
from tests.bench.report import Measurement, Results
from tests.bench.servers import Server, Shape, container, load, lone_broker
from tests.support.ports import free_port

ONE, MANY = Shape(1, 1), Shape(4, 64)
RECOVERED_ROUNDS, COPIED_ROUNDS = 8, 24
ROUND_MS = 1_000
FELT_MS = 400
"""A copy runs at hundreds of MB a second: a sample must end before the slave has caught up."""
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
            alone = _felt("nothing", master, lambda: True)
            with ThreadPoolExecutor(1) as pool, _pulls(pool, neighbour) as pulls:
                while_pulls = _felt("pulls", master, lambda: not pulls.done())
            with ThreadPoolExecutor(1) as pool:
                added = pool.submit(lambda: asyncio.run(_add(directory, "crashed", _crashed(store))))
                while_recovery = _felt("recovery", master, lambda: not added.done())
                added.result()
            with _copied_master(directory / "copied") as (source, slave):
                asyncio.run(_add(directory, "slave", slave))
                while_copy = _felt("copy", master, lambda: asyncio.run(_is_behind(source)))
    return {
        **_compared("recovery", while_recovery, alone),
        **_compared("pulls", while_pulls, alone),
        **_compared("copy", while_copy, alone),
    }


def _compared(name: str, felt: tuple[float, float], alone: tuple[float, float]) -> Results:
    return {
        f"neighbour_{name}_p99": Measurement(felt[0], "us", alone[0], felt[0] / alone[0]),
        f"neighbour_{name}_rate": Measurement(felt[1], "replies/s", alone[1], felt[1] / alone[1]),
    }


def _felt(neighbour: str, server: Server, is_valid: Callable[[], bool]) -> tuple[float, float]:
    """(p99 in us of one in flight, replies per second of many); only samples that end while is_valid()."""
    p99, rates = list[float](), list[float]()
    for _ in range(SAMPLES):
        for shape, samples in ((ONE, p99), (MANY, rates)):
            result = load(server, shape, measure_ms=FELT_MS)
            if is_valid():
                samples.append(result["p99_us"] if shape is ONE else result["replies"] / result["wall_s"])
    if not p99 or not rates:
        raise BenchError(f"{neighbour}: the neighbour was done before it was felt: give it more to do")
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


def _crashed(store: Path) -> dict[str, str]:
    return {"brokerName": "broker", "storePathRootDir": str(store)}


@contextmanager
def _copied_master(directory: Path) -> Iterator[tuple[Server, dict[str, str]]]:
    """A master in a process of its own with COPIED_ROUNDS seconds of sends, and the settings of its slave."""
    ha_port, name = free_port(), "copied"
    one_file = {"mappedFileSizeCommitLog": str(2**31 - 2**20)}  # a new slave copies the last file only
    with lone_broker(directory, one_file | {"brokerName": name, "haListenPort": str(ha_port)}) as source:
        for _ in range(COPIED_ROUNDS):
            load(source, MANY, measure_ms=ROUND_MS)
        yield (
            source,
            {
                **one_file,
                "brokerName": name,
                "brokerRole": "SLAVE",
                "brokerId": "1",
                "haMasterAddress": f"127.0.0.1:{ha_port}",
                "storePathRootDir": str(directory / "slave"),
            },
        )


async def _is_behind(source: Server) -> bool:
    """Whether the master in `source` has a slave that lacks bytes; also before it is connected."""
    client = RemotingClient()
    try:
        outcome = await client.call(f"127.0.0.1:{source.port}", GET_BROKER_HA_STATUS, Empty())
    finally:
        await client.close()
    if not isinstance(outcome, Ok):
        raise BenchError(f"the copied master does not answer 907: {outcome}")
    links = outcome.body.ha_connection_info
    return not links or any(link.diff > 0 for link in links)


async def _add(directory: Path, name: str, more: Mapping[str, str]) -> None:
    lines = (directory / "container" / "container.conf").read_text().splitlines()
    port = next(line.partition("=")[2] for line in lines if line.startswith("listenPort="))
    path = directory / f"{name}.conf"
    settings = {
        "listenPort": "0",
        "fastListenPort": "-1",
        "mappedFileSizeCommitLog": str(256 << 20),
        **more,
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
        raise BenchError(f"{path} is not added: {outcome}")
