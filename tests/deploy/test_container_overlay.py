"""The overlay container: each pod has one replica of every group, on a volume of its own, and the containers
of compose.container.yaml have the same files."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from broker.config.broker_config import BrokerConfig
from keelmq.runtime.config import load_config
from tests.deploy.conftest import ROOT
from tests.deploy.objects import Object, Objects, container, pod_names, pod_spec, volume_of

CONF = Path("/etc/keelmq/conf")
SET = "keelmq-container"
FILES_OF_BROKERS = ["broker-a.conf", "broker-b.conf", "broker-c.conf"]
COMPOSE = ROOT / "deploy" / "docker"


@pytest.fixture(scope="session")
def overlay(rendered: dict[str, Objects]) -> Objects:
    return rendered["container"]


@pytest.fixture(scope="session")
def pods(overlay: Objects) -> Object:
    return overlay.named("StatefulSet", SET)


@pytest.fixture
def brokers(overlay: Objects, pods: Object, tmp_path: Path) -> list[BrokerConfig]:
    """As the pods' files have them."""
    files = overlay.config_files(pods)
    assert sorted(files) == sorted(str(CONF / name) for name in ["container.conf", *FILES_OF_BROKERS])
    found = []
    for name in FILES_OF_BROKERS:
        path = tmp_path / name
        path.write_text(files[str(CONF / name)])
        (config,) = load_config(BrokerConfig, path=path, environ={}, overrides={})
        assert isinstance(config, BrokerConfig)
        found.append(config)
    return found


def container_settings(overlay: Objects, pods: Object) -> dict[str, str]:
    text = overlay.config_files(pods)[str(CONF / "container.conf")]
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))


def test_containers_are_in_place_of_the_brokers(overlay: Objects, pods: Object) -> None:
    assert sorted(each["metadata"]["name"] for each in overlay.stateful_sets) == [SET, "keelmq-namesrv"]
    assert len(pod_names(pods)) == 3
    # nothing is left of the group that the overlay ha has
    for each in overlay.all:
        assert not each["metadata"]["name"].startswith("keelmq-broker")


def test_every_broker_file_is_read(overlay: Objects, pods: Object, brokers: list[BrokerConfig]) -> None:
    paths = container_settings(overlay, pods)["brokerConfigPaths"].split(":")
    assert paths == [str(CONF / name) for name in FILES_OF_BROKERS]
    assert [f"{config.broker_name}.conf" for config in brokers] == FILES_OF_BROKERS


def test_every_broker_has_a_volume_of_its_own(pods: Object, brokers: list[BrokerConfig]) -> None:
    """And what the container itself writes is on another one."""
    mounts = {each["mountPath"]: each["name"] for each in container(pods)["volumeMounts"]}
    used = []
    for config in brokers:
        volume = mounts[str(config.store_path_root_dir.parent)]
        assert "claim" in volume_of(pods, volume)
        assert config.config_store_path is not None
        assert config.config_store_path.parent == config.store_path_root_dir.parent
        used.append(volume)
    used.append(mounts["/var/lib/keelmq"])
    assert len(set(used)) == len(used) == len(pods["spec"]["volumeClaimTemplates"])
    # a path below another one is mounted after it
    assert sorted(mounts, key=len).index("/var/lib/keelmq") < list(mounts).index("/var/lib/keelmq/broker-a")


def test_nothing_acknowledged_is_on_one_node_alone(brokers: list[BrokerConfig], pods: Object) -> None:
    for config in brokers:
        assert config.enable_controller_mode and config.broker_id == -1
        assert config.all_ack_in_sync_state_set
        assert 2 <= config.min_in_sync_replicas < pods["spec"]["replicas"]


def test_probes_ask_the_container_and_not_a_broker(pods: Object) -> None:
    """A broker that lags or is in quarantine must not take the others of its pod along."""
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container(pods)[kind]["httpGet"]["port"] == "http"
        assert container(pods)[kind]["httpGet"]["path"] in ("/livez", "/readyz/all")


def test_the_grace_is_enough_for_hand_overs(pods: Object, brokers: list[BrokerConfig]) -> None:
    """All at the same time; and then every store is written back."""
    stay_ms = max(config.shutdown_hand_over_timeout + config.shutdown_forward_timeout for config in brokers)
    assert pod_spec(pods)["terminationGracePeriodSeconds"] >= stay_ms / 1000 + 30 * len(brokers)


def test_one_pod_at_a_time(overlay: Objects, pods: Object) -> None:
    budget = overlay.named("PodDisruptionBudget", SET)["spec"]
    labels = pods["spec"]["selector"]["matchLabels"]
    assert budget["maxUnavailable"] == 1 and budget["selector"]["matchLabels"] == labels
    (apart,) = pod_spec(pods)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"] == labels
    assert pods["spec"]["podManagementPolicy"] == "Parallel"


def compose(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text())
    return found


def test_compose_has_the_files_of_the_overlay(pods: Object) -> None:
    file = compose("compose.container.yaml")
    services = {name: each for name, each in file["services"].items() if name.startswith("container-")}
    assert len(services) == pods["spec"]["replicas"]
    for name, service in services.items():
        assert service["command"] == [*container(pods)["command"], "-c", str(CONF / "container.conf")]
        sources = {each["target"]: file["configs"][each["source"]]["file"] for each in service["configs"]}
        assert sorted(sources) == sorted(str(CONF / one) for one in ["container.conf", *FILES_OF_BROKERS])
        for target, source in sources.items():
            path = (COMPOSE / source).resolve()
            assert path == ROOT / "deploy" / "k8s" / "overlays" / "container" / Path(target).name
        assert service["stop_grace_period"] == f"{pod_spec(pods)['terminationGracePeriodSeconds']}s"
        assert service["volumes"] == [f"{name}:/var/lib/keelmq"] and name in file["volumes"]
        (image,) = {container(pods)["image"]}
        assert service["image"] == image
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"] and "privileged" not in service
        assert f"{probe_port(pods)}/readyz" in service["healthcheck"]["test"][-1]


def probe_port(pods: Object) -> int:
    (found,) = [each["containerPort"] for each in container(pods)["ports"] if each["name"] == "http"]
    assert isinstance(found, int)
    return found


def test_compose_has_the_name_servers_of_the_other_file() -> None:
    mine, other = compose("compose.container.yaml"), compose("compose.yaml")
    for name, service in other["services"].items():
        if name.startswith("namesrv-"):
            assert mine["services"][name] == service
    assert mine["configs"]["namesrv"] == other["configs"]["namesrv"]
    assert mine["secrets"] == other["secrets"]
