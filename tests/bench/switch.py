"""Planned hand-overs under load, and a master that hangs: what a producer of 2,000 messages a second sees.

A hand-over is asked for in turn by electMaster and by SIGTERM. A send counts as one "during the switch" when
it began within WINDOW_S after that. Hung: SIGSTOP, and the time until a send that began later is stored.
"""

import asyncio
import gc
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from cli.lab.cluster import Cluster, ClusterError, Program
from cli.lab.container_cluster import ContainerCluster
from cli.lab.observer import Picture, Watcher
from cli.lab.secure import secured
from keelmq.client import Message, Producer, SendError
from keelmq.client.admin import AdminClient
from keelmq.remoting.client import RemotingClient

TOPIC = "KeelBench"
CLUSTER_NAME, BROKER_NAME, NEIGHBOUR = "KeelCluster", "broker-a", "broker-n"
RATE = 2_000
HUNG_RATE = 100
BODY = b"x" * 128
IN_FLIGHT_MAX = 2_048
TICK_S = 0.002
WINDOW_S = 1.0
STEADY_S = 2.0
PLANNED, HUNG = 6, 3
TIMEOUT_S = 30.0
HEARTBEAT_TIMEOUT_MS = 3_000
SETTINGS = {
    "allAckInSyncStateSet": "true",
    "minInSyncReplicas": "2",
    "mappedFileSizeCommitLog": str(64 << 20),
    "controllerHeartBeatTimeoutMills": str(HEARTBEAT_TIMEOUT_MS),
}


class Stored(NamedTuple):
    """An acknowledged send: when it began and how long it took, in seconds, and where the message is."""

    began: float
    took: float
    queue_id: int
    queue_offset: int


@dataclass
class Load:
    """Sends at RATE until it is closed, and keeps what was acknowledged. At most IN_FLIGHT_MAX sends are in
    progress: on a machine that cannot keep the rate, or while nothing is accepted, fewer are begun."""

    namesrv_addr: str
    rate: int = RATE
    timeout_ms: int = 3_000
    sends: list[Stored] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    retried: int = 0
    uncertain: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._producer = Producer(self.namesrv_addr, "keelmq-bench", in_flight_max=IN_FLIGHT_MAX)
        self._feed = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._feed.cancel()
        await asyncio.gather(self._feed, *self._tasks, return_exceptions=True)
        await self._producer.close()

    async def _run(self) -> None:
        due = time.monotonic()
        while True:
            while due <= time.monotonic() and len(self._tasks) < IN_FLIGHT_MAX:
                task = asyncio.create_task(self._send())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                due += 1 / self.rate
            due = max(due, time.monotonic() - TICK_S)  # what was not sent in time is not sent later
            await asyncio.sleep(TICK_S)

    async def _send(self) -> None:
        began = time.monotonic()
        try:
            result = await self._producer.send(Message(TOPIC, BODY), timeout_ms=self.timeout_ms)
        except SendError as error:
            self.errors.append(str(error))
            return
        self.sends.append(Stored(began, time.monotonic() - began, result.queue_id, result.queue_offset))
        self.retried += result.attempts > 1
        self.uncertain += result.uncertain_attempts

    def within(self, begin: float, end: float) -> list[float]:
        """Durations of the sends that began then, ascending."""
        return sorted(send.took for send in self.sends if begin <= send.began <= end)

    def first_stored_after(self, moment: float) -> float | None:
        """When the first send that began later was answered; None: not yet."""
        first = self.first_begun_after(moment)
        return None if first is None else first.began + first.took

    def first_begun_after(self, moment: float) -> Stored | None:
        """The send that began later and was answered first; None: none yet."""
        later = (send for send in self.sends if send.began >= moment)
        return min(later, key=lambda send: send.began + send.took, default=None)


