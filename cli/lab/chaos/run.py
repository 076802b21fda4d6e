"""`keelmq chaos`: start the cluster and its clients, inject faults, read everything back, check the
history."""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cli.lab.chaos import bursts
from cli.lab.chaos.bursts import BurstReader, BurstSenders, read_bursts
from cli.lab.chaos.history import DAMAGED, History, HistoryError, Run, Stuck, entries_of
from cli.lab.chaos.judge import BROKER_NAME, CLUSTER_NAME, HISTORY, check_file, judge, telemetry_of
from cli.lab.chaos.nemesis import Nemesis, StuckError
from cli.lab.chaos.net import Net, NetError, missing
from cli.lab.chaos.plan import (
    DEFAULT_FAMILIES,
    NETWORK_FAMILIES,
    PROXY_FAMILY,
    Step,
    kinds_of,
    make_plan,
)
from cli.lab.chaos.stage import DISK_BYTES, ChaosLauncher, Stage
from cli.lab.chaos.traffic import TOPIC, Consumer, Recorder, Senders, read_all
from cli.lab.cluster import Cluster
from cli.lab.container_cluster import ContainerCluster
from cli.lab.ctrl_c import ends_like_ctrl_c
from cli.lab.demo_view import View, make_view
from cli.lab.secure import secured
from keelmq.client import MessageQueue, PullConsumer, PullError
from keelmq.client.cluster.routes import DEFAULT_TOPIC
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker_metadata import UPDATE_AND_CREATE_TOPIC, CreateTopicRequest
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.config import in_words
from keelmq.runtime.stop_steps import StopError, StopSteps, stop_after

if TYPE_CHECKING:
    from cli.lab.chaos.grpc_traffic import GrpcTraffic  # needs the package grpcio

SEEDS = 1_000_000
QUEUES = 4
LOG_FILE_BYTES = 1 << 20
QUEUE_FILE_BYTES = 200_000
"""Small, for a new file every few seconds: faults coincide with the change of files, full disks are
noticed."""
NAME_SERVERS, BROKERS = 3, 3
NEIGHBOUR = "broker-n"
"""With containers: the group whose replicas share the processes of the watched one."""
PRODUCERS, UNORDERED = 3, 2
PROXIES = 2
GRPC_SHARE = 0.2
"""Messages of gRPC producers, in addition, as a share of --rate."""
START_TIMEOUT_S = 60.0
FINAL_TRIES = 5
STEPS_PER_MINUTE_MAX = 60
BURST_MESSAGES = 1_000_000
LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """`families`: empty for DEFAULT_FAMILIES that can be made. `burst_messages`: of all bursts of full load;
    0: none. `minutes` and `faults`: whichever limit is reached first
    ends the run. `secure`: see cli/lab/secure.py. `container`: every broker is in a container, beside one of
    another group that runs idle; `processes`: containerProcesses. `grpc`: with proxies and their clients."""

    minutes: float = 5.0
    faults: int | None = None
    seed: int | None = None
    families: tuple[str, ...] = ()
    min_in_sync: int = 1
    sync_flush: bool = False
    rate: int = 300
    burst_messages: int = BURST_MESSAGES
    plain: bool = False
    keep: bool = False
    secure: bool = False
    container: bool = False
    processes: int = 1
    grpc: bool = False


