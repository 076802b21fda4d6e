"""A cluster as pods: three name servers with controllers, three brokers, proxies, in zones.

What Kubernetes does is done here: a pod that starts gets a new address and its name resolves to it; with the
pod its address is gone, and its peers get no answer from there. Ports outside lead to a name server's or a
broker's pod as soon as it exists (publishNotReadyAddresses). The port of the proxies leads to those that are
ready; as at a load balancer, connections to one that has failed UNREADY_MAX probes are reset. Ready is what
/readyz answers. A pod may be stopped if all others of its kind are ready (maxUnavailable: 1).
"""

import asyncio
import http.client
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from cli.lab.cluster import Cluster, ClusterError, Launcher, Program
from cli.lab.observer import Picture, Watcher
from keelmq.client.admin import AdminClient
from tests.cluster.reach.net import OUTER_HOST, ZonedNet

HOMES: Final = ("zone-a", "zone-b", "zone-c")
SPARE: Final = "zone-d"
ZONES: Final = (*HOMES, SPARE)
REPLICAS: Final = len(HOMES)
PROXIES: Final = 2
LISTENER: Final = "external"
NAMESRV_PORT, BROKER_PORT, PROXY_PORT, PROXY_HTTP_PORT = 9_976, 10_921, 8_081, 18_081
NAMESRV_OUTER, BROKER_OUTER, PROXY_OUTER = 30_000, 31_000, 32_000
"""The first port outside of each kind; the proxies share one."""
GRACE_S: Final = 90.0
"""terminationGracePeriodSeconds of deploy/k8s."""
READY_S: Final = 120.0
AWAY_S: Final = 40.0
"""How long a lost zone is away: RocketMQ's clients read the route every 30 s, and need it again meanwhile."""
PROBE_S: Final = 1.0
PROBE_PERIOD_S: Final = 0.5
UNREADY_MAX: Final = 2
EVERYWHERE: Final = "0.0.0.0"

NAMESRV_SETTINGS: Final = {
    "routeAliasesEnable": "true",
    "listeners": f"{LISTENER}://{EVERYWHERE}:{NAMESRV_PORT}",
}
BROKER_SETTINGS: Final = {
    "allAckInSyncStateSet": "true",
    "minInSyncReplicas": "2",
    "mappedFileSizeCommitLog": str(16 << 20),
    "shutdownForwardTimeout": "40000",
    "listeners": f"{LISTENER}://{EVERYWHERE}:{BROKER_PORT}",
}


class PodLauncher(Launcher):
    """Each program on a host, with a name; brokers register addresses."""

    def __init__(self, network: ZonedNet) -> None:
        self._network = network

    def host(self, name: str) -> str:
        """Returns the address that other programs connect to."""
        address = self._network.net.add(name)
        return address if name.startswith("broker") else name

    def bind(self, name: str) -> str:
        """Returns the address that the program listens on."""
        return EVERYWHERE

    def command(self, program: Program) -> list[str]:
        """Returns the command line that runs the program."""
        return [*self._network.net.command(program.name), *super().command(program)]


