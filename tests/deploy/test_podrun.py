"""Three and three pods of the overlay ha, run as declared: they start, fail over, and come back elsewhere."""

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.lab.ack_log import AckLog
from cli.lab.traffic import Traffic, read_back
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.client import UNACKNOWLEDGED_MS, RemotingClient
from keelmq.remoting.operations.controller import ReplicaIdentity, ReplicasInfo
from tests.deploy import podrun
from tests.deploy.conftest import ROOT
from tests.deploy.objects import Objects
from tests.deploy.podrun import Lab, Pod

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

GROUP = "broker-a"
TOPIC = "podrun"
RATE = 200
CONTROLLER_PORT = 9878
START_TIMEOUT_S = 60.0
FAILOVER_TIMEOUT_S = 20.0


@pytest.fixture
def lab(rendered: dict[str, Objects], tmp_path: Path) -> Iterator[Lab]:
    if reason := podrun.missing():
        pytest.skip(reason)
    with Lab(rendered["ha"], tmp_path) as running:
        yield running


class Cluster:
    """The pods as a client and an operator see them."""

    def __init__(self, lab: Lab, client: RemotingClient | None = None) -> None:
        """client: of an administrator, where requests must be signed."""
        self.lab, self.brokers, self.servers = lab, lab.of("broker"), lab.of("namesrv")
        self.ack_log = AckLog()
        self._client = client or RemotingClient(connect_timeout_ms=500)
        self._admin = AdminClient(self._client)

    async def __aenter__(self) -> "Cluster":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    @property
    def name_servers(self) -> str:
        return ";".join(f"{pod.name}.keelmq-namesrv:9876" for pod in self.servers)

    async def start(self) -> None:
        """The brokers first: nothing that they look for is there yet."""
        for pod in [*self.brokers, *self.servers]:
            self.lab.start(pod)
        await self.lab.until_ready(self.lab.pods.values(), START_TIMEOUT_S)
        await self.all_in_sync()

    async def group(self) -> ReplicasInfo | None:
        addresses = ";".join(f"{pod.address}:{CONTROLLER_PORT}" for pod in self.servers if pod.running)
        try:
            leader = await self._admin.controllers.controller_leader(addresses)
            return (await self._admin.controllers.sync_state_sets(leader, [GROUP])).replicas_info_table.get(
                GROUP
            )
        except AdminError:
            return None

    async def leader(self) -> Pod:
        addresses = ";".join(f"{pod.address}:{CONTROLLER_PORT}" for pod in self.servers if pod.running)
        name = (await self._admin.controllers.controller_leader(addresses)).partition(".")[0]
        return self.lab.pods[name]

    async def all_in_sync(self) -> ReplicasInfo:
        """Every broker pod, at the address that it has now."""

        async def look() -> ReplicasInfo | None:
            info = await self.group()
            wanted = {f"{pod.address}:10911" for pod in self.brokers if pod.running}
            found = {member.broker_address for member in info.in_sync_replicas} if info else set()
            return info if info and info.master_address in wanted and found == wanted else None

        return await self.lab.until("all brokers in the SyncStateSet", look, START_TIMEOUT_S)

    async def another_master(self, old: int) -> ReplicasInfo:
        async def look() -> ReplicasInfo | None:
            info = await self.group()
            return info if info and info.master_broker_id not in (None, old) else None

        return await self.lab.until(f"a master other than {old}", look, FAILOVER_TIMEOUT_S)

    async def acknowledged(self, traffic: Traffic, more: int) -> None:
        target = self.ack_log.acked + more

        async def enough() -> bool:
            traffic.check()
            return self.ack_log.acked >= target

        await self.lab.until(f"{more} more acknowledgements", enough, FAILOVER_TIMEOUT_S)

    async def takes_a_setting(self) -> None:
        """Programs keep changes at run time, although their files are read-only."""
        await self._admin.brokers.update_broker_config(
            f"{self.brokers[0].address}:10911", "fileReservedTime", "71"
        )
        name_server = f"{self.servers[0].address}:9876"
        await self._admin.name_servers.update_namesrv_config(name_server, "supportActingMaster", "true")

    def broker_at(self, address: str | None) -> Pod:
        (found,) = [pod for pod in self.brokers if f"{pod.address}:10911" == address]
        return found