class Chaos:
    """One run in one event loop; the history is complete when run() returns."""

    def __init__(self, options: ChaosOptions, seed: int, stage: Stage, view: View) -> None:
        self._options, self._stage, self._view = options, stage, view
        self._recorder, self._client = stage.recorder, RemotingClient()
        self._nemesis = Nemesis(stage, view.event)
        addresses = stage.cluster.namesrv_addr
        rate = options.rate / PRODUCERS
        self._senders = [
            Senders(index, addresses, self._recorder, rate=rate, seed=seed) for index in range(PRODUCERS)
        ]
        self._consumers = [
            Consumer(index, addresses, self._recorder, eager=index == 0, seed=seed) for index in range(2)
        ]
        self._bursts = BurstSenders(
            addresses, self._recorder, messages=options.burst_messages, minutes=options.minutes, seed=seed
        )
        self._burst_reader = BurstReader(addresses, self._recorder, seed=seed)
        self._clients: list[Senders | Consumer | BurstSenders | BurstReader | GrpcTraffic] = [
            *self._senders, *self._consumers, self._bursts, self._burst_reader,
        ]  # fmt: skip
        self._seed = seed
        self._grpc: GrpcTraffic | None = None
        self._watching: list[asyncio.Task[None]] = []

    async def run(self, steps: list[Step]) -> None:
        """Runs the cluster, the clients and the steps of the plan; the history then has everything. Leaves no
        task."""
        loops = (self._stage.look_forever(), self._stage.guard_forever(), self._show())
        self._watching = [asyncio.create_task(each) for each in loops]
        try:
            await self._act(steps)
        except StuckError as error:
            self._check()  # the cause is a failed client or watcher, not the cluster
            self._view.event(f"the cluster did not come back: {error}")
        finally:
            for task in self._watching:
                task.cancel()
            ending = StopSteps("keelmq chaos")
            ending.add("the watchers", lambda: asyncio.gather(*self._watching, return_exceptions=True))
            for senders in self._senders:
                ending.add("a producer", senders.cancel)
            for consumer in self._consumers:
                ending.add("a consumer", consumer.close)
            ending.add("the bursts", self._bursts.cancel)
            ending.add("the reader of the bursts", self._burst_reader.close)
            if self._grpc is not None:
                ending.add("the gRPC clients", self._grpc.close)
            ending.add("connections", self._client.close)
            ending.add("the stage", self._stage.close)
            await stop_after(ending.run, sys.exc_info()[1])

    async def _act(self, steps: list[Step]) -> None:
        """Strikes and reads everything back, also after a StuckError, which it then raises."""
        queues, burst_queues = await self._start()
        stuck: StuckError | None = None
        try:
            await self._strike(steps)
        except StuckError as error:
            stuck = error
        for each in self._clients:
            await each.stop()
        try:
            await self._nemesis.all_in_sync("all replicas in sync at the end")
        except StuckError as error:
            stuck = stuck or error
        await self._read_back(queues, burst_queues)
        if stuck is not None:
            raise stuck

    async def _show(self) -> None:
        while True:
            self._view.show(self._stage.picture, self._recorder.counts)
            await asyncio.sleep(LOOK_S)

    async def _start(self) -> tuple[list[MessageQueue], list[MessageQueue]]:
        """Starts the cluster and the clients; returns the queues of the topic, and those of the bursts."""
        cluster = self._stage.cluster
        self._view.event(f"starting {NAME_SERVERS} name servers with controllers and {BROKERS} brokers")
        cluster.start()
        await self._nemesis.until(
            "all replicas in sync after the start",
            lambda: self._stage.picture.all_in_sync(BROKERS),
            START_TIMEOUT_S,
        )
        queues = await self._make_topic(TOPIC)
        burst_queues = await self._make_topic(bursts.TOPIC) if self._options.burst_messages else []
        if self._options.grpc:
            self._grpc = _grpc_traffic(self._options, self._seed, self._stage)
            self._clients.append(self._grpc)
            await self._grpc.subscribe()
            self._grpc.start()
        for consumer in self._consumers:
            consumer.start(queues)
        for senders in self._senders:
            senders.start(queues, UNORDERED)
        if burst_queues:
            self._bursts.start(burst_queues)
            self._burst_reader.start(burst_queues)
        self._view.event(f"all in sync; {PRODUCERS} producers and 2 consumers on {QUEUES} queues begin")
        return queues, burst_queues

    async def _make_topic(self, topic: str) -> list[MessageQueue]:
        """Creates a topic; returns its queues when they are routed. StuckError: not in time."""
        cluster = self._stage.cluster
        header = CreateTopicRequest(
            topic=topic, default_topic=DEFAULT_TOPIC, read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=6
        )
        deadline = now_ms() + START_TIMEOUT_S * 1_000
        async with PullConsumer(cluster.namesrv_addr, "keelmq-chaos", client=self._client) as consumer:
            while now_ms() < deadline:
                master = next(each for each in cluster.brokers if each.name == self._stage.picture.master)
                made = await self._client.call(master.address, UPDATE_AND_CREATE_TOPIC, header)
                try:
                    queues = await consumer.fetch_queues(topic)
                except PullError:
                    queues = []
                if isinstance(made, Ok) and len(queues) == QUEUES:
                    return queues
                await asyncio.sleep(LOOK_S)
        self._recorder.put(Stuck(t=self._recorder.clock(), what="the topic of the run"))
        raise StuckError("the topic of the run")

    async def _strike(self, steps: list[Step]) -> None:
        ends = now_ms() + self._options.minutes * 60_000
        for step in steps:
            if now_ms() + step.quiet_ms + step.hold_ms >= ends:
                break
            await asyncio.sleep(step.quiet_ms / 1_000)
            self._check()
            await self._nemesis.strike(step)
        self._view.event(f"{self._nemesis.struck} faults are over; waiting for the last acknowledgements")
        await self._nemesis.all_in_sync("all replicas in sync after the last fault")
        await self._nemesis.all_healed()

    def _check(self) -> None:
        """Raises the exception that ended a sender, a consumer or a watcher, which is a bug."""
        for each in self._clients:
            each.check()
        for task in self._watching:
            if task.done():
                task.result()

    # -- the end -----------------------------------------------------------------------------------------

    async def _read_back(self, queues: list[MessageQueue], burst_queues: list[MessageQueue]) -> None:
        self._check()
        cluster = self._stage.cluster
        for attempt in range(FINAL_TRIES):
            try:
                entries = await read_all(cluster.namesrv_addr, queues, self._recorder)
                batches = await read_bursts(cluster.namesrv_addr, burst_queues, self._recorder)
                break
            except PullError as error:
                if attempt == FINAL_TRIES - 1:
                    self._recorder.put(Stuck(t=self._recorder.clock(), what=f"the last reading: {error}"))
                    return
        for entry in entries:
            self._recorder.put(entry)
        for batch in batches:
            self._recorder.put(batch)
        count = sum(len(entry.messages) for entry in entries) + sum(entry.read for entry in batches)
        self._view.event(f"read {count:,} messages back")
        if self._grpc is not None:
            stored = {number for entry in entries for _, number in entry.messages}
            await self._grpc.drain(stored - {DAMAGED}, self._view.event)
        for consumer in self._consumers:
            for _ in range(FINAL_TRIES):
                if await consumer.last_fetch(queues):
                    break


