"""deploy/container: the files of each node are those that the programs read, and any node may be lost."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.config.broker_config import BrokerConfig
from broker.container.app import own_ports
from broker.container.config import ContainerConfig
from broker.container.core.plan import problems_of
from broker.container.inner_config import load_inner
from keelmq.remoting.servers.http_port import HTTP_PORT_DISTANCE
from keelmq.runtime.config import load_config
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig
from tests.deploy.conftest import ROOT

SAMPLES = ROOT / "deploy" / "container"
INSTALLED = Path("/etc/keelmq")
"""Where the files of a node are on the node, by docs/container.md."""
PEER_TO_PEER = ["2-nodes", "2-nodes-plain", "3-nodes"]
WITH_CONTROLLERS = ["2-nodes", "3-nodes"]
OUTGOING_PORT_MIN = 32_768


@dataclass(frozen=True)
class Node:
    """One machine's files. controller: None without controllers. container: None on a machine with a name
    server only."""

    name: str
    name_server: NamesrvConfig
    controller: ControllerConfig | None
    container: ContainerConfig | None
    brokers: dict[str, BrokerConfig]


def container_at(directory: Path) -> ContainerConfig | None:
    path = directory / "container.conf"
    if not path.exists():
        return None
    (config,) = load_config(ContainerConfig, path=path, environ={}, overrides={})
    assert isinstance(config, ContainerConfig)
    return config


def node_at(directory: Path) -> Node:
    path = directory / "namesrv.conf"
    has_controller = "enableControllerInNamesrv=true" in path.read_text().splitlines()
    models = (NamesrvConfig, ControllerConfig) if has_controller else (NamesrvConfig,)
    name_server, *others = load_config(*models, path=path, environ={}, overrides={})
    assert isinstance(name_server, NamesrvConfig)
    controller = others[0] if others else None
    assert controller is None or isinstance(controller, ControllerConfig)
    container = container_at(directory)
    return Node(directory.name, name_server, controller, container, brokers_of(directory, container))


def brokers_of(directory: Path, container: ContainerConfig | None) -> dict[str, BrokerConfig]:
    """As the container reads them, together."""
    if container is None:
        return {}
    inner = [load_inner(path, container) for path in sorted(directory.glob("broker-*.conf"))]
    assert [each.notes for each in inner] == [()] * len(inner), "lines without effect"
    plans = [each.plan() for each in inner]
    for number, plan in enumerate(plans):
        assert not problems_of(plan, plans[:number], own_ports(container))
    return {each.path.name: each.config for each in inner}


def nodes_of(layout: str) -> list[Node]:
    found = [node_at(each) for each in sorted((SAMPLES / layout).iterdir()) if each.is_dir()]
    assert [each.name for each in found] == [f"node{number + 1}" for number in range(len(found))]
    return found


def hosts_of(nodes: list[Node]) -> list[Node]:
    return [each for each in nodes if each.container is not None]


@pytest.mark.parametrize("layout", PEER_TO_PEER)
def test_a_container_has_the_brokers_of_its_folder(layout: str) -> None:
    for node in hosts_of(nodes_of(layout)):
        assert node.container is not None
        paths = [INSTALLED / name for name in sorted(node.brokers)]
        assert sorted(node.container.config_paths) == paths
        assert node.container.config_directories == (INSTALLED,)
        assert all(config.broker_name == name.removesuffix(".conf") for name, config in node.brokers.items())


@pytest.mark.parametrize("layout", PEER_TO_PEER)
def test_ports_and_stores_are_apart_on_a_node(layout: str) -> None:
    for node in hosts_of(nodes_of(layout)):
        assert node.container is not None
        admin = node.container.listen_port
        name_server = node.name_server.listen_port
        ports = [admin, admin - 2, admin + HTTP_PORT_DISTANCE, name_server, name_server + HTTP_PORT_DISTANCE]
        kept = [node.container.state_path]
        if node.controller is not None:
            kept.append(node.controller.directory)
            for each in (node.controller.request_addresses, node.controller.raft_addresses):
                ports += [port for host, port in each.values() if host == node.name]
        for config in node.brokers.values():
            ports += [config.listen_port, config.listen_port - 2, config.listen_port + 1]
        assert [port for port, count in Counter(ports).items() if count > 1] == []
        assert max(ports) < OUTGOING_PORT_MIN
        stores = [config.store_path_root_dir for config in node.brokers.values()]
        for config in node.brokers.values():
            assert config.replicas_per_disk_partition == len(stores)
        for path in (*stores, *kept):
            assert not any(path.is_relative_to(other) for other in stores if other is not path)


@pytest.mark.parametrize("layout", PEER_TO_PEER)
def test_a_group_is_the_same_everywhere_but_for_its_place(layout: str) -> None:
    """Same port and cluster on every node, one first master for each node, and each node first for one."""
    nodes = hosts_of(nodes_of(layout))
    names = {name for node in nodes for name in node.brokers}
    first = []
    for name in sorted(names):
        group = [node.brokers[name] for node in nodes]  # KeyError: a node without a replica
        assert len({(each.listen_port, each.broker_cluster_name) for each in group}) == 1
        places = [place_of(each) for each in group]
        assert sorted(places) == list(range(len(nodes)))
        first.append(nodes[places.index(0)].name)
    assert sorted(first) == [each.name for each in nodes]


def place_of(config: BrokerConfig) -> int:
    """0: the group's master where everything runs; the others in the order in which they follow it."""
    return config.broker_election_priority if config.enable_controller_mode else config.broker_id


