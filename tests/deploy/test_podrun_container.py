"""The pods of the overlay container, run as declared: each has a replica of every group on volumes of its
own; a lost one takes no acknowledged message along, and comes back elsewhere as who it was."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.lab.ack_log import AckLog
from cli.lab.traffic import Traffic, read_back
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.operations.controller import ReplicasInfo
from tests.deploy import podrun
from tests.deploy.objects import Objects
from tests.deploy.podrun import Lab, Pod

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

PORTS = {"broker-a": 10911, "broker-b": 20911, "broker-c": 30911}
TOPIC = "podrun"
RATE = 100
START_TIMEOUT_S = 90.0
FAILOVER_TIMEOUT_S = 20.0

Groups = dict[str, ReplicasInfo]


@pytest.fixture
def lab(rendered: dict[str, Objects], tmp_path: Path) -> Iterator[Lab]:
    if reason := podrun.missing():
        pytest.skip(reason)
    with Lab(rendered["container"], tmp_path) as running:
        yield running


async def groups(lab: Lab, admin: AdminClient) -> Groups:
    """What the controllers say; empty: none answers."""
    addresses = ";".join(f"{pod.address}:9878" for pod in lab.of("namesrv"))
    try:
        leader = await admin.controllers.controller_leader(addresses)
        return (await admin.controllers.sync_state_sets(leader, list(PORTS))).replicas_info_table
    except AdminError:
        return {}


async def all_in_sync(lab: Lab, admin: AdminClient) -> Groups:
    """Every pod's replica of every group, at the address that it has now."""

    async def look() -> Groups | None:
        found = await groups(lab, admin)
        for name, port in PORTS.items():
            wanted = {f"{pod.address}:{port}" for pod in lab.of("container")}
            if name not in found or {one.broker_address for one in found[name].in_sync_replicas} != wanted:
                return None
        return found

    return await lab.until("all replicas in the SyncStateSets", look, START_TIMEOUT_S)


def ids(found: Groups, pod: Pod) -> dict[str, int]:
    """The broker ids of the pod's replicas."""
    return {
        name: one.broker_id
        for name, info in found.items()
        for one in info.in_sync_replicas
        if one.broker_address == f"{pod.address}:{PORTS[name]}"
    }


def test_a_lost_container_takes_nothing_along(lab: Lab) -> None:
    async def scenario() -> None:
        pods, acks = lab.of("container"), AckLog()
        name_servers = ";".join(f"{pod.name}.keelmq-namesrv:9876" for pod in lab.of("namesrv"))
        async with AdminClient(timeout_ms=2_000) as admin:
            for pod in [*pods, *lab.of("namesrv")]:  # nothing that the brokers look for is there yet
                lab.start(pod)
            await lab.until_ready(lab.pods.values(), START_TIMEOUT_S)
            before = await all_in_sync(lab, admin)
            traffic = Traffic(name_servers, TOPIC, acks, rate=RATE)
            traffic.start()

            async def acknowledged(more: int) -> None:
                target = acks.acked + more

                async def enough() -> bool:
                    traffic.check()
                    return acks.acked >= target

                await lab.until(f"{more} more acknowledgements", enough, FAILOVER_TIMEOUT_S)

            try:
                await acknowledged(RATE)
                master = before["broker-a"].master_address
                (lost,) = [pod for pod in pods if f"{pod.address}:{PORTS['broker-a']}" == master]
                mine, old_address = ids(before, lost), lost.address
                lab.kill(lost)

                async def others_lead() -> bool:
                    found = await groups(lab, admin)
                    masters = [info.master_address or old_address for info in found.values()]
                    return len(masters) == len(PORTS) and not any(old_address in each for each in masters)

                await lab.until("masters elsewhere", others_lead, FAILOVER_TIMEOUT_S)
                await acknowledged(RATE)
                lab.start(lost)
                await lab.until_ready([lost], START_TIMEOUT_S)
                assert ids(await all_in_sync(lab, admin), lost) == mine and lost.address != old_address
                await traffic.stop()
            finally:
                await traffic.close()
        await read_back(name_servers, TOPIC, acks)
        report = acks.report()
        assert report.ok and report.lost == 0, report
        for pod in [*pods, *lab.of("namesrv")]:
            assert lab.probe(pod, "livenessProbe"), pod.name
            assert lab.terminate(pod) == 0, lab.tail(pod)

    lab.run(scenario)
