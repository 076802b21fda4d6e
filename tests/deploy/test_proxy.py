"""The overlay proxy, and compose.proxy.yaml: keys, ports and names that exist, and nothing to keep."""

from typing import Any

import pytest
import yaml

from keelmq.remoting.servers.http_port import http_listen_port
from keelmq.runtime.config import load_config
from proxy.server.config import ProxyConfig
from proxy.server.program import make_parser
from tests.deploy.conftest import ROOT
from tests.deploy.objects import Object, Objects, container, pod_spec, port_number

COMPOSE = ROOT / "deploy" / "docker"
CONF = ROOT / "deploy" / "k8s" / "components" / "proxy" / "proxy.conf"


@pytest.fixture
def objects(rendered: dict[str, Objects]) -> Objects:
    return rendered["proxy"]


@pytest.fixture
def deployment(objects: Objects) -> Object:
    return objects.named("Deployment", "keelmq-proxy")


def config_of(arguments: list[str]) -> ProxyConfig:
    parsed = make_parser().parse_args(arguments)
    assert str(parsed.config) == "/etc/keelmq/conf/proxy.conf"
    (found,) = load_config(ProxyConfig, path=CONF, environ={}, overrides={})
    assert isinstance(found, ProxyConfig)
    return found


def http_port(config: ProxyConfig) -> int:
    port = config.grpc_server_port
    found = http_listen_port(config.http_port, listen_port=port, bound_port=port)
    assert found
    return found


def test_ports_are_those_of_the_file(objects: Objects, deployment: Object) -> None:
    proxy = container(deployment)
    assert proxy["command"] == ["mqproxy"]
    config = config_of(proxy["args"])
    assert objects.config_files(deployment) == {"/etc/keelmq/conf/proxy.conf": CONF.read_text()}
    assert port_number(deployment, "grpc") == config.grpc_server_port
    assert port_number(deployment, "http") == http_port(config)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert proxy[probe]["httpGet"]["port"] == "http"
    annotations = deployment["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(http_port(config))
    (port,) = objects.named("Service", "keelmq-proxy")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (config.grpc_server_port, "grpc")
    assert config.proxy_address == "keelmq-proxy"


def test_name_servers_are_pods_of_the_overlay(objects: Objects, deployment: Object) -> None:
    config = config_of(container(deployment)["args"])
    stateful = objects.named("StatefulSet", "keelmq-namesrv")
    expected = [
        f"keelmq-namesrv-{index}.keelmq-namesrv:9876" for index in range(stateful["spec"]["replicas"])
    ]
    assert config.namesrv_addr.split(";") == expected


def test_everything_selects_its_pods(objects: Objects, deployment: Object) -> None:
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    budget = objects.named("PodDisruptionBudget", "keelmq-proxy")["spec"]
    assert labels == deployment["spec"]["selector"]["matchLabels"] == budget["selector"]["matchLabels"]
    assert labels == objects.named("Service", "keelmq-proxy")["spec"]["selector"]
    autoscaler = objects.named("HorizontalPodAutoscaler", "keelmq-proxy")["spec"]
    target = autoscaler["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", deployment["metadata"]["name"])
    assert "replicas" not in deployment["spec"], "an apply would undo what the autoscaler has set"
    assert autoscaler["minReplicas"] > budget["maxUnavailable"]


def test_zones_and_nodes(deployment: Object) -> None:
    """Proxies are spread, and start even where one zone or node is left."""
    constraints = pod_spec(deployment)["topologySpreadConstraints"]
    keys = {each["topologyKey"] for each in constraints}
    assert keys == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
    for each in constraints:
        assert each["whenUnsatisfiable"] == "ScheduleAnyway"
        assert each["labelSelector"]["matchLabels"] == deployment["spec"]["selector"]["matchLabels"]


def test_nothing_is_kept(deployment: Object) -> None:
    volumes = [each for each in pod_spec(deployment)["volumes"] if "configMap" not in each]
    assert [volume["emptyDir"] for volume in volumes] == [{"sizeLimit": "64Mi"}]
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_compose_has_the_same_program(deployment: Object) -> None:
    compose: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.proxy.yaml").read_text())
    base: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    assert (COMPOSE / compose["configs"]["proxy"]["file"]).resolve() == CONF
    published = []
    for name, service in compose["services"].items():
        assert name not in base["services"]
        program, *arguments = service["command"]
        assert ([program], arguments) == (container(deployment)["command"], container(deployment)["args"])
        config = config_of(arguments)
        assert f"http://127.0.0.1:{http_port(config)}/readyz" in service["healthcheck"]["test"][-1]
        for key in ("image", "read_only", "cap_drop", "security_opt", "restart"):
            assert service[key] == base["services"]["broker-0"][key]
        published += [each.split(":") for each in service["ports"]]
    assert {inner for _, _, inner in published} <= {str(config.grpc_server_port), str(http_port(config))}
    assert len({outer for _, outer, _ in published}) == len(published)
