"""docs/kubernetes.md: what its edits render. tests/cluster/test_pages.py runs its commands."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from keelmq.remoting.servers.health import ROLE_NAMES
from tests.deploy.chart import objects_of, template
from tests.deploy.conftest import OVERLAYS, ROOT, copy_tree, kubectl, render
from tests.deploy.objects import Objects, pod_names, port_number


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_oldest_kubectl_renders_the_same(overlay: str, oldest_kubectl: Path, tmp_path: Path) -> None:
    version = subprocess.run(
        [oldest_kubectl, "version", "--client", "-o", "yaml"], capture_output=True, text=True, check=True
    )
    minor = yaml.safe_load(version.stdout)["clientVersion"]["minor"]
    assert f"for Kubernetes 1.{minor} to " in (ROOT / "docs" / "kubernetes.md").read_text()
    tree = copy_tree(tmp_path, key="only-for-tests-" * 4)
    oldest, newest = render(tree, overlay, oldest_kubectl), render(tree, overlay)
    assert oldest.returncode == 0, oldest.stderr
    assert list(yaml.safe_load_all(oldest.stdout)) == list(yaml.safe_load_all(newest.stdout))


def section(title: str) -> str:
    """The text of this section of docs/kubernetes.md."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_a_second_group(tmp_path: Path) -> None:
    """The commands, as they are written; the new group is like the first in all but its name."""
    (tmp_path / "deploy").mkdir()
    copy_tree(tmp_path / "deploy", key="only-for-tests-" * 4)
    (block,) = re.findall(r"^```sh\n(.*?)^```", section("A second group"), flags=re.DOTALL | re.MULTILINE)
    script = "set -e\n" + block.replace("kubectl apply -k", f"{kubectl()} kustomize")
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = Objects([each for each in yaml.safe_load_all(done.stdout) if each])
    for kind in ("StatefulSet", "Service", "PodDisruptionBudget"):
        first, second = (found.named(kind, f"keelmq-broker-{letter}") for letter in "ab")
        if kind == "StatefulSet":
            configs = [found.config_files(each) for each in (first, second)]
            assert second["spec"]["replicas"] == 3
            for text in configs[1].values():
                assert "brokerName=broker-b" in text and "broker-a" not in text
            for each in (first, second):  # the name of a ConfigMap has a hash of its text
                for volume in each["spec"]["template"]["spec"]["volumes"]:
                    volume.pop("configMap", None)
        assert repr(second) == repr(first).replace("broker-a", "broker-b")


def test_larger_volumes(rendered: dict[str, Objects], helm: Path, tmp_path: Path) -> None:
    """The edits have the size of the claims, which exist, and change nothing else of the StatefulSet."""
    text = section("Larger volumes")
    for_kustomize, for_helm = re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    before = rendered["ha"].named("StatefulSet", "keelmq-broker-a")
    (pods,) = re.findall(r"for pod in (.*); do", for_kustomize)
    assert pods.split() == pod_names(before)
    assert [f"{each['metadata']['name']}-" for each in before["spec"]["volumeClaimTemplates"]] == ["data-"]
    assert "patch pvc data-$pod " in for_kustomize
    (patch,) = re.findall(r"patch pvc \S+ -p '(.*)'", for_kustomize)
    size = json.loads(patch)["spec"]["resources"]["requests"]["storage"]
    (tmp_path / "deploy").mkdir()
    tree = copy_tree(tmp_path / "deploy", key="only-for-tests-" * 4)
    (edit,) = [line for line in for_kustomize.splitlines() if line.startswith("sed ")]
    subprocess.run(["sh", "-ec", edit], cwd=tmp_path, check=True)
    done = render(tree, "ha")
    (settings,) = re.findall(r"--set (\S+)", for_helm)
    for found in (
        Objects([each for each in yaml.safe_load_all(done.stdout) if each]),
        objects_of(template(helm, (), settings)),
    ):
        spec = found.named("StatefulSet", "keelmq-broker-a")["spec"]
        (claim,) = spec["volumeClaimTemplates"]
        assert claim["spec"]["resources"]["requests"]["storage"] == size
    after = Objects([each for each in yaml.safe_load_all(done.stdout) if each])
    same = after.named("StatefulSet", "keelmq-broker-a")["spec"]["template"]
    assert same == before["spec"]["template"], "the pods would restart"
    for line in (for_kustomize + for_helm).splitlines():
        if "delete statefulset" in line:
            assert line.endswith("keelmq-broker-a --cascade=orphan")


def test_the_load_balancer_of_roles(rendered: dict[str, Objects]) -> None:
    """It asks paths that brokers have, at their HTTP port, and lists every pod of the group."""
    (block,) = re.findall(r"^```\n(.*?)^```", section("Role endpoints"), flags=re.DOTALL | re.MULTILINE)
    stateful = rendered["ha"].named("StatefulSet", "keelmq-broker-a")
    space, service = stateful["metadata"]["namespace"], stateful["spec"]["serviceName"]
    hosts = [
        f"{pod}.{service}.{space}.svc.cluster.local:{port_number(stateful, 'broker')}"
        for pod in pod_names(stateful)
    ]
    _, *balancers = block.split("\nlisten ")
    assert [each.splitlines()[0] for each in balancers] == ["broker-a-rw", "broker-a-ro"]
    for role, text in zip(sorted(ROLE_NAMES), balancers, strict=True):
        assert f"option httpchk HEAD /{role}\n" in text
        assert f" check port {port_number(stateful, 'http')} " in text
        assert re.findall(r"server \d (\S+)", text) == hosts


def test_more_controllers(tmp_path: Path) -> None:
    """The two edits, as they are described: four pods, and a drain still leaves a majority."""
    text = section("More controllers")
    (peer,) = re.findall(r"`;(n3-[^`]*)` to `controllerDLegerPeers` in `overlays/ha/namesrv.conf`", text)
    assert "set `replicas: 4` in\n`overlays/ha/namesrv-patch.yaml`" in text
    tree = copy_tree(tmp_path, key="only-for-tests-" * 4)
    for name, old, new in (
        ("namesrv.conf", "(?m)^(controllerDLegerPeers=.*)$", rf"\1;{peer}"),
        ("namesrv-patch.yaml", "replicas: 3", "replicas: 4"),
    ):
        path = tree / "overlays" / "ha" / name
        changed, count = re.subn(old, new, path.read_text())
        assert count == 1
        path.write_text(changed)
    done = render(tree, "ha")
    assert done.returncode == 0, done.stderr
    found = Objects([each for each in yaml.safe_load_all(done.stdout) if each])
    stateful = found.named("StatefulSet", "keelmq-namesrv")
    assert stateful["spec"]["replicas"] == 4
    (config,) = found.config_files(stateful).values()
    assert peer in config
    assert found.named("PodDisruptionBudget", "keelmq-namesrv")["spec"]["maxUnavailable"] == 1