def test_three_nodes_rotate() -> None:
    """The slaves of a node's own group are on the two others, the first of them on the next node."""
    for number, node in enumerate(nodes_of("3-nodes")):
        groups = {config.broker_name: place_of(config) for config in node.brokers.values()}
        expected = {f"broker-{'abc'[(number - place) % 3]}": place for place in range(3)}
        assert groups == expected


@pytest.mark.parametrize("layout", WITH_CONTROLLERS)
def test_any_node_may_be_lost(layout: str) -> None:
    """The others have a majority of the controllers, and enough replicas of every group to take messages."""
    nodes = nodes_of(layout)
    controllers = [node.controller for node in nodes if node.controller is not None]
    (first, *others) = controllers
    assert all(each.request_addresses == first.request_addresses for each in others)
    members = [f"{host}:{port}" for host, port in first.request_addresses.values()]
    assert [each.partition(":")[0] for each in members] == [node.name for node in nodes]
    assert [each.controller_d_leger_self_id for each in controllers] == [f"n{i}" for i in range(len(nodes))]
    for lost in nodes:
        stay = [node for node in nodes if node is not lost]
        assert len(stay) > len(nodes) / 2
        for name in lost.brokers:
            left = [node.brokers[name] for node in stay if name in node.brokers]
            assert len(left) >= lost.brokers[name].min_in_sync_replicas >= 1
        for config in lost.brokers.values():
            assert config.enable_controller_mode and config.broker_id == -1
            assert config.all_ack_in_sync_state_set  # nothing acknowledged is on the lost node alone
            assert config.controllers == tuple(members)


@pytest.mark.parametrize("layout", PEER_TO_PEER)
def test_containers_know_every_name_server(layout: str) -> None:
    nodes = nodes_of(layout)
    known = ";".join(f"{node.name}:{node.name_server.listen_port}" for node in nodes)
    for node in hosts_of(nodes):
        assert node.container is not None and node.container.namesrv_addr == known


def test_the_trial_on_one_machine() -> None:
    """Commands of docs/container.md: two brokers from the checkout, and a file for a third, all unlike."""
    text = (ROOT / "docs" / "container.md").read_text()
    config = container_at(SAMPLES / "1-node")
    assert config is not None
    started = [ROOT / path for path in config.config_paths]
    assert [path.exists() for path in started] == [True, True]
    third = SAMPLES / "1-node" / "broker-c.conf"
    assert f'"$PWD/{third.relative_to(ROOT)}"' in text and "-c deploy/container/1-node/container.conf" in text
    assert sorted(brokers_of(third.parent, config)) == sorted(path.name for path in [*started, third])
    assert config.bind_address == "127.0.0.1"
