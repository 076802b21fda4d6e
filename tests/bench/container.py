"""Suite container: several brokers in one process, and spread over processes, against brokers alone.

Goals: 8 idle brokers need at most a third of the memory of eight processes, and at most the idle CPU of four;
two masters in one process take 0.9 of one's messages per CPU second; two worker processes take 1.7 x those of
one. The load generator needs the second core of the machines that we have, so the last is measured as CPU per
message: two processes that need as much of it as one take twice as many where two cores are free. A killed
container with two masters: both groups are served again within 1.5 x the gap of one.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from cli.lab.cluster import ClusterError
from cli.lab.container_cluster import ContainerCluster
from cli.lab.container_demo import BROKER_SETTINGS, CLUSTER_NAME, GROUPS, NAME_SERVERS
from cli.lab.two_machines import MACHINES, TwoMachines
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Ok
from keelmq.remoting.operations.container import CONTAINER_STATUS, ContainerStatus
from tests.bench.container_isolation import neighbours
from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results, alternate
from tests.bench.resident import own_kib
from tests.bench.servers import Server, Shape, container, load, lone_broker, per_cpu_second

IDLE_BROKERS = 8
IDLE_PROCESSES = 4
IDLE_S = 15.0
SETTLE_S = 5.0
SHAPE = Shape(4, 64)
KILLS = 5
RATE = 500


def run() -> Results:
    return {**_idle(), **_throughput(), **neighbours(), **asyncio.run(_gaps())}


# -- idle --------------------------------------------------------------------------------------------------


def _idle() -> Results:
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as place, ExitStack() as stack:
        alone = [
            stack.enter_context(lone_broker(Path(place) / f"alone-{number}")).pid
            for number in range(IDLE_BROKERS)
        ]
        together, _ = stack.enter_context(container(Path(place) / "container", IDLE_BROKERS))
        time.sleep(SETTLE_S)
        memory = own_kib(together) / 1_024
        of_processes = sum(map(own_kib, alone)) / 1_024
        before = {pid: _cpu_s(pid) for pid in (together, *alone)}
        time.sleep(IDLE_S)
        used = {pid: (_cpu_s(pid) - before[pid]) * 1_000 / IDLE_S for pid in before}
    of_four = sum(used[pid] for pid in alone) * IDLE_PROCESSES / IDLE_BROKERS
    return {
        "memory_vs_processes": Measurement(memory, "MiB", of_processes, of_processes / memory),
        "idle_cpu_vs_four": Measurement(used[together], "ms/s", of_four, used[together] / max(of_four, 1e-3)),
    }


def _cpu_s(pid: int) -> float:
    """CPU time of the whole process, in s. Finer than /proc/<pid>/stat."""
    ticks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in ticks.iterdir()) / 1e9


# -- throughput --------------------------------------------------------------------------------------------


def _throughput() -> Results:
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as directory, ExitStack() as stack:
        place = Path(directory)
        one = stack.enter_context(lone_broker(place / "one"))
        pid, ports = stack.enter_context(container(place / "two", 2))
        shared = [Server("container", pid, port) for port in ports]
        spread = stack.enter_context(_spread(place / "spread"))
        alone, together, apart = alternate(
            lambda: per_cpu_second(load(one, SHAPE)),
            lambda: _both(shared),
            lambda: _both(spread),
        )
    return {
        "throughput_vs_one": Measurement(together, "replies/CPU s", alone, together / alone),
        "scale_over_processes": Measurement(2 * apart, "replies/2 CPU s", alone, 2 * apart / alone),
    }


@contextmanager
def _spread(directory: Path) -> Iterator[list[Server]]:
    """Two brokers on two processes of one container."""
    with container(directory, 2, {"containerProcesses": "2"}) as (_, ports):
        status = asyncio.run(_status(directory))
        pids = {worker.number: worker.pid for worker in status.workers}
        found = {int(each.address.rpartition(":")[2]): pids[each.worker] for each in status.brokers}
        if len(set(found.values())) != 2:
            raise BenchError(f"the brokers are not on two processes: {found}")
        yield [Server("worker", found[port], port) for port in ports]


async def _status(directory: Path) -> ContainerStatus:
    lines = (directory / "container.conf").read_text().splitlines()
    port = next(line.partition("=")[2] for line in lines if line.startswith("listenPort="))
    client = RemotingClient()
    try:
        outcome = await client.call(f"127.0.0.1:{port}", CONTAINER_STATUS, Empty())
    finally:
        await client.close()
    if not isinstance(outcome, Ok):
        raise BenchError(f"the container does not describe itself: {outcome}")
    return ContainerStatus.model_validate(outcome.body)


def _both(servers: list[Server]) -> float:
    """Replies of both per second of the CPU time that both needed, loaded at the same time."""
    with ThreadPoolExecutor(len(servers)) as pool:
        results = list(pool.map(lambda server: load(server, SHAPE), servers))
    replies = sum(result["replies"] for result in results)
    cpu_s = {server.pid: result["server_cpu_s"] for server, result in zip(servers, results, strict=True)}
    return float(replies / sum(cpu_s.values()))


# -- fail-over ---------------------------------------------------------------------------------------------


async def _gaps() -> Results:
    """Kills a machine with one master, and one with both, in turns."""
    spread, all_on_first = dict(zip(GROUPS, range(MACHINES), strict=True)), dict.fromkeys(GROUPS, 0)
    of_one, of_two = list[int](), list[int]()
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as directory:
        cluster = ContainerCluster(
            Path(directory),
            groups=GROUPS,
            containers=MACHINES,
            name_servers=NAME_SERVERS,
            cluster_name=CLUSTER_NAME,
            broker_settings=BROKER_SETTINGS,
        )
        with cluster:
            machines = TwoMachines(cluster, GROUPS, rate=RATE)
            try:
                await machines.start(spread)
                for _ in range(KILLS):
                    for masters, gaps in ((spread, of_one), (all_on_first, of_two)):
                        gaps.append(await _gap(machines, masters))
                reports = await machines.end()
            except ClusterError as error:
                raise BenchError(str(error)) from None
            finally:
                await machines.close()
    lost = sum(report.lost for report in reports.values())
    one, two = median(of_one), median(of_two)
    return {
        "kill_gap_of_two_ms": Measurement(two, "ms", one, two / one),
        "lost_messages": Measurement(lost, "messages", 0, lost),
    }


async def _gap(machines: TwoMachines, masters: dict[str, int]) -> int:
    """The longest gap of the groups whose master died."""
    await machines.place(masters)
    machine = machines.cluster.containers[0]
    lost = await machines.kill(machine)
    gaps = await machines.gaps()
    machines.cluster.start_program(machine)
    await machines.all_in_sync("after the return of a machine")
    machines.check()
    return max(gaps[name] for name in lost)
