"""What no schema can find: selectors that match nothing, ports and keys that our programs do not have."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

import broker.app.program
import broker.container.program
import namesrv.program
from broker.app.broker import DRAIN_MS
from broker.config.broker_config import BrokerConfig
from broker.container.config import ContainerConfig
from broker.container.http_app import ALL_BROKERS
from broker.container.inner_config import load_inner
from keelmq.remoting.operations.health import Health
from keelmq.remoting.servers.health import add_health
from keelmq.remoting.servers.http_port import http_listen_port
from keelmq.remoting.servers.listener_settings import ListenersConfig
from keelmq.runtime.config import load_config, parse_settings, secret_keys
from keelmq.runtime.program import overrides_of
from keelmq.runtime.tls.settings import server_tls
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig
from tests.deploy.conftest import ROOT
from tests.deploy.objects import (
    Object,
    Objects,
    container,
    environment,
    expanded,
    pod_names,
    pod_spec,
    port_number,
    volume_of,
)

MODELS: dict[str, tuple[Any, ...]] = {
    "mqnamesrv": (NamesrvConfig, ControllerConfig),
    "mqbroker": (BrokerConfig,),
    "mqbrokercontainer": (ContainerConfig,),
}
SECRET_KEYS = secret_keys(*{model for models in MODELS.values() for model in models})
PARSERS = {
    "mqnamesrv": lambda: namesrv.program.make_parser("mqnamesrv"),
    "mqbroker": broker.app.program.make_parser,
    "mqbrokercontainer": broker.container.program.make_parser,
}
GROUP_OF = {"keelmq-broker-a": ["broker-a"], "keelmq-container": ["broker-a", "broker-b", "broker-c"]}
"""Brokers in each pod of a StatefulSet."""


def program(stateful_set: Object) -> str:
    (name,) = container(stateful_set)["command"]
    return str(name)


def configs(objects: Objects, stateful_set: Object, tmp_path: Path, index: int = 0) -> tuple[Any, ...]:
    """What the pod's own command line and mounted files give, by the program's own rules; of a container
    its brokers, too. A mounted securityPath lies below tmp_path here."""
    variables = environment(stateful_set, index=index, address="10.77.0.9")
    arguments = [expanded(each, variables) for each in container(stateful_set)["args"]]
    parsed = PARSERS[program(stateful_set)]().parse_args(arguments)
    path = tmp_path / "file.conf"
    path.write_text(objects.config_files(stateful_set)[str(parsed.config)])
    overrides = overrides_of(parsed.overrides)
    if mounted := overrides.get("securityPath"):
        overrides["securityPath"] = str(_unpacked(objects, stateful_set, mounted, tmp_path / "security"))
    found = load_config(*MODELS[program(stateful_set)], path=path, environ=variables, overrides=overrides)
    if isinstance(found[0], ContainerConfig):
        found += tuple(_inner(objects, stateful_set, found[0], tmp_path))
    return found


def _inner(
    objects: Objects, stateful_set: Object, config: ContainerConfig, tmp_path: Path
) -> Iterator[BrokerConfig]:
    files = objects.config_files(stateful_set)
    for mounted in config.config_paths:
        path = tmp_path / mounted.name
        path.write_text(files[str(mounted)])
        inner = load_inner(path, config)
        assert inner.notes == (), "lines without effect"
        yield inner.config


def brokers_in(found: tuple[Any, ...]) -> list[BrokerConfig]:
    """The brokers of a pod; none of a name server's."""
    return [each for each in found if isinstance(each, BrokerConfig)]


def _unpacked(objects: Objects, stateful_set: Object, mounted: str, directory: Path) -> Path:
    (mount,) = [each for each in container(stateful_set)["volumeMounts"] if each["mountPath"] == mounted]
    name = volume_of(stateful_set, mount["name"])["secret"]["secretName"]
    directory.mkdir(exist_ok=True)
    for file, data in objects.named("Secret", name)["data"].items():
        (directory / file).write_bytes(base64.b64decode(data))
        (directory / file).chmod(0o600)
    return directory


def ports_of(found: tuple[Any, ...]) -> dict[str, int]:
    """Every port that the program opens, by our names."""
    if isinstance(found[0], BrokerConfig):
        (config,) = found
        ports = {"broker": config.listen_port, "ha": config.ha_listen_port or config.listen_port + 1}
    elif isinstance(found[0], ContainerConfig):
        config, *inner = found
        ports = {"container": config.listen_port}
        for each in inner:
            ports[each.broker_name] = each.listen_port
            ports[each.broker_name.replace("broker", "ha")] = each.listen_port + 1
    else:
        config, controller = found
        me = controller.controller_d_leger_self_id
        controller_port, raft_port = controller.request_addresses[me][1], controller.raft_addresses[me][1]
        ports = {"namesrv": config.listen_port, "controller": controller_port, "raft": raft_port}
    listen = config.listen_port
    http = http_listen_port(config.http_port, listen_port=listen, bound_port=listen)
    assert http is not None, "the probes need HTTP"
    return ports | {"http": http} | listeners_of(found)


