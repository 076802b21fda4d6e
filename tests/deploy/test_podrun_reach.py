"""The pods of external-nodeport and prefixed, run as declared: clients get the addresses of their side, and
pods with other names find each other."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from keelmq.client.admin import AdminClient, AdminError
from tests.deploy import podrun
from tests.deploy.conftest import copy_tree, render_directory
from tests.deploy.objects import NODE_ADDRESS, Objects
from tests.deploy.podrun import Lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

START_TIMEOUT_S = 90.0
INSIDE, OUTSIDE = 9876, 9976


def addresses(objects: Objects, directory: Path, cluster: str, ports: Sequence[int]) -> list[set[str]]:
    """Starts all pods. Returns the brokers' own addresses, and then those that a name server names at each of
    these ports, once all pods are ready."""
    if reason := podrun.missing():
        pytest.skip(reason)

    async def scenario(lab: Lab) -> list[set[str]]:
        for pod in [*lab.of("broker"), *lab.of("namesrv")]:
            lab.start(pod)
        server = lab.of("namesrv")[0]
        host = f"{server.name}.{server.stateful_set['spec']['serviceName']}"
        async with AdminClient(timeout_ms=2_000) as admin:

            async def named() -> list[set[str]] | None:
                try:
                    told = [await admin.name_servers.cluster_info(f"{host}:{port}") for port in ports]
                except AdminError:  # it may not have started
                    return None
                if any(each.cluster_addr_table != {cluster: ["broker-a"]} for each in told):
                    return None
                found = [{*each.broker_addr_table["broker-a"].broker_addrs.values()} for each in told]
                return found if all(len(each) == 3 for each in found) else None

            await lab.until(f"three brokers of {cluster}", named, START_TIMEOUT_S)
            await lab.until_ready(lab.pods.values(), START_TIMEOUT_S)
            found = await lab.until("the same", named, START_TIMEOUT_S)
        return [{f"{pod.address}:10911" for pod in lab.of("broker")}, *found]

    with Lab(objects, directory) as lab:
        return lab.run(lambda: scenario(lab))


def test_clients_get_the_addresses_of_their_side(rendered: dict[str, Objects], tmp_path: Path) -> None:
    ports = (INSIDE, OUTSIDE)
    own, inside, outside = addresses(rendered["external-nodeport"], tmp_path, "DefaultCluster", ports)
    assert inside == own
    assert outside == {f"{NODE_ADDRESS}:31{index}00" for index in range(3)}


def test_pods_with_a_prefix_find_each_other(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path, key="only-for-tests-" * 4)
    (pods := tmp_path / "pods").mkdir()
    objects = render_directory(tree / "overlays" / "prefixed")
    own, inside = addresses(objects, pods, "keelmq-blue", (INSIDE,))
    assert inside == own
