"""`keelmq demo --container`: two machines, each a container with a replica of two groups, and one dies.

    machine 0: broker-a master, broker-b slave        machine 1: broker-a slave, broker-b master

One round: kill a machine with SIGKILL; its master's group fails over to the other machine, where both groups
serve then; start the machine again, wait until all replicas are in sync, and spread the masters again. At the
end everything is read back and compared with the ack log.
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from cli.lab.ack_log import AckLog, Report
from cli.lab.cluster import ClusterError
from cli.lab.container_cluster import ContainerCluster, ContainerProgram
from cli.lab.demo_end import keep_telemetry_only, print_report
from cli.lab.observer import Picture, Watcher
from cli.lab.secure import secured
from cli.lab.traffic import Traffic, read_back
from keelmq.client import PullError
from keelmq.client.admin import AdminClient, AdminError
from keelmq.client.cluster.routes import DEFAULT_TOPIC
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker_metadata import UPDATE_AND_CREATE_TOPIC, CreateTopicRequest
from keelmq.runtime.clock import now_ms
from keelmq.runtime.stop_steps import StopError, StopSteps, stop_after

GROUPS: Final = ("broker-a", "broker-b")
MACHINES: Final = 2
QUEUES: Final = 4
NAME_SERVERS: Final = 3
CLUSTER_NAME: Final = "KeelCluster"
STEADY_MS: Final = 2_000
START_TIMEOUT_S: Final = 30.0
GAP_TIMEOUT_S: Final = 15.0
REJOIN_TIMEOUT_S: Final = 60.0
BROKER_SETTINGS: Final = {
    "allAckInSyncStateSet": "true",
    "minInSyncReplicas": "1",
    "mappedFileSizeCommitLog": str(64 << 20),
    "controllerHeartBeatTimeoutMills": "3000",
}


@dataclass(frozen=True, slots=True)
class ContainerDemoOptions:
    """rate: messages per second, to each group. processes: containerProcesses. secure: see secure.py."""

    kills: int = 2
    rate: int = 500
    processes: int = 1
    secure: bool = False


class ContainerDemo:
    """One run in one event loop."""

    def __init__(self, options: ContainerDemoOptions, cluster: ContainerCluster) -> None:
        self._options, self._cluster = options, cluster
        self._logs = {name: AckLog() for name in GROUPS}
        self._watchers = {name: Watcher(cluster.group(name)) for name in GROUPS}
        self._traffic = {
            name: Traffic(cluster.namesrv_addr, _topic(name), log, rate=options.rate)
            for name, log in self._logs.items()
        }
        self._client = RemotingClient()
        self._admin = AdminClient(self._client)
        self._began_ms = now_ms()

    async def run(self) -> dict[str, Report]:
        """Returns a report for each group. ClusterError or PullError: no recovery in time."""
        try:
            await self._start()
            for number in range(self._options.kills):
                await self._kill(self._cluster.containers[number % MACHINES], number + 1)
            return await self._compare()
        finally:
            steps = StopSteps("keelmq demo")
            for traffic in self._traffic.values():
                steps.add("a producer", traffic.close)
            for watcher in self._watchers.values():
                steps.add("a watcher", watcher.close)
            steps.add("connections", self._client.close)
            await stop_after(steps.run, sys.exc_info()[1])

    async def _start(self) -> None:
        self._tell(f"starting {NAME_SERVERS} name servers with controllers, and {MACHINES} containers")
        self._tell(f"directory: {self._cluster.directory}")
        self._cluster.start()
        await self._all_in_sync("after the start", START_TIMEOUT_S)
        await self._make_topics()
        await self._spread()
        self._tell("both groups have their replicas in sync; the producers start")
        for name, traffic in self._traffic.items():
            traffic.start()
            log = self._logs[name]
            await self._until(f"the first message to {name}", partial(_is_acked, log), GAP_TIMEOUT_S)
        await self._steady()

    async def _kill(self, machine: ContainerProgram, number: int) -> None:
        pictures = await self._all_in_sync("before the kill", REJOIN_TIMEOUT_S)
        of_machine = {self._cluster.group(name).brokers[self._index(machine)].name for name in GROUPS}
        lost = [name for name, picture in pictures.items() if picture.master in of_machine]
        killed_ms = now_ms()
        await self._cluster.kill_and_wait(machine)
        self._tell(
            f"kill {number}: SIGKILL to {machine.name} (pid {machine.pid}), with the master of "
            f"{' and '.join(lost) or 'no group'}"
        )
        for name in GROUPS:
            self._logs[name].killed(killed_ms)
        for name in GROUPS:
            log = self._logs[name]
            await self._until(
                f"a message to {name} that is acknowledged again",
                partial(_is_served, log),
                GAP_TIMEOUT_S,
            )
            what = "its master died" if name in lost else "its slave died"
            self._tell(f"kill {number}: {name} waited {log.gaps_ms[-1]} ms ({what})")
        await self._steady()
        self._tell(f"one machine serves both groups; {machine.name} starts again")
        self._cluster.start_program(machine)
        await self._all_in_sync(f"after the return of {machine.name}", REJOIN_TIMEOUT_S)
        failed = sum(log.unacknowledged for log in self._logs.values())
        await self._spread()
        await self._steady()
        failed = sum(log.unacknowledged for log in self._logs.values()) - failed
        self._tell(f"the masters are spread again; {failed} sends failed meanwhile")

    async def _compare(self) -> dict[str, Report]:
        for traffic in self._traffic.values():
            await traffic.stop()
        await self._all_in_sync("at the end", REJOIN_TIMEOUT_S)
        reports = {}
        for name, log in self._logs.items():
            await read_back(self._cluster.namesrv_addr, _topic(name), log)
            self._tell(f"read {log.read:,} messages of {name} back")
            reports[name] = log.report()
        return reports

    # -- helpers -----------------------------------------------------------------------------------------

    async def _make_topics(self) -> None:
        """A topic for each group, so that each group's gap is seen by itself."""
        for name in GROUPS:
            picture = await self._watchers[name].look()
            master = next(each for each in picture.replicas if each.role == "master")

            async def made(address: str = master.address, topic: str = _topic(name)) -> bool:
                header = CreateTopicRequest(
                    topic=topic,
                    default_topic=DEFAULT_TOPIC,
                    read_queue_nums=QUEUES,
                    write_queue_nums=QUEUES,
                    perm=6,
                )
                return isinstance(await self._client.call(address, UPDATE_AND_CREATE_TOPIC, header), Ok)

            await self._cluster.until(f"the topic of {name}", made, timeout_s=START_TIMEOUT_S)

    async def _spread(self) -> None:
        """Master of the first group to the first machine, of the second group to the second one."""
        for index, name in enumerate(GROUPS):
            wanted = self._cluster.group(name).brokers[index]
            picture = await self._watchers[name].look()
            replica = next(each for each in picture.replicas if each.name == wanted.name)
            if picture.master == wanted.name or replica.broker_id is None:
                continue
            leader = await self._watchers[name].controller_leader()
            if leader is None:
                raise ClusterError("no controller leads")
            await self._admin.elect_master(
                leader, cluster_name=CLUSTER_NAME, broker_name=name, broker_id=replica.broker_id
            )

            async def moved(name: str = name, wanted: str = wanted.name) -> bool:
                found = await self._watchers[name].look()
                return found.master == wanted and found.all_in_sync(MACHINES)

            await self._cluster.until(f"{wanted.name} is master of {name}", moved, timeout_s=GAP_TIMEOUT_S)
            self._tell(f"{name}: {wanted.name} is master")

    async def _all_in_sync(self, what: str, timeout_s: float) -> dict[str, Picture]:
        async def pictures() -> dict[str, Picture] | None:
            found = {name: await watcher.look() for name, watcher in self._watchers.items()}
            return found if all(each.all_in_sync(MACHINES) for each in found.values()) else None

        return await self._cluster.until(f"all replicas in sync {what}", pictures, timeout_s=timeout_s)

    async def _until(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        async def asked() -> bool:
            for traffic in self._traffic.values():
                traffic.check()
            return condition()

        check: Callable[[], Awaitable[bool]] = asked
        await self._cluster.until(what, check, timeout_s=timeout_s)

    async def _steady(self) -> None:
        await asyncio.sleep(STEADY_MS / 1_000)
        for traffic in self._traffic.values():
            traffic.check()
        self._cluster.check()

    def _index(self, machine: ContainerProgram) -> int:
        return self._cluster.containers.index(machine)

    def _tell(self, text: str) -> None:
        print(f"[{(now_ms() - self._began_ms) / 1_000:6.2f} s] {text}", flush=True)


def run_container_demo(options: ContainerDemoOptions) -> int:
    """Returns the exit code: 0 nothing lost; 1 something lost, or no recovery in time; 130 Ctrl-C."""
    directory = Path(tempfile.mkdtemp(prefix="keelmq-demo-"))
    try:
        with secured(directory, CLUSTER_NAME, wanted=options.secure) as keys:
            cluster = ContainerCluster(
                directory,
                groups=GROUPS,
                containers=MACHINES,
                name_servers=NAME_SERVERS,
                cluster_name=CLUSTER_NAME,
                processes=options.processes,
                namesrv_settings=keys,
                broker_settings=BROKER_SETTINGS,
                container_settings=keys,
            )
            with cluster:
                reports = asyncio.run(ContainerDemo(options, cluster).run())
    except (StopError, ClusterError, PullError, AdminError) as error:
        print(f"keelmq demo: {error}\nLogs stay in {directory}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("keelmq demo: stopped by Ctrl-C, every program was ended", file=sys.stderr)
        return 130
    for name, report in reports.items():
        print(f"\n{name}")
        print_report(report)
        print(report.result_line(), flush=True)
    is_ok = all(report.ok for report in reports.values())
    if is_ok:
        keep_telemetry_only(directory)
    else:
        print(f"Data and logs stay in {directory}")
    return 0 if is_ok else 1


def _topic(group: str) -> str:
    return f"Demo-{group}"


def _is_acked(log: AckLog) -> bool:
    return log.acked > 0


def _is_served(log: AckLog) -> bool:
    return not log.is_waiting