class Group:
    """Three controllers and three brokers. more: settings of the brokers; of_all: of all programs. container:
    each broker is in a container, beside one of another group that runs idle."""

    def __init__(
        self,
        directory: Path,
        more: Mapping[str, str] | None = None,
        of_all: Mapping[str, str] | None = None,
        *,
        container: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        settings = {**SETTINGS, **(more or {}), **(of_all or {})}
        self._timeout_s = timeout_s
        self.cluster: Cluster
        if container:
            self.cluster = ContainerCluster(
                directory,
                groups=(BROKER_NAME, NEIGHBOUR),
                containers=3,
                name_servers=3,
                cluster_name=CLUSTER_NAME,
                namesrv_settings=of_all,
                broker_settings=settings,
                container_settings=of_all,
                other_settings={"autoCreateTopicEnable": "false"},
            )
        else:
            self.cluster = Cluster(
                directory,
                name_servers=3,
                brokers=3,
                cluster_name=CLUSTER_NAME,
                broker_name=BROKER_NAME,
                namesrv_settings=of_all,
                broker_settings=settings,
            )

    async def __aenter__(self) -> Self:
        self._watcher = Watcher(self.cluster)
        try:
            self.cluster.start()
            await self.all_in_sync()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._watcher.close()
        await asyncio.to_thread(self.cluster.close)
        gc.collect()  # Popen objects that outlive their process warn when they are collected later

    async def all_in_sync(self) -> Picture:
        async def look() -> Picture | None:
            picture = await self.look()
            return picture if picture.all_in_sync(3) else None

        return await self.cluster.until("3 brokers in sync", look, timeout_s=self._timeout_s)

    async def look(self) -> Picture:
        """The present picture; programs that do not answer are down."""
        return await self._watcher.look()

    async def master(self) -> Program:
        picture = await self.all_in_sync()
        return next(program for program in self.cluster.brokers if program.name == picture.master)

    async def elect_another(self) -> None:
        """electMaster for a slave; returns when it is elected."""
        picture = await self.all_in_sync()
        transfer_target = next(replica for replica in picture.replicas if replica.role == "slave")
        assert transfer_target.broker_id is not None
        client = RemotingClient()
        try:
            await AdminClient(client).controllers.elect_master(
                self.cluster.controller_addr,
                cluster_name=self.cluster.cluster_name,
                broker_name=self.cluster.broker_name,
                broker_id=transfer_target.broker_id,
            )
        finally:
            await client.close()

    async def stop_master(self) -> Program:
        """SIGTERM; returns when it has ended by itself."""
        master = await self.master()
        assert master.process is not None
        master.process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(master.process.wait, self._timeout_s)
        if code != 0:
            raise ClusterError(f"{master.name} ended with exit code {code} after SIGTERM")
        return master


@dataclass(frozen=True)
class Found:
    failed: int
    p99_ms: float
    max_ms: float
    hung_ms: float
    errors: tuple[str, ...]


async def measure(planned: int = PLANNED, hung: int = HUNG, *, secure: bool = False) -> Found:
    with (
        tempfile.TemporaryDirectory(prefix="keelmq-switch-") as directory,
        secured(Path(directory), CLUSTER_NAME, wanted=secure) as keys,
    ):
        async with Group(Path(directory), of_all=keys) as group, Load(group.cluster.namesrv_addr) as load:
            await asyncio.sleep(STEADY_S)
            took: list[float] = []
            for number in range(planned):
                took += await _switch(group, load, by_signal=bool(number % 2))
            took.sort()
            errors = tuple(load.errors)
            load.timeout_ms = 5 * HEARTBEAT_TIMEOUT_MS  # nobody promises that a hung master fails no send
            load.rate = HUNG_RATE  # what piles up meanwhile would be measured instead
            gaps = [await _hang(group, load) for _ in range(hung)]
    return Found(
        failed=len(errors),
        p99_ms=1_000 * took[int(len(took) * 0.99)],
        max_ms=1_000 * took[-1],
        hung_ms=1_000 * max(gaps),
        errors=errors,
    )


async def _switch(group: Group, load: Load, *, by_signal: bool) -> list[float]:
    await group.all_in_sync()
    began = time.monotonic()
    if by_signal:
        group.cluster.start_program(await group.stop_master())
    else:
        await group.elect_another()
    await asyncio.sleep(max(STEADY_S - (time.monotonic() - began), 0))
    await group.all_in_sync()
    return load.within(began, began + WINDOW_S)


async def _hang(group: Group, load: Load) -> float:
    """Seconds from SIGSTOP to the first answer to a later send."""
    master = await group.master()
    group.cluster.pause(master)
    began = time.monotonic()

    async def stored() -> bool:
        return load.first_stored_after(began) is not None

    try:
        await group.cluster.until("a message stored after SIGSTOP", stored, timeout_s=TIMEOUT_S)
    finally:
        group.cluster.resume(master)
    await group.all_in_sync()
    end = load.first_stored_after(began)
    assert end is not None
    return end - began
