"""`keelmq demo`: a cluster of real processes under traffic loses its masters, but no acknowledged message.

One round: kill the master with SIGKILL, measure how long the producer waited, start the dead broker again,
wait until it is back in the SyncStateSet, and two seconds more. After the first round (and every fifth then)
the leading controller is killed alone: producers must not notice. At the end everything is read back and
compared with the ack log.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cli.lab.ack_log import AckLog, Report
from cli.lab.cluster import Cluster, ClusterError, Program
from cli.lab.ctrl_c import ends_like_ctrl_c
from cli.lab.demo_end import (
    ANALYTICS,
    TELEMETRY,
    keep_telemetry_only,
    print_commands,
    print_report,
    print_report_command,
)
from cli.lab.demo_view import View, make_view
from cli.lab.failover_timeline import Timeline, medians, timeline_of, timeline_text
from cli.lab.observer import Picture, Watcher
from cli.lab.secure import application_tls, credentials_path, secured
from cli.lab.traffic import Traffic, read_back
from keelmq.client import PullError
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.operations.route import TopicConfig
from keelmq.remoting.records import SendGap
from keelmq.remoting.telemetry import TelemetryConfig, TelemetryWriter
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.stop_steps import StopError, StopSteps, stop_after
from keelmq.runtime.tasks import TaskSet

if TYPE_CHECKING:
    from cli.lab.grpc_demo import GrpcTraffic  # needs the package grpcio

TOPIC = "KeelDemo"
CLUSTER_NAME = "KeelCluster"
BROKERS = 3
NAME_SERVERS = 3
PROXIES = 2
"""With --grpc."""
RATE_DEFAULT = 1_000
LOOK_MS = 250
DOWN_MS = 1_000
"""From the first acknowledged send after a kill to the restart of what was killed, long enough to watch."""
STEADY_MS = 2_000
"""Healthy time before the next fault; three rounds take about 20 s."""
START_TIMEOUT_S = 20.0
GAP_TIMEOUT_S = 15.0
REJOIN_TIMEOUT_S = 30.0
CONTROLLER_KILL_EVERY = 5

BROKER_SETTINGS = {
    "allAckInSyncStateSet": "true",
    "minInSyncReplicas": "1",
    "autoCreateTopicEnable": "true",
    "mappedFileSizeCommitLog": str(64 << 20),
    "controllerHeartBeatTimeoutMills": "3000",
}


@dataclass(frozen=True)
class DemoOptions:
    """`keep`: leave the cluster running. `rate`: messages per second. `secure`: see cli/lab/secure.py.
    `grpc`: with proxies, and clients of gRPC (cli/lab/grpc_demo.py)."""

    kills: int = 3
    keep: bool = False
    plain: bool = False
    rate: int = RATE_DEFAULT
    secure: bool = False
    grpc: bool = False


class Demo:
    def __init__(self, options: DemoOptions, cluster: Cluster, view: View) -> None:
        self._options, self._cluster, self._view = options, cluster, view
        self._ack_log = AckLog()
        self._watcher = Watcher(cluster)
        self._timelines: list[Timeline] = []
        self._grpc = _grpc_traffic(options, cluster, self._ack_log) if options.grpc else None
        tls = application_tls(cluster.directory) if options.secure else False
        self._traffic = self._grpc or Traffic(
            cluster.namesrv_addr, TOPIC, self._ack_log, rate=options.rate, tls=tls
        )
        limits = TelemetryConfig.model_validate({})
        self._telemetry = TelemetryWriter(
            cluster.directory / "demo" / TELEMETRY,
            node="demo",
            reserved_hours=limits.telemetry_reserved_time,
            bytes_max=limits.telemetry_bytes_max,
        )

    async def run(self) -> Report:
        """Runs the demo. ClusterError or PullError: the cluster did not recover in time."""
        looking = asyncio.create_task(self._look(), name="look")
        tasks = TaskSet()
        tasks.start("telemetry of the demo", self._telemetry.run)
        try:
            await self._start()
            for kill in range(self._options.kills):
                await self._kill_master(kill + 1)
                if kill % CONTROLLER_KILL_EVERY == 0:
                    await self._kill_controller_leader()
            self._view.event("stopping the producer, waiting for the last acknowledgements")
            await self._traffic.stop()
            return await self._compare()
        finally:
            looking.cancel()
            steps = StopSteps("keelmq demo")
            steps.add("the view", lambda: asyncio.gather(looking, return_exceptions=True))
            steps.add("the producer", self._traffic.close)
            steps.add("the watcher", self._watcher.close)
            steps.add("background tasks", tasks.stop)
            steps.add("telemetry", self._telemetry.close)
            await stop_after(steps.run, sys.exc_info()[1])

    async def _look(self) -> None:
        while True:
            self._view.show(await self._watcher.look(), self._ack_log)
            await asyncio.sleep(LOOK_MS / 1_000)

    async def _start(self) -> None:
        self._view.event(f"starting {NAME_SERVERS} name servers with controllers and {BROKERS} brokers")
        self._view.event(f"directory: {self._cluster.directory}")
        started_ms = now_ms()
        self._cluster.start()
        await self._all_in_sync("all replicas in the SyncStateSet after the start", START_TIMEOUT_S)
        if self._grpc is not None:
            await self._subscribe(self._grpc)
        self._view.event(f"the cluster is up after {now_ms() - started_ms} ms; the producer starts")
        self._traffic.start()
        await self._until("the first acknowledged message", lambda: self._ack_log.acked > 0, GAP_TIMEOUT_S)
        await self._steady()

    async def _subscribe(self, traffic: "GrpcTraffic") -> None:
        """A group begins at the end of a topic, so both exist before the first message."""
        picture = await self._watcher.look()
        master = next(program for program in self._cluster.brokers if program.name == picture.master)
        async with AdminClient() as admin:
            await admin.brokers.update_topic(master.address, TopicConfig(topic_name=TOPIC))
        async with asyncio.timeout(START_TIMEOUT_S):
            await traffic.subscribe()

    async def _kill_master(self, number: int) -> None:
        picture = await self._all_in_sync("all replicas in the SyncStateSet", REJOIN_TIMEOUT_S)
        master = next(program for program in self._cluster.brokers if program.name == picture.master)
        broker_id = next(each.broker_id for each in picture.replicas if each.name == picture.master)
        kill_ms, kill_ts = now_ms(), wall_ms()
        await self._cluster.kill_and_wait(master)
        self._ack_log.killed(kill_ms)
        self._view.event(f"kill {number}: SIGKILL to the master {master.name} (pid {master.pid})")
        await self._until(
            "a send that is acknowledged again", lambda: not self._ack_log.is_waiting, GAP_TIMEOUT_S
        )
        gap_ms = self._ack_log.gaps_ms[-1]
        self._view.event(f"kill {number}: the producer waited {gap_ms} ms")
        timeline = await asyncio.to_thread(self._timeline, kill_ts, kill_ts + gap_ms)
        self._timelines.append(timeline)
        self._view.event(f"kill {number}: ms since SIGKILL: {timeline_text(timeline)}")
        self._telemetry.put(
            SendGap(
                ts=kill_ts + gap_ms,
                cluster_name=self._cluster.cluster_name,
                broker_name=self._cluster.broker_name,
                broker_id=broker_id or 0,
                program=master.name,
                started_ts=kill_ts,
                gap_ms=gap_ms,
            )
        )
        await asyncio.sleep(DOWN_MS / 1_000)
        await self._restart(master)
        restarted_ms = now_ms()
        await self._all_in_sync(f"{master.name} back in the SyncStateSet", REJOIN_TIMEOUT_S)
        self._view.event(
            f"{master.name} caught up and is in the SyncStateSet after {now_ms() - restarted_ms} ms"
        )
        await self._steady()

    def _timeline(self, killed_ts: int, acknowledged_ts: int) -> Timeline:
        logs = {
            program.name: program.log_path.read_text(errors="replace") for program in self._cluster.programs
        }
        return timeline_of(logs, killed_ts=killed_ts, acknowledged_ts=acknowledged_ts)

    async def _kill_controller_leader(self) -> None:
        """A controller leader is killed: producers notice nothing. Reports the slowest send."""
        address = await self._cluster.until(
            "a leading controller", self._watcher.controller_leader, timeout_s=START_TIMEOUT_S
        )
        leader = self._cluster.controller_at(address)
        failed, retried = self._ack_log.unacknowledged, self._ack_log.retried
        self._ack_log.reset_slowest()
        killed_ms = now_ms()
        await self._cluster.kill_and_wait(leader)
        self._view.event(f"SIGKILL to the controller leader {leader.name} (pid {leader.pid}), alone")

        async def another() -> str | None:
            return await self._watcher.other_leader(address)

        await self._cluster.until("another controller leader", another, timeout_s=START_TIMEOUT_S)
        election_ms = now_ms() - killed_ms
        await self._steady()
        self._view.event(
            f"another controller leads after {election_ms} ms; meanwhile the slowest send took "
            f"{self._ack_log.slowest_ms} ms, {self._ack_log.retried - retried} retried, "
            f"{self._ack_log.unacknowledged - failed} failed"
        )
        await self._restart(leader)

        async def follows() -> bool:
            return await self._watcher.answers(leader.controller_address)

        await self._cluster.until(f"{leader.name} back in the group", follows, timeout_s=REJOIN_TIMEOUT_S)
        self._view.event(f"{leader.name} is back and knows the leader")

    async def _restart(self, program: Program) -> None:
        self._cluster.start_program(program)
        self._view.event(f"started {program.name} again (pid {program.pid})")

    async def _compare(self) -> Report:
        self._view.event(f"timeline: median ms since SIGKILL: {timeline_text(medians(self._timelines))}")
        picture = await self._all_in_sync("all replicas in the SyncStateSet at the end", REJOIN_TIMEOUT_S)
        if self._grpc is not None:
            await self._grpc.drain(self._view.event)
            self._view.event(f"the gRPC consumer has received {self._ack_log.read} messages")
            return self._ack_log.report()
        self._view.event(f"reading everything back from the final master {picture.master}")
        await read_back(self._cluster.namesrv_addr, TOPIC, self._ack_log)
        self._view.event(f"read {self._ack_log.read} messages back")
        return self._ack_log.report()

    async def _steady(self) -> None:
        await asyncio.sleep(STEADY_MS / 1_000)
        self._traffic.check()
        self._cluster.check()

    async def _all_in_sync(self, what: str, timeout_s: float) -> Picture:
        async def picture() -> Picture | None:
            found = await self._watcher.look()
            return found if found.all_in_sync(BROKERS) else None

        return await self._cluster.until(what, picture, timeout_s=timeout_s)

    async def _until(self, what: str, condition: Callable[[], bool], timeout_s: float) -> None:
        async def asked() -> bool:
            self._traffic.check()
            return condition()

        await self._cluster.until(what, asked, timeout_s=timeout_s)


def _grpc_traffic(options: DemoOptions, cluster: Cluster, ack_log: AckLog) -> "GrpcTraffic":
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # programs are started while calls run
    try:
        from cli.lab.grpc_demo import GrpcTraffic
    except ImportError as error:
        raise ClusterError(f"--grpc needs the package {error.name}: install keelmq[grpc]") from error
    addresses = [program.address for program in cluster.proxies]
    return GrpcTraffic(addresses, TOPIC, ack_log, broker_name=cluster.broker_name, rate=options.rate)


@ends_like_ctrl_c()
def run_demo(options: DemoOptions) -> int:
    """Returns the exit code: 0 nothing lost; 1 something lost, or no recovery in time; 130 Ctrl-C."""
    directory = Path(tempfile.mkdtemp(prefix="keelmq-demo-"))
    try:
        with secured(directory, CLUSTER_NAME, wanted=options.secure) as keys:
            cluster = Cluster(
                directory,
                name_servers=NAME_SERVERS,
                brokers=BROKERS,
                cluster_name=CLUSTER_NAME,
                namesrv_settings={"analyticsOutputDir": str(directory / ANALYTICS), **keys},
                broker_settings={**BROKER_SETTINGS, **keys},
                detached=options.keep,
                http=options.keep,
                proxies=PROXIES * options.grpc,
            )
            with cluster:
                report = _play(options, cluster)
    except StopError as error:
        print(f"{error}\nLogs stay in {directory}", file=sys.stderr)
        return 1
    except (ClusterError, PullError, AdminError, TimeoutError) as error:
        print(f"keelmq demo: the cluster did not recover: {error}\nLogs stay in {directory}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        shutil.rmtree(directory, ignore_errors=True)
        print("keelmq demo: stopped by Ctrl-C, every program was ended", file=sys.stderr)
        return 130
    print_report(report)
    if options.keep:
        credentials = credentials_path(directory) if options.secure else None
        print_commands(cluster, topic=TOPIC, credentials=credentials)
    elif report.ok:
        keep_telemetry_only(directory)
    else:
        print(f"Data and logs stay in {directory}")
    print_report_command(directory)
    print(report.result_line(), flush=True)
    return 0 if report.ok else 1


def _play(options: DemoOptions, cluster: Cluster) -> Report:
    import uvloop

    async def play(view: View) -> Report:
        return await Demo(options, cluster, view).run()  # grpcio's channels belong to the loop that runs

    with make_view(plain=options.plain) as view, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(play(view))