def listeners_of(found: tuple[Any, ...]) -> dict[str, int]:
    """Of those, the ports of further listeners (docs/listeners.md), by their names."""
    return {
        name: port
        for config in found
        if isinstance(config, ListenersConfig)
        for name, (_, port) in config.further_listeners.items()
    }


@pytest.mark.slow
def test_what_there_is(rendered: dict[str, Objects]) -> None:
    for overlay, replicas, pods in (
        ("base", 1, "keelmq-broker-a"),
        ("ha", 3, "keelmq-broker-a"),
        ("analytics", 3, "keelmq-broker-a"),
        ("dual-stack", 3, "keelmq-broker-a"),
        ("external-nodeport", 3, "keelmq-broker-a"),
        ("external-loadbalancer", 3, "keelmq-broker-a"),
        ("secure", 3, "keelmq-broker-a"),
        ("container", 3, "keelmq-container"),
        ("container-secure", 3, "keelmq-container"),
    ):
        found = {
            each["metadata"]["name"]: each["spec"]["replicas"] for each in rendered[overlay].stateful_sets
        }
        assert found == {"keelmq-namesrv": replicas, pods: replicas}


@pytest.mark.parametrize(("overlay", "pods"), [("ha", "keelmq-broker-a"), ("container", "keelmq-container")])
def test_these_overlays_lose_nothing(
    rendered: dict[str, Objects], tmp_path: Path, overlay: str, pods: str
) -> None:
    """allAckInSyncStateSet and two members at least: a master that dies takes nothing acknowledged along."""
    objects = rendered[overlay]
    for config in brokers_in(configs(objects, objects.named("StatefulSet", pods), tmp_path)):
        assert config.all_ack_in_sync_state_set and config.min_in_sync_replicas == 2
    controller = configs(objects, objects.named("StatefulSet", "keelmq-namesrv"), tmp_path)[1]
    assert not controller.enable_elect_unclean_master


def test_every_key_and_flag_is_ours_and_every_pod_has_its_identity(objects: Objects, tmp_path: Path) -> None:
    for each in objects.stateful_sets:
        for index, name in enumerate(pod_names(each)):
            found = configs(objects, each, tmp_path, index)
            if inner := brokers_in(found):
                assert [config.broker_name for config in inner] == GROUP_OF[each["metadata"]["name"]]
                assert {config.broker_ip1 for config in inner} == {"10.77.0.9"}
            else:
                host, _port = found[1].request_addresses[f"n{index}"]
                assert found[1].controller_d_leger_self_id == f"n{index}"
                assert host == f"{name}.{each['spec']['serviceName']}"


def test_members_and_their_clients_agree(objects: Objects, tmp_path: Path) -> None:
    """All controllers and all name servers are listed, and nothing else is."""
    servers = objects.named("StatefulSet", "keelmq-namesrv")
    config, controller = configs(objects, servers, tmp_path)
    hosts = [f"{name}.{servers['spec']['serviceName']}" for name in pod_names(servers)]
    assert [host for host, _ in controller.request_addresses.values()] == hosts
    port = ports_of((config, controller))["controller"]
    (other,) = [each for each in objects.stateful_sets if each is not servers]
    for of_broker in brokers_in(configs(objects, other, tmp_path)):
        assert of_broker.controllers == tuple(f"{host}:{port}" for host in hosts)
        assert of_broker.name_servers == tuple(f"{host}:{config.listen_port}" for host in hosts)


def test_ports(objects: Objects, tmp_path: Path) -> None:
    """Container, service and scrape annotation say what the configuration says."""
    for each in objects.stateful_sets:
        found = configs(objects, each, tmp_path)
        ports = ports_of(found)
        assert {port["name"]: port["containerPort"] for port in container(each)["ports"]} == ports
        inside = {name: port for name, port in ports.items() if name not in listeners_of(found)}
        service = objects.named("Service", each["spec"]["serviceName"])
        assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == inside
        for port in service["spec"]["ports"]:
            assert port_number(each, port["targetPort"]) == port["port"]
        notes = each["spec"]["template"]["metadata"]["annotations"]
        assert notes["prometheus.io/port"] == str(ports["http"]) and notes["prometheus.io/scrape"] == "true"


