"""Two clusters in one namespace, by kustomize's namePrefix: no object, selector or address in common."""

import itertools
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.conftest import ROOT, copy_tree, kubectl, render_directory
from tests.deploy.objects import Object, Objects, pod_names
from tests.deploy.test_documented import section
from tests.deploy.test_policy import brokers_in, configs
from tests.deploy.test_schema import NEWEST, OLDEST


@pytest.fixture(scope="module")
def clusters(rendered: dict[str, Objects], tmp_path_factory: pytest.TempPathFactory) -> list[Objects]:
    """The overlay ha, the example as it is, and a copy of it made as the page says."""
    tree = copy_tree(tmp_path_factory.mktemp("two"), key="only-for-tests-" * 4)
    again = tree / "overlays" / "green"
    again.mkdir()
    text = (tree / "overlays" / "prefixed" / "kustomization.yaml").read_text()
    assert len(re.findall(r"(?m)^(?!#).*blue", text)) == 2, "the page says: both"
    (again / "kustomization.yaml").write_text(text.replace("blue", "green"))
    made = [render_directory(tree / "overlays" / name) for name in ("prefixed", "green")]
    return [rendered["ha"], *made]


def selectors(objects: Objects) -> list[Object]:
    """Of Services, StatefulSets and budgets, and of the rules that keep pods apart."""
    found: list[Object] = []

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(each for key, each in value.items() if key == "matchLabels")
            for each in value.values():
                collect(each)
        elif isinstance(value, list):
            for each in value:
                collect(each)

    for each in objects.all:
        collect(each.get("spec"))
    return found + [each["spec"]["selector"] for each in objects.kind("Service")]


def test_no_object_is_in_two_clusters(clusters: list[Objects]) -> None:
    names = [{(each["kind"], each["metadata"]["name"]) for each in found.all} for found in clusters]
    for one, other in itertools.combinations(names, 2):
        assert not one & other
    assert names[0] - {("Namespace", "keelmq")} and ("Namespace", "keelmq") not in names[1] | names[2]
    assert len(names[1]) == len(names[0]) - 1


def test_no_selector_matches_a_pod_of_another_cluster(clusters: list[Objects]) -> None:
    for one, other in itertools.permutations(clusters, 2):
        pods = [each["spec"]["template"]["metadata"]["labels"] for each in other.stateful_sets]
        assert len(selectors(one)) == 2 * 5
        for selector in selectors(one):
            assert not any(selector.items() <= labels.items() for labels in pods)
            own = [each["spec"]["template"]["metadata"]["labels"] for each in one.stateful_sets]
            assert any(selector.items() <= labels.items() for labels in own)


def test_every_address_is_of_the_own_cluster(clusters: list[Objects], tmp_path: Path) -> None:
    """By the programs' own rules: arguments come before files."""
    groups, cluster_names = [], []
    for found in clusters:
        names, brokers = sorted(found.stateful_sets, key=lambda each: "broker" in each["metadata"]["name"])
        service = names["spec"]["serviceName"]
        found.named("Service", service)
        hosts = [f"{pod}.{service}" for pod in pod_names(names)]
        for index, _ in enumerate(hosts):
            config, controller = configs(found, names, tmp_path, index)
            assert [host for host, _ in controller.request_addresses.values()] == hosts
            assert controller.controller_d_leger_self_id == f"n{index}"
        groups.append(controller.controller_d_leger_group)
        (broker,) = brokers_in(configs(found, brokers, tmp_path))
        assert list(broker.name_servers) == [f"{host}:{config.listen_port}" for host in hosts]
        assert [address.rpartition(":")[0] for address in broker.controllers] == hosts
        cluster_names.append(broker.broker_cluster_name)
    assert len(set(groups)) == len(set(cluster_names)) == len(clusters), "one Prometheus tells them apart"


def test_objects_are_valid(clusters: list[Objects]) -> None:
    import kubernetes_validate  # takes long, as in test_schema.py

    for each, version in itertools.product(clusters[1].all, (OLDEST, NEWEST)):
        kubernetes_validate.validate(each, version, strict=True)


def test_the_oldest_kubectl_renders_the_same(
    clusters: list[Objects], oldest_kubectl: Path, tmp_path: Path
) -> None:
    tree = copy_tree(tmp_path, key="only-for-tests-" * 4)
    assert render_directory(tree / "overlays" / "prefixed", oldest_kubectl).all == clusters[1].all


def test_the_documented_commands(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    tree = copy_tree(tmp_path / "deploy", key="only-for-tests-" * 4)
    (block,) = re.findall(
        r"^```sh\n(.*?)^```", section("Two clusters in a namespace"), re.DOTALL | re.MULTILINE
    )
    lines = block.splitlines()
    assert all((ROOT / part).exists() for part in re.findall(r"deploy/\S+", block) if "green" not in part)
    script = "\n".join(line.replace("kubectl apply -k", f"{kubectl()} kustomize") for line in lines)
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "green-keelmq-namesrv" in done.stdout and (tree / "overlays" / "green").is_dir()