def documented_commands() -> Iterator[tuple[str, list[str]]]:
    """Pod and command of every `kubectl exec` under "Check"."""
    section = (ROOT / "docs" / "kubernetes.md").read_text().partition("## Check")[2].partition("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("kubectl -n keelmq exec "):
            pod, _, command = line.removeprefix("kubectl -n keelmq exec ").partition(" -- ")
            yield pod, shlex.split(command)


def replica(info: ReplicasInfo, pod: Pod) -> ReplicaIdentity:
    (found,) = [one for one in info.in_sync_replicas if one.broker_address == f"{pod.address}:10911"]
    return found


async def replaced(cluster: Cluster, traffic: Traffic, away: Callable[[Pod], None]) -> None:
    """The master's pod goes, another leads, the pod comes back elsewhere with its volume and its id."""
    info = await cluster.all_in_sync()
    pod = cluster.broker_at(info.master_address)
    broker_id, old_address = replica(info, pod).broker_id, pod.address
    away(pod)
    after = await cluster.another_master(broker_id)
    assert after.master_epoch > info.master_epoch
    await cluster.acknowledged(traffic, RATE)
    cluster.lab.start(pod)
    await cluster.lab.until_ready([pod], START_TIMEOUT_S)
    back = replica(await cluster.all_in_sync(), pod)
    assert pod.address != old_address
    assert back.broker_id == broker_id


async def power_cut(cluster: Cluster) -> None:
    """Every pod ends at once; each comes back elsewhere, as who it was."""

    async def ids() -> dict[str, int]:
        info = await cluster.all_in_sync()
        return {pod.name: replica(info, pod).broker_id for pod in cluster.brokers}

    before = await ids()
    for pod in cluster.lab.pods.values():
        cluster.lab.kill(pod)
    await cluster.start()
    assert await ids() == before


def test_a_master_that_comes_back_elsewhere_keeps_its_id_and_nothing_is_lost(lab: Lab) -> None:
    async def scenario() -> None:
        async with Cluster(lab) as cluster:
            await cluster.start()
            shown = [lab.exec(lab.pods[pod], *command) for pod, command in documented_commands()]
            assert len(shown) == 5 and all(shown) and "hello" in shown[-1], shown
            await cluster.takes_a_setting()
            traffic = Traffic(cluster.name_servers, TOPIC, cluster.ack_log, rate=RATE)
            traffic.start()
            try:
                await cluster.acknowledged(traffic, RATE)
                await replaced(cluster, traffic, lab.kill)
                await replaced(cluster, traffic, lab.lose)
                await cluster.acknowledged(traffic, RATE)
                await traffic.stop()
            finally:
                await traffic.close()
            await power_cut(cluster)
            await read_back(cluster.name_servers, TOPIC, cluster.ack_log)
            report = cluster.ack_log.report()
            assert report.ok and report.lost == 0 and report.unacknowledged == 0, report
            for pod in lab.pods.values():
                assert lab.probe(pod, "livenessProbe"), pod.name
            for pod in [*cluster.brokers, *cluster.servers]:
                assert lab.terminate(pod) == 0, lab.tail(pod)

    lab.run(scenario)


def test_controllers_that_come_back_elsewhere_are_found(lab: Lab) -> None:
    """Each in turn is lost with its node, so that nobody hears of it, and comes back with another address."""

    async def scenario() -> None:
        async with Cluster(lab) as cluster:
            await cluster.start()
            before = await cluster.all_in_sync()
            for pod in cluster.servers:
                lab.lose(pod)
                lab.start(pod)
                await lab.until_ready([pod], START_TIMEOUT_S)

                async def heard(pod: Pod = pod) -> bool:
                    """The heartbeats of all brokers reach it."""
                    wanted = {broker.address for broker in cluster.brokers}
                    return wanted <= lab.connected_from(pod, CONTROLLER_PORT)

                limit_s = 3 * UNACKNOWLEDGED_MS / 1000
                await lab.until(f"every broker at {pod.name}", heard, limit_s)
            after = await cluster.all_in_sync()
            assert after.master_epoch == before.master_epoch  # no broker was taken for dead meanwhile

    lab.run(scenario)
