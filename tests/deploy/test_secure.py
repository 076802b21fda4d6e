"""The overlay secure: closed pods, Secrets without the key of the CA, and NetworkPolicies for the right pods
and ports."""

import base64
from pathlib import Path
from typing import Any

import pytest

from broker.config.broker_config import BrokerConfig
from cli.doctor.files import Kind, load
from cli.doctor.security import check_security
from keelmq.health.findings import Level
from keelmq.security.open_network import openings
from tests.deploy.conftest import SECURE
from tests.deploy.objects import (
    Object,
    Objects,
    container,
    pod_spec,
    port_number,
    volume_of,
)
from tests.deploy.test_policy import configs, ports_of

CLIENT = {"keelmq/client": "true"}
SECURITY = "/etc/keelmq/security"


Closed = tuple[Objects, list[Object]]


@pytest.fixture(params=sorted(SECURE))
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def closed(rendered: dict[str, Objects], overlay: str) -> Closed:
    """An overlay, and its StatefulSets."""
    return rendered[overlay], rendered[overlay].stateful_sets


def test_every_pod_is_closed(
    rendered: dict[str, Objects], closed: Closed, overlay: str, tmp_path: Path
) -> None:
    objects, stateful_sets = closed
    assert len(stateful_sets) == 2
    for each in stateful_sets:
        (config, *others) = configs(objects, each, tmp_path)
        for one in (config, *(other for other in others if isinstance(other, BrokerConfig))):
            assert openings(one) == [] and not one.allow_open_network
            assert one.member_credentials is not None and one.members_required
    still_open = rendered[SECURE[overlay]]
    for each in still_open.stateful_sets:
        assert openings(configs(still_open, each, tmp_path)[0])


def test_the_doctor_finds_nothing_in_the_secret(security_path: Path, tmp_path: Path) -> None:
    for kind in (Kind.BROKER, Kind.NAMESRV):
        path = tmp_path / f"{kind}.conf"
        path.write_text(f"securityPath={security_path}\n")
        file, findings = load(path, kind, path.name)
        assert file is not None, findings
        assert [each.line() for each in check_security([file]) if each.level is not Level.OK] == []


def test_the_secrets(closed: Closed, overlay: str, secure_directories: dict[str, Path]) -> None:
    """None has the key of the CA, and that of the servers has no clear token."""
    objects, stateful_sets = closed
    secure_directory = secure_directories[overlay]
    authority = (secure_directory / "security" / "keep-offline" / "ca.key").read_bytes()
    token = (secure_directory / "security" / "admin" / "http-administer.token").read_bytes().strip()
    for secret in objects.kind("Secret"):
        for data in secret["data"].values():
            assert authority.strip() not in base64.b64decode(data)
    servers = objects.named("Secret", "keelmq-security")["data"]
    assert not any(token in base64.b64decode(data) for data in servers.values())
    assert "credentials.yml" in objects.named("Secret", "keelmq-admin")["data"]
    for each in stateful_sets:
        mounted = {
            volume_of(each, mount["name"]).get("secret", {}).get("secretName") for mount in mounts(each)
        }
        assert "keelmq-security" in mounted and "keelmq-admin" not in mounted


def mounts(stateful_set: Object) -> list[Object]:
    found: list[Object] = container(stateful_set)["volumeMounts"]
    return found


def test_programs_can_read_the_secret_and_nobody_else_can(closed: Closed) -> None:
    """The kubelet gives the files to root and to fsGroup; read_private() takes those from root only."""
    _, stateful_sets = closed
    for each in stateful_sets:
        (mount,) = [one for one in mounts(each) if one["mountPath"] == SECURITY]
        assert volume_of(each, mount["name"])["secret"]["defaultMode"] == 0o440
        assert (
            mount["readOnly"] is True and "subPath" not in mount
        )  # the kubelet renews whole directories only
        context = pod_spec(each)["securityContext"]
        assert context["fsGroup"] == context["runAsGroup"] and context["runAsUser"] != 0


