"""`keelmq demo --container`: two machines, each a container with a replica of two groups, and one dies.

    machine 0: broker-a master, broker-b slave        machine 1: broker-a slave, broker-b master

One round: kill a machine with SIGKILL; its master's group fails over to the other machine, where both groups
serve then; start the machine again, wait until all replicas are in sync, and spread the masters again. At the
end everything is read back and compared with the ack log.
"""

import asyncio
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.lab.ack_log import Report
from cli.lab.cluster import ClusterError
from cli.lab.container_cluster import ContainerCluster, ContainerProgram
from cli.lab.ctrl_c import ends_like_ctrl_c
from cli.lab.demo_end import keep_telemetry_only, print_report
from cli.lab.secure import secured
from cli.lab.two_machines import MACHINES, TwoMachines
from keelmq.client import PullError
from keelmq.client.admin import AdminError
from keelmq.runtime.clock import now_ms
from keelmq.runtime.stop_steps import StopError

GROUPS: Final = ("broker-a", "broker-b")
SPREAD: Final = {name: index for index, name in enumerate(GROUPS)}
NAME_SERVERS: Final = 3
CLUSTER_NAME: Final = "KeelCluster"
STEADY_MS: Final = 2_000
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
    """One run in one event loop; prints what happens."""

    def __init__(self, options: ContainerDemoOptions, cluster: ContainerCluster) -> None:
        self._options, self._cluster = options, cluster
        self._machines = TwoMachines(cluster, GROUPS, rate=options.rate)
        self._began_ms = now_ms()

    async def run(self) -> dict[str, Report]:
        """Returns a report for each group. ClusterError or PullError: no recovery in time."""
        try:
            self._tell(f"starting {NAME_SERVERS} name servers with controllers, and {MACHINES} containers")
            self._tell(f"directory: {self._cluster.directory}")
            await self._machines.start(SPREAD)
            self._tell("each machine has the master of one group and the slave of the other; producers run")
            await self._steady()
            for number in range(self._options.kills):
                await self._kill(self._cluster.containers[number % MACHINES], number + 1)
            self._tell("reading everything back")
            return await self._machines.end()
        finally:
            await self._machines.close()

    async def _kill(self, machine: ContainerProgram, number: int) -> None:
        lost = await self._machines.kill(machine)
        self._tell(
            f"kill {number}: SIGKILL to {machine.name} (pid {machine.pid}), master of {', '.join(lost)}"
        )
        for name, gap_ms in (await self._machines.gaps()).items():
            what = "its master died" if name in lost else "its slave died"
            self._tell(f"kill {number}: {name} waited {gap_ms} ms ({what})")
        await self._steady()
        self._tell(f"one machine serves both groups; {machine.name} starts again")
        self._cluster.start_program(machine)
        await self._machines.all_in_sync(f"after the return of {machine.name}")
        failed = self._machines.failed_sends()
        moved = await self._machines.place(SPREAD)
        await self._steady()
        failed = self._machines.failed_sends() - failed
        self._tell(f"all are in sync; master again: {', '.join(moved)}; {failed} sends failed meanwhile")

    async def _steady(self) -> None:
        await asyncio.sleep(STEADY_MS / 1_000)
        self._machines.check()

    def _tell(self, text: str) -> None:
        print(f"[{(now_ms() - self._began_ms) / 1_000:6.2f} s] {text}", flush=True)


@ends_like_ctrl_c()
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
        shutil.rmtree(directory, ignore_errors=True)
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