class Pods:
    """`async with Pods(network, directory) as pods:` all are ready. Leaving the block ends every program."""

    def __init__(self, network: ZonedNet, directory: Path, away_s: float = AWAY_S) -> None:
        """away_s: how long scenarios keep a lost zone away."""
        self.network, self.away_s = network, away_s
        self.cluster = Cluster(
            directory,
            name_servers=REPLICAS,
            brokers=REPLICAS,
            proxies=PROXIES,
            namesrv_settings=NAMESRV_SETTINGS,
            broker_settings=BROKER_SETTINGS,
            http=True,
            launcher=PodLauncher(network),
        )
        for number, broker in enumerate(self.cluster.brokers):
            outer = f"{OUTER_HOST}:{BROKER_OUTER + number}"
            broker.settings["advertisedListeners"] = f"{LISTENER}://{outer}"
            broker.write()
        for proxy in self.cluster.proxies:
            proxy.address = f"{proxy.name}:{PROXY_PORT}"
            proxy.http_address = f"{proxy.name}:{PROXY_HTTP_PORT}"
            proxy.settings |= {"grpcServerPort": str(PROXY_PORT), "httpPort": str(PROXY_HTTP_PORT)}
            proxy.write()
        self.zones: dict[str, str] = {}
        self._gone: set[str] = set()
        self._leaving: set[str] = set()
        """Proxies that are about to stop."""
        self._watcher = Watcher(self.cluster)
        self._translated: object = None
        self._unready: Counter[str] = Counter()
        """Probes that a proxy has failed since the last one that it passed."""
        self._endpoints: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Pods":
        try:
            for kind in self.kinds:
                for program, zone in zip(kind, HOMES, strict=False):
                    self._place(program, zone)
                    self.cluster.start_program(program)
            self.translate()
            self._endpoints = asyncio.create_task(self._keep_translating())
            await self.all_ready("after the start")
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._endpoints is not None:
            self._endpoints.cancel()
            await asyncio.gather(self._endpoints, return_exceptions=True)
        await self._watcher.close()
        await self.kill([each for each in self.cluster.programs if each.is_running])

    # ------------------------------------------------------------------ what is where
    @property
    def kinds(self) -> tuple[Sequence[Program], ...]:
        """The pods that have a PodDisruptionBudget together."""
        return self.cluster.name_servers, self.cluster.brokers, self.cluster.proxies

    @property
    def inner_name_servers(self) -> str:
        return self.cluster.namesrv_addr

    @property
    def outer_name_servers(self) -> str:
        return ";".join(f"{OUTER_HOST}:{NAMESRV_OUTER + number}" for number in range(REPLICAS))

    @property
    def outer_proxies(self) -> str:
        return f"{OUTER_HOST}:{PROXY_OUTER}"

    def in_zone(self, zone: str) -> list[Program]:
        return [each for each in self.cluster.programs if self.zones[each.name] == zone]

    def empty_zone(self) -> str:
        return next(zone for zone in ZONES if not self.in_zone(zone))

    def others(self, program: Program) -> list[Program]:
        """The other pods of its kind."""
        kind = next(kind for kind in self.kinds if program in kind)
        return [each for each in kind if each is not program]

    async def picture(self) -> Picture:
        return await self._watcher.look()

    async def master(self) -> Program:
        async def found() -> Program | None:
            name = (await self.picture()).master
            return next((each for each in self.cluster.brokers if each.name == name), None)

        return await self.cluster.until("a master", found, timeout_s=READY_S)

    async def make_master(self, program: Program) -> None:
        """As an operator, by electMaster."""

        async def elected() -> bool:
            picture = await self.picture()
            if picture.master == program.name:
                return True
            replica = next(each for each in picture.replicas if each.name == program.name)
            leader = await self._watcher.controller_leader()
            if leader is not None and replica.broker_id is not None:
                async with AdminClient() as admin:
                    await admin.controllers.elect_master(
                        leader,
                        cluster_name=self.cluster.cluster_name,
                        broker_name=self.cluster.broker_name,
                        broker_id=replica.broker_id,
                    )
            return False

        await self.cluster.until(f"{program.name} is master", elected, timeout_s=READY_S)

    # ------------------------------------------------------------------ readiness
    def is_ready(self, program: Program) -> bool:
        """As the kubelet asks."""
        if not program.is_running or program.name in self._gone:
            return False
        port = int(program.http_address.rpartition(":")[2])
        connection = http.client.HTTPConnection(self.network.net.address(program.name), port, timeout=PROBE_S)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    async def until_ready(self, programs: Iterable[Program], what: str) -> None:
        for program in programs:
            check = partial(asyncio.to_thread, self.is_ready, program)
            await self.cluster.until(f"{program.name} is ready {what}", check, timeout_s=READY_S)

    async def all_ready(self, what: str) -> None:
        """Returns when every pod is ready and every replica is in the SyncStateSet."""
        await self.until_ready(self.cluster.programs, what)

        async def in_sync() -> bool:
            return (await self.picture()).all_in_sync(REPLICAS)

        await self.cluster.until(f"all in sync {what}", in_sync, timeout_s=READY_S)

    # ------------------------------------------------------------------ what Kubernetes does
    async def stop(self, program: Program) -> float:
        """SIGTERM, as for an eviction: waits until the budget permits it. Then the pod and its address are
        gone. Returns how long it took to stop, in seconds."""
        await self.until_ready(self.others(program), f"before {program.name} is stopped")
        if program in self.cluster.proxies:
            self._leaving.add(program.name)
            self.translate()
        process, began = program.process, time.monotonic()
        assert process is not None
        process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(process.wait, GRACE_S)
        if code != 0:
            raise ClusterError(f"{program.name} ended with exit code {code}:\n{program.log_tail()}")
        program.process = None  # it ended because we asked: nothing for cluster.check()
        await self.remove(program)
        return time.monotonic() - began

    async def remove(self, program: Program) -> None:
        """Deletes the pod of a program that has ended."""
        self._gone.add(program.name)
        self.network.net.withdraw(program.name)
        self.translate()

    async def start(self, program: Program, zone: str = "") -> None:
        """A new pod with the old volume, and a new address. zone: where; "": where it was."""
        address = self.network.net.move(program.name)
        if program in self.cluster.brokers:
            program.relocate(address)
        self._place(program, zone or self.zones[program.name])
        self._gone.discard(program.name)
        self._leaving.discard(program.name)
        self._unready[program.name] = UNREADY_MAX  # until it passes one
        self.cluster.start_program(program)
        self.translate()

    async def kill(self, programs: Sequence[Program]) -> None:
        """SIGKILL to all, then waits for their end. Addresses stay: connections are refused there."""
        for program in programs:
            assert program.process is not None
            program.process.kill()
        for program in programs:
            await self.cluster.kill_and_wait(program)

    def _place(self, program: Program, zone: str) -> None:
        self.zones[program.name] = zone
        self.network.place(program.name, zone)

    # ------------------------------------------------------------------ the ports outside
    def translate(self) -> None:
        """Writes where each port outside leads to now."""
        open_to = [
            each
            for each in self.cluster.proxies
            if each.name not in self._leaving and self._unready[each.name] < UNREADY_MAX
        ]
        reset = [
            self.network.net.address(each.name)
            for each in self.cluster.proxies
            if each.name not in self._gone and self._unready[each.name] >= UNREADY_MAX
        ]
        ports = {
            **self._ports(self.cluster.name_servers, NAMESRV_OUTER, NAMESRV_PORT),
            **self._ports(self.cluster.brokers, BROKER_OUTER, BROKER_PORT),
            PROXY_OUTER: ([self.network.net.address(each.name) for each in open_to], PROXY_PORT),
        }
        if (ports, reset) != self._translated:
            self.network.translate(ports, reset)
            self._translated = (ports, reset)

    def _ports(
        self, programs: Sequence[Program], first: int, inner: int
    ) -> dict[int, tuple[Sequence[str], int]]:
        return {
            first + number: ([self.network.net.address(each.name)], inner)
            for number, each in enumerate(programs)
            if each.name not in self._gone
        }

    async def _keep_translating(self) -> None:
        """Probes the proxies."""
        while True:
            for proxy in self.cluster.proxies:
                is_ready = await asyncio.to_thread(self.is_ready, proxy)
                self._unready[proxy.name] = 0 if is_ready else self._unready[proxy.name] + 1
            self.translate()
            await asyncio.sleep(PROBE_PERIOD_S)