def test_labels_and_services(objects: Objects) -> None:
    for each in objects.stateful_sets:
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
        service = objects.named("Service", each["spec"]["serviceName"])["spec"]
        assert service["clusterIP"] == "None"  # headless: a name for each pod
        assert service["publishNotReadyAddresses"] is True  # members must meet before they can be ready
        assert each["spec"]["podManagementPolicy"] == "Parallel"  # the first alone is never ready
        selected = [
            other["metadata"]["name"]
            for other in objects.stateful_sets
            if service["selector"].items() <= other["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert selected == [each["metadata"]["name"]]


@pytest.mark.parametrize("overlay", ["ha", "container"])
def test_disruption_budgets(rendered: dict[str, Objects], overlay: str) -> None:
    objects = rendered[overlay]
    for each in objects.stateful_sets:
        labels, replicas = each["spec"]["template"]["metadata"]["labels"], each["spec"]["replicas"]
        (budget,) = [
            found["spec"]
            for found in objects.kind("PodDisruptionBudget")
            if found["spec"]["selector"]["matchLabels"].items() <= labels.items()
        ]
        stay = budget.get("minAvailable", replicas - budget.get("maxUnavailable", 0))
        assert replicas // 2 + 1 <= stay < replicas  # a majority stays, and a drain can go on
    assert len(objects.kind("PodDisruptionBudget")) == len(objects.stateful_sets)
    assert rendered["base"].kind("PodDisruptionBudget") == []  # of one pod it would block every drain


@pytest.mark.parametrize("overlay", ["ha", "container"])
def test_replicas_are_on_different_nodes(rendered: dict[str, Objects], overlay: str) -> None:
    for each in rendered[overlay].stateful_sets:
        labels = each["spec"]["template"]["metadata"]["labels"]
        (apart,) = pod_spec(each)["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert apart["topologyKey"] == "kubernetes.io/hostname"
        (spread,) = pod_spec(each)["topologySpreadConstraints"]
        assert spread["topologyKey"] == "topology.kubernetes.io/zone"
        assert spread["whenUnsatisfiable"] == "ScheduleAnyway", "one zone is enough to start"
        for selector in (apart["labelSelector"], spread["labelSelector"]):
            assert selector["matchLabels"] == each["spec"]["selector"]["matchLabels"]
            assert selector["matchLabels"].items() <= labels.items()


def test_probes(objects: Objects, tmp_path: Path) -> None:
    app = FastAPI()
    add_health(app, health=lambda: Health(ready=True), example=Health(ready=True))
    paths = {getattr(route, "path", "") for route in app.routes} | {f"/readyz/{ALL_BROKERS}"}
    for each in objects.stateful_sets:
        is_tls_only = server_tls(configs(objects, each, tmp_path)[0]).http.mode == "enforcing"
        wanted = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
        if program(each) == "mqbrokercontainer":
            wanted["readinessProbe"] = f"/readyz/{ALL_BROKERS}"
        for kind, path in wanted.items():
            probe = container(each)[kind]
            assert probe["httpGet"]["path"] == path and path in paths
            assert port_number(each, probe["httpGet"]["port"]) == port_number(each, "http")
            assert probe["timeoutSeconds"] <= probe["periodSeconds"]
            assert (probe["httpGet"].get("scheme") == "HTTPS") == is_tls_only
        notes = each["spec"]["template"]["metadata"]["annotations"]
        assert notes["prometheus.io/path"] in paths
        assert notes.get("prometheus.io/scheme", "http") == ("https" if is_tls_only else "http")


def test_pods_are_restricted(objects: Objects) -> None:
    """As the namespace demands: pod-security.kubernetes.io/enforce=restricted; and nothing more than that."""
    (namespace,) = objects.kind("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for each in objects.stateful_sets:
        spec, only = pod_spec(each), container(each)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert {spec["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {10001}
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert only["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        account = objects.named("ServiceAccount", spec["serviceAccountName"])
        assert account["automountServiceAccountToken"] is False
        assert spec["automountServiceAccountToken"] is False
        # KEELMQ_SOMETHING_SERVICE_HOST would be an unknown configuration key
        assert spec["enableServiceLinks"] is False


def test_no_pod_reaches_the_node_or_shows_a_secret(objects: Objects) -> None:
    """Volumes are claims, scratch space and the cluster's own objects; secrets come as files that others in
    the container cannot read, never as variables or arguments."""
    for each in [*objects.stateful_sets, *objects.kind("Deployment")]:
        spec, only = pod_spec(each), container(each)
        assert (
            not {"hostNetwork", "hostPID", "hostIPC", "initContainers", "ephemeralContainers"} & spec.keys()
        )
        assert only["securityContext"]["readOnlyRootFilesystem"] is True
        assert only["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not any("hostPort" in port for port in only.get("ports", []))
        for volume in spec["volumes"]:
            (kind,) = volume.keys() - {"name"}
            shared = volume["name"] == "analytics" and kind == "persistentVolumeClaim"
            assert shared or kind in ("configMap", "emptyDir", "secret"), volume
            if kind == "secret":
                assert volume["secret"]["defaultMode"] & 0o337 == 0, volume  # at most 0440
        for variable in only.get("env", []):
            assert "secretKeyRef" not in variable.get("valueFrom", {}), variable
        for text in [*only.get("args", []), *(variable.get("value", "") for variable in only.get("env", []))]:
            key, equals, _value = text.partition("=")
            assert not (equals and key in SECRET_KEYS), text


def test_config_maps_have_no_secret(objects: Objects) -> None:
    """Whoever may read ConfigMaps may often not read Secrets."""
    for each in objects.kind("ConfigMap"):
        for text in each["data"].values():
            assert not set(parse_settings(text, each["metadata"]["name"])) & SECRET_KEYS


def test_image_resources_and_grace(objects: Objects) -> None:
    version = (ROOT / "pyproject.toml").read_text().partition('\nversion = "')[2].partition('"')[0]
    for each in objects.stateful_sets:
        only = container(each)
        assert only["image"] == f"keelmq:{version}"
        assert {"cpu", "memory"} <= only["resources"]["requests"].keys()
        assert "memory" in only["resources"]["limits"]
        assert pod_spec(each)["terminationGracePeriodSeconds"] >= 30 > 10 * DRAIN_MS / 1000


def test_a_broker_has_the_time_for_its_clients_to_follow(objects: Objects, tmp_path: Path) -> None:
    """A master hands over, serves clients until they have polled the route, and writes back its page cache
    in the rest. Those of a container do so at the same time."""
    for each in objects.stateful_sets:
        inner = brokers_in(configs(objects, each, tmp_path))
        stays_ms = [one.shutdown_hand_over_timeout + one.shutdown_forward_timeout for one in inner]
        least_s = max(stays_ms, default=0) / 1000 + 30 * len(inner)
        assert pod_spec(each)["terminationGracePeriodSeconds"] >= least_s


def test_whatever_is_written_is_on_a_writable_volume(objects: Objects, tmp_path: Path) -> None:
    """Data on the claim, one for each pod; scratch files on the node; nothing else is writable."""
    for each in objects.stateful_sets:
        kinds = {}
        for mount in container(each)["volumeMounts"]:
            volume = volume_of(each, mount["name"])
            kinds[mount["mountPath"]] = next(key for key in volume if key != "name")
            # the pages of analytics are on a volume that others write
            only_read = ("configMap", "secret", "persistentVolumeClaim")
            assert mount.get("readOnly", False) == (kinds[mount["mountPath"]] in only_read)
        assert kinds["/tmp"] == "emptyDir"
        found = configs(objects, each, tmp_path)
        data, secret = [config.store_path_root_dir for config in brokers_in(found)], None
        if isinstance(found[0], ContainerConfig):
            data += [found[0].state_path]
        elif not data:
            data, secret = [found[1].directory], found[1].controller_raft_secret_file
        # Files of a ConfigMap are read-only: without a path of its own each change at run time is refused.
        data += [config.config_store_path for config in (found[0], *brokers_in(found))]
        for path in data:
            assert path is not None
            assert kinds[str(Path(*path.parts[:4]))] == "claim", path
        if secret is not None:
            assert kinds[str(secret.parent)] == "secret"
            name = volume_of(each, "secret")["secret"]["secretName"]
            assert secret.name in objects.named("Secret", name)["data"]


@pytest.mark.parametrize("wrong", ["listenPrt=9876", "minInSyncReplicas=none"])
def test_a_wrong_line_would_be_found(rendered: dict[str, Objects], tmp_path: Path, wrong: str) -> None:
    """The tests above are worth something: a typo in a ConfigMap does not pass."""
    objects = rendered["ha"]
    each = objects.named("StatefulSet", "keelmq-broker-a")
    name = volume_of(each, "conf")["configMap"]["name"]
    text = objects.named("ConfigMap", name)["data"]["broker.conf"]
    changed = {"kind": "ConfigMap", "metadata": {"name": name}, "data": {"broker.conf": f"{text}{wrong}\n"}}
    others = [one for one in objects.all if one is not objects.named("ConfigMap", name)]
    with pytest.raises(Exception, match=wrong.partition("=")[0]):
        configs(Objects([*others, changed]), each, tmp_path)