def test_users_in_files_are_on_the_volume(closed: Closed, tmp_path: Path) -> None:
    """Of name servers and containers; brokers replicate theirs."""
    objects, stateful_sets = closed
    for each in stateful_sets:
        config = configs(objects, each, tmp_path)[0]
        if isinstance(config, BrokerConfig):
            continue
        (volume,) = [
            volume_of(each, one["name"]) for one in mounts(each) if one["mountPath"] == "/var/lib/keelmq"
        ]
        assert "claim" in volume and config.users_path.is_relative_to("/var/lib/keelmq")
        assert config.init_user is not None  # they are empty at first


def allowed(
    objects: Objects, target: Object, port: int, labels: dict[str, str], space: dict[str, str]
) -> bool:
    """Whether a pod with these labels, in a namespace with those, may connect. `target`: a StatefulSet."""
    own = target["spec"]["template"]["metadata"]["labels"]
    policies = [
        each["spec"] for each in objects.kind("NetworkPolicy") if _selects(each["spec"]["podSelector"], own)
    ]
    assert policies, f"{target['metadata']['name']}: no policy, so everybody may connect"
    is_here = space.get("kubernetes.io/metadata.name") == "keelmq"

    def matches(peer: Any) -> bool:
        if "namespaceSelector" not in peer and not is_here:
            return False
        return _selects(peer.get("namespaceSelector", {}), space) and _selects(
            peer.get("podSelector", {}), labels
        )

    return any(
        port in {port_number(target, one["port"]) for one in rule["ports"]}
        and any(matches(peer) for peer in rule["from"])
        for policy in policies
        for rule in policy["ingress"]
    )


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def test_who_may_connect(closed: Closed, tmp_path: Path) -> None:
    objects, stateful_sets = closed
    here = {"kubernetes.io/metadata.name": "keelmq"}
    elsewhere, monitoring = (
        {"kubernetes.io/metadata.name": "shop"},
        {"kubernetes.io/metadata.name": "monitoring"},
    )
    of = {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in stateful_sets}
    tools = objects.named("Deployment", "keelmq-tools")["spec"]["template"]["metadata"]["labels"]
    for target in stateful_sets:
        me = target["metadata"]["name"]
        for name, port in ports_of(configs(objects, target, tmp_path)).items():
            is_for_clients = name.startswith(("namesrv", "broker"))
            is_for_peers = name.startswith(("raft", "ha"))
            is_for_tools = name == "container"
            assert not allowed(objects, target, port, {}, elsewhere), name
            assert allowed(objects, target, port, CLIENT, elsewhere) == is_for_clients, name
            assert not allowed(objects, target, port, {}, here), name
            assert allowed(objects, target, port, {}, monitoring) == (name == "http"), name
            for member, labels in of.items():
                may = not is_for_tools and (member == me or not is_for_peers)
                assert allowed(objects, target, port, labels, here) == may, name
                assert not allowed(objects, target, port, labels, elsewhere) or is_for_clients, name
            assert allowed(objects, target, port, tools, here) == (not is_for_peers), name


def test_the_administrators_pod(closed: Closed) -> None:
    """It is restricted as the others, and there is none until somebody wants it."""
    objects, (server, _) = closed
    tools = objects.named("Deployment", "keelmq-tools")
    assert tools["spec"]["replicas"] == 0
    spec, only = pod_spec(tools), container(tools)
    assert only["securityContext"] == container(server)["securityContext"]
    assert only["image"] == container(server)["image"]
    assert spec["securityContext"].items() <= pod_spec(server)["securityContext"].items()
    assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False
    (mount, _) = only["volumeMounts"]
    (named,) = [each["value"] for each in only["env"] if each["name"] == "KEELMQ_CREDENTIALS"]
    assert named == f"{mount['mountPath']}/credentials.yml"
    secret = objects.named("Secret", volume_of(tools, mount["name"])["secret"]["secretName"])
    assert {"credentials.yml", "ca.crt", "admin.crt", "admin.key"} <= secret["data"].keys()