def _grpc_traffic(options: ChaosOptions, seed: int, stage: Stage) -> "GrpcTraffic":
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # programs are started while calls run
    from cli.lab.chaos.grpc_traffic import GrpcTraffic

    return GrpcTraffic(
        [program.address for program in stage.cluster.proxies],
        stage.recorder,
        broker_name=BROKER_NAME,
        rate=options.rate * GRPC_SHARE,
        seed=seed,
    )


@ends_like_ctrl_c()
def run_chaos(options: ChaosOptions) -> int:
    """Returns the exit code: 0 nothing found; 1 a checker found something; 2 usage; 130 Ctrl-C."""
    try:
        families = possible(options)
    except ValueError as error:
        print(f"keelmq chaos: {error}", file=sys.stderr)
        return 2
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(SEEDS)
    directory = Path(tempfile.mkdtemp(prefix="keelmq-chaos-"))
    print(f"seed {seed}; faults: {', '.join(families)}; directory {directory}", flush=True)
    count = options.faults or int(options.minutes * STEPS_PER_MINUTE_MAX) + 1
    steps = make_plan(seed, kinds_of(families), count)
    try:
        broker_ids = _play(options, seed, directory, steps, networked=bool(NETWORK_FAMILIES & set(families)))
    except (NetError, StopError) as error:
        print(f"keelmq chaos: {error}\nLogs stay in {directory}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"keelmq chaos: stopped, every program was ended; data stays in {directory}", file=sys.stderr)
        return 130
    return judge(directory, broker_ids, keep=options.keep)


def run_check(path: Path) -> int:
    """Returns the exit code, as run_chaos(); 2: there is no such file, or it is not a history."""
    try:
        return check_file(path)
    except (OSError, HistoryError) as error:
        print(f"keelmq chaos: {in_words(error)}", file=sys.stderr)
        return 2


def possible(options: ChaosOptions) -> list[str]:
    """Returns the families of faults, and a line for those left out. ValueError: a wanted one is unknown."""
    if options.grpc and (options.secure or options.container):
        raise ValueError("--grpc: not together with --secure or --container")
    wanted = options.families or (*DEFAULT_FAMILIES, *(PROXY_FAMILY,) * options.grpc)
    kinds_of(wanted)
    if PROXY_FAMILY in wanted and not options.grpc:
        raise ValueError(f"{PROXY_FAMILY}: only with --grpc, which starts proxies")
    if not NETWORK_FAMILIES & set(wanted) or (reason := missing()) is None:
        return list(wanted)
    left = [family for family in wanted if family not in NETWORK_FAMILIES]
    out = ", ".join(family for family in wanted if family in NETWORK_FAMILIES)
    if not left:
        raise ValueError(f"{out}: not possible here, {reason}")
    print(f"left out: {out}: {reason}", flush=True)
    return left


def _play(
    options: ChaosOptions, seed: int, directory: Path, steps: list[Step], *, networked: bool
) -> dict[str, int]:
    """Runs until the history is complete and every program has ended. Returns program -> broker id."""
    net = Net(directory) if networked else None
    if net is not None:
        net.enter()
    launcher = ChaosLauncher(directory, net)
    with secured(directory, CLUSTER_NAME, wanted=options.secure) as keys:
        return _play_at(options, seed, launcher, steps, keys)


def _play_at(
    options: ChaosOptions, seed: int, launcher: ChaosLauncher, steps: list[Step], keys: Mapping[str, str]
) -> dict[str, int]:
    import uvloop

    directory, net, settings = launcher.directory, launcher.net, {**broker_settings(options), **keys}
    cluster = _cluster(options, launcher, settings, keys)
    if net is not None:
        for program in cluster.brokers:
            net.mount_disk(Path(program.settings["storePathRootDir"]), DISK_BYTES)
    began, began_wall = time.monotonic_ns(), wall_ms()
    with History(directory / HISTORY) as history:
        recorder = Recorder(lambda: (time.monotonic_ns() - began) // 1_000, history.put)
        recorder.put(Run(t=0, seed=seed, wall_ms=began_wall, settings=settings))
        stage = Stage(cluster, launcher, recorder)
        try:
            with (
                cluster,
                make_view(plain=options.plain) as view,
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                runner.run(Chaos(options, seed, stage, view).run(steps))
            if (confirmed := stage.confirmed_bytes()) is not None:
                for log in stage.logs(confirmed):
                    recorder.put(log)
            for scrub in stage.scrubs():
                recorder.put(scrub)
        finally:
            if net is not None:
                net.give_back("*")
        for turn in stage.long_turns():
            recorder.put(turn)
        for entry in entries_of(telemetry_of(directory), began_wall):
            recorder.put(entry)
    return stage.broker_ids


def _cluster(
    options: ChaosOptions, launcher: ChaosLauncher, settings: Mapping[str, str], keys: Mapping[str, str]
) -> Cluster:
    if options.container:
        return ContainerCluster(
            launcher.directory,
            groups=(BROKER_NAME, NEIGHBOUR),
            containers=BROKERS,
            name_servers=NAME_SERVERS,
            cluster_name=CLUSTER_NAME,
            processes=options.processes,
            broker_settings=settings,
            container_settings=keys,
            # Clients must not make the topic there, and the history has the telemetry of one group.
            other_settings={"autoCreateTopicEnable": "false", "telemetryEnable": "false"},
            namesrv_settings=keys,
            launcher=launcher,
        )
    return Cluster(
        launcher.directory,
        name_servers=NAME_SERVERS,
        brokers=BROKERS,
        cluster_name=CLUSTER_NAME,
        broker_name=BROKER_NAME,
        broker_settings=settings,
        namesrv_settings=keys,
        launcher=launcher,
        proxies=PROXIES * options.grpc,
    )


def broker_settings(options: ChaosOptions) -> dict[str, str]:
    """Nothing is deleted: acknowledged messages must exist at the end, also on a disk that was full, where a
    broker that may do so deletes all files but the last (seen: seed 424944, called `diverged`)."""
    return {
        "allAckInSyncStateSet": "true",
        "minInSyncReplicas": str(options.min_in_sync),
        "flushDiskType": "SYNC_FLUSH" if options.sync_flush else "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
        "mappedFileSizeConsumeQueue": str(QUEUE_FILE_BYTES),
        "cleanFileForciblyEnable": "false",
    }
