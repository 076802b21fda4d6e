"""Clients outside of the cluster: what a broker announces is what its Service opens."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart import objects_of, template
from tests.deploy.conftest import copy_tree, render
from tests.deploy.objects import (
    NODE_ADDRESS,
    Object,
    Objects,
    container,
    pod_names,
    pod_spec,
    port_number,
)
from tests.deploy.test_policy import configs

NODE_PORTS = range(30_000, 32_768)
"""What Kubernetes permits, unless its API server is configured otherwise."""
HOSTNAME = "external-dns.alpha.kubernetes.io/hostname"
OVERLAYS = ["external-nodeport", "external-loadbalancer"]
VIP_DISTANCE = 2


def outer(objects: Objects) -> list[Object]:
    return [each for each in objects.kind("Service") if each["spec"].get("clusterIP") != "None"]


def of_pod(objects: Objects, pod: str) -> Object:
    """The one Service that selects this pod alone."""
    selector = {"statefulset.kubernetes.io/pod-name": pod}
    (found,) = [each for each in objects.kind("Service") if each["spec"]["selector"] == selector]
    return found


def where(service: Object) -> tuple[str | None, int]:
    """Host and port that a client outside connects to; of a NodePort the host is a node's."""
    (port,) = service["spec"]["ports"]
    if service["spec"]["type"] == "NodePort":
        return None, port["nodePort"]
    return service["metadata"]["annotations"][HOSTNAME], port["port"]


def check(objects: Objects, directory: Path) -> None:
    """Each broker is reached at what it announces, and at the listener."""
    announced = []
    for each in objects.stateful_sets:
        for index, pod in enumerate(pod_names(each)):
            found: Any = configs(objects, each, directory, index)[0]
            assert found.further_listeners.keys() == {"external"}
            if each["metadata"]["name"].endswith("-namesrv"):
                continue
            service = of_pod(objects, pod)
            host, port = where(service)
            assert found.advertised == {"external": (host or NODE_ADDRESS, port)}
            (declared,) = service["spec"]["ports"]
            assert port_number(each, declared["targetPort"]) == found.further_listeners["external"][1]
            announced.append(found.advertised["external"])
    assert len(announced) == len(set(announced)) >= 3
    if {host for host, _ in announced} == {NODE_ADDRESS}:
        ports = {port for _, port in announced}
        assert not ports & {port - VIP_DISTANCE for port in ports}, "an old client's VIP channel"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_brokers_announce_what_their_services_open(
    overlay: str, rendered: dict[str, Objects], tmp_path: Path
) -> None:
    check(rendered[overlay], tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        ("external.type=NodePort", "external.nodePorts.brokers=30"),
        ("external.type=LoadBalancer", "external.domain=a.example"),
        ("external.type=ClusterIP", "external.domain=a.example"),
    ],
)
def test_groups_of_the_chart_announce_it_as_well(
    settings: tuple[str, ...], helm: Path, tmp_path: Path
) -> None:
    groups = ("broker.groups[0].name=first", "broker.groups[1].name=second", "broker.replicas=4")
    found = objects_of(template(helm, (), "external.enabled=true", *groups, *settings))
    check(found, tmp_path)
    assert len(outer(found)) == 1 + 2 * 4
    types = {each["spec"]["type"] for each in outer(found)}
    assert types == {settings[0].partition("=")[2]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_services_outside(overlay: str, rendered: dict[str, Objects]) -> None:
    """None waits for readiness; each selects pods that exist; no port is there twice."""
    objects = rendered[overlay]
    ports = []
    for each in outer(objects):
        spec = each["spec"]
        assert spec["publishNotReadyAddresses"] is True
        assert spec["type"] in ("NodePort", "LoadBalancer")
        (port,) = spec["ports"]
        assert port["targetPort"] == "external"
        ports += [port["nodePort"]] if "nodePort" in port else []
    assert len(ports) == len(set(ports)) and all(port in NODE_PORTS for port in ports)
    names = objects.named("Service", "keelmq-namesrv-external")
    servers = objects.named("StatefulSet", "keelmq-namesrv")
    assert names["spec"]["selector"] == servers["spec"]["selector"]["matchLabels"]
    assert len(outer(objects)) == 1 + len(pod_names(objects.named("StatefulSet", "keelmq-broker-a")))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_inside_is_that_of_ha(overlay: str, rendered: dict[str, Objects]) -> None:
    """Files, Services and the address inside are unchanged; arguments, variables and a port are added."""
    inside, found = rendered["ha"], rendered[overlay]
    for each in inside.all:
        same = found.named(each["kind"], each["metadata"]["name"])
        if each["kind"] != "StatefulSet":
            assert same == each
            continue
        assert pod_spec(same)["volumes"] == pod_spec(each)["volumes"]
        for key in ("args", "env", "ports"):
            before, after = container(each)[key], container(same)[key]
            assert [item for item in after if item in before or item == "--set"][: len(before)] == before


def test_another_domain(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path, key="only-for-tests-" * 4)
    file = tree / "components" / "external-loadbalancer" / "domain.yaml"
    file.write_text(file.read_text().replace("domain: mq.example.com", "domain: queue.test"))
    done = render(tree, "external-loadbalancer")
    assert done.returncode == 0 and "mq.example.com" not in done.stdout
    objects = Objects([each for each in yaml.safe_load_all(done.stdout) if each])
    check(objects, tmp_path)
    assert where(objects.named("Service", "keelmq-namesrv-external")) == ("keelmq-namesrv.queue.test", 9876)
    assert objects.kind("ConfigMap") and all(
        "domain" not in each["data"] for each in objects.kind("ConfigMap")
    )


def test_a_closed_cluster_lets_clients_outside_in(tmp_path: Path, helm: Path) -> None:
    """At the listener, and nowhere else: the component after the one that closes, and both values."""
    tree = copy_tree(tmp_path, key="only-for-tests-" * 4)
    own = tree / "overlays" / "secure"
    text = (own / "kustomization.yaml").read_text()
    (own / "kustomization.yaml").write_text(text + "  - ../../components/external-nodeport\n")
    done = render(tree, "secure")
    assert done.returncode == 0, done.stderr
    of_kustomize = Objects([each for each in yaml.safe_load_all(done.stdout) if each])
    of_helm = objects_of(template(helm, ["secure", "external-nodeport"]))
    for objects in (of_kustomize, of_helm):
        for name in ("namesrv", "broker"):
            policy = objects.named("NetworkPolicy", f"keelmq-{name}")["spec"]
            open_to_all = [rule["ports"] for rule in policy["ingress"] if "from" not in rule]
            assert open_to_all == [[{"port": "external"}]]
        tools = objects.named("NetworkPolicy", "keelmq-tools")["spec"]
        assert tools["ingress"] == []
        for each in objects.stateful_sets:
            assert {"securityPath=/etc/keelmq/security"} < {*container(each)["args"]}


@pytest.mark.parametrize(("kind", "type_"), [("nodeport", "NodePort"), ("loadbalancer", "LoadBalancer")])
def test_proxies_are_reached_as_well(kind: str, type_: str, tmp_path: Path) -> None:
    tree = copy_tree(tmp_path, key="only-for-tests-" * 4)
    own = tree / "overlays" / "proxy"
    text = (own / "kustomization.yaml").read_text()
    (own / "kustomization.yaml").write_text(text + f"  - ../../components/external-{kind}\n")
    done = render(tree, "proxy")
    assert done.returncode == 0, done.stderr
    found = Objects([each for each in yaml.safe_load_all(done.stdout) if each])
    assert found.named("Service", "keelmq-proxy")["spec"]["type"] == type_
