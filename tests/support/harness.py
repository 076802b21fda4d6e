"""A running cluster with numbered traffic, for tests that break things: start, wait for conditions, compare.

Everything it starts ends with the `async with` block, whatever happens in it.
"""

import asyncio
import gc
from pathlib import Path
from types import TracebackType
from typing import Self

from cli.lab.ack_log import AckLog, Report
from cli.lab.cluster import Cluster, Launcher, Program
from cli.lab.container_cluster import ContainerCluster
from cli.lab.observer import Picture, Watcher
from cli.lab.traffic import Traffic, read_back
from keelmq.client import PullError
from keelmq.runtime.clock import now_ms
from keelmq.security.signer import Credentials

TOPIC = "harness"
SAFE = {
    "allAckInSyncStateSet": "true",
    "minInSyncReplicas": "2",
    "mappedFileSizeCommitLog": "16777216",
}
START_TIMEOUT_S = 30.0

LONG_GRACE = {"controllerConnectionLossGraceMs": "5000"}
"""Of controllers: a killed broker that is not proved dead is missed, also on a loaded machine."""


class Harness:
    """`async with Harness(tmp_path) as running:` all programs are up and every replica is in sync."""

    def __init__(
        self,
        directory: Path,
        *,
        name_servers: int = 3,
        brokers: int = 3,
        broker_settings: dict[str, str] | None = None,
        namesrv_settings: dict[str, str] | None = None,
        rate: int = 500,
        http: bool = False,
        credentials: Credentials | None = None,
        containers: bool = False,
        launcher: Launcher | None = None,
    ) -> None:
        """credentials: of an administrator, for all clients here, where requests must be signed. containers:
        each broker is in one, beside a broker of another group. launcher: where and how brokers run that are
        in none."""
        settings = SAFE if broker_settings is None else broker_settings
        self.cluster: Cluster
        if containers:
            self.cluster = ContainerCluster(
                directory,
                groups=("broker-a", "broker-n"),
                containers=brokers,
                name_servers=name_servers,
                broker_settings=settings,
                namesrv_settings=namesrv_settings,
                # Topics are to be where the tests look for them.
                other_settings={"autoCreateTopicEnable": "false"},
                http=http,
            )
        else:
            self.cluster = Cluster(
                directory,
                name_servers=name_servers,
                brokers=brokers,
                broker_settings=settings,
                namesrv_settings=namesrv_settings,
                http=http,
                launcher=launcher,
            )
        self.ack_log = AckLog()
        self._traffic: Traffic | None = None
        self._rate, self._credentials = rate, credentials

    async def __aenter__(self) -> Self:
        self._watcher = Watcher(self.cluster, self._credentials)
        try:
            self.cluster.start()
            await self.all_in_sync()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        if self._traffic is not None:
            await self._traffic.close()
        await self._watcher.close()
        await asyncio.to_thread(self.cluster.close)
        gc.collect()  # Popen objects that outlive their process warn when they are collected later

    # -- conditions --------------------------------------------------------------------------------------

    async def all_in_sync(self, timeout_s: float = START_TIMEOUT_S) -> Picture:
        """Every broker that runs is in the SyncStateSet of a live master."""
        running = sum(program.is_running for program in self.cluster.brokers)

        async def look() -> Picture | None:
            picture = await self._watcher.look()
            return picture if picture.all_in_sync(running) else None

        return await self.cluster.until(f"{running} brokers in sync", look, timeout_s=timeout_s)

    async def new_master(self, old: Program, timeout_s: float = START_TIMEOUT_S) -> Program:
        async def look() -> Program | None:
            picture = await self._watcher.look()
            names = {program.name: program for program in self.cluster.brokers}
            return names[picture.master] if picture.master not in ("", old.name) else None

        return await self.cluster.until("another master", look, timeout_s=timeout_s)

    async def fail_over(self, acked: int = 200) -> Program:
        """Kills the master, and waits until so many messages are acknowledged. Returns the old master."""
        master = await self.master()
        self.cluster.kill(master)
        self.ack_log.killed(now_ms())
        await self.new_master(master)
        await self.acked(acked)
        return master

    async def master(self) -> Program:
        picture = await self.all_in_sync()
        return next(program for program in self.cluster.brokers if program.name == picture.master)

    def reasons(self, text: str) -> list[str]:
        """Returns the lines of the controllers' logs about elections that have this in their reason."""
        logs = [program.log_path.read_text() for program in self.cluster.name_servers]
        return [line for log in logs for line in log.splitlines() if ": master is " in line and text in line]

    async def controller_leader(self) -> Program:
        address = await self.cluster.until(
            "an active controller", self._watcher.controller_leader, timeout_s=START_TIMEOUT_S
        )
        return self.cluster.controller_at(address)

    async def acked(self, more: int, timeout_s: float = 20.0) -> None:
        """So many more acknowledgements have come."""
        target = self.ack_log.acked + more

        async def enough() -> bool:
            assert self._traffic is not None
            self._traffic.check()
            return self.ack_log.acked >= target

        await self.cluster.until(f"{more} more acknowledgements", enough, timeout_s=timeout_s)

    # -- traffic -----------------------------------------------------------------------------------------

    def produce(self) -> None:
        self._traffic = Traffic(
            self.cluster.namesrv_addr, TOPIC, self.ack_log, rate=self._rate, credentials=self._credentials
        )
        self._traffic.start()

    async def compare(self) -> Report:
        """Stop sending, read everything back from the present master, compare."""
        assert self._traffic is not None
        await self._traffic.stop()
        picture = await self.all_in_sync()
        assert picture.master
        for attempt in range(3):
            try:
                await read_back(self.cluster.namesrv_addr, TOPIC, self.ack_log, self._credentials)
                break
            except PullError:
                if attempt == 2:
                    raise
        return self.ack_log.report()
