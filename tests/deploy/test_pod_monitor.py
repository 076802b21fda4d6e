"""The PodMonitor: Prometheus finds every program's metrics, under the job that the alerts expect."""

import re
from pathlib import Path

import pytest
import yaml

from tests.deploy.chart import objects_of, template
from tests.deploy.conftest import OVERLAYS, ROOT, copy_tree, render
from tests.deploy.objects import Object, Objects, pod_spec, port_number

WITHOUT_METRICS = {"analytics", "analytics-stream", "tools"}
"""Components whose pods serve nothing."""


def with_monitoring(tree: Path, overlay: str) -> Objects:
    """The overlay as docs/metrics.md says: the component is the first one."""
    file = tree / OVERLAYS[overlay] / "kustomization.yaml"
    text = file.read_text()
    depth = "../" * OVERLAYS[overlay].count("/") + "../components/monitoring"
    first = text.replace("components:\n", f"components:\n  - {depth}\n")
    file.write_text(first if "components:\n" in text else f"{text}components: [{depth}]\n")
    done = render(tree, overlay)
    assert done.returncode == 0, done.stderr
    return Objects([each for each in yaml.safe_load_all(done.stdout) if each])


def check(objects: Objects) -> None:
    (monitor,) = objects.kind("PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    scraped = 0
    for each in [*objects.stateful_sets, *objects.kind("Deployment")]:
        pod = each["spec"]["template"]
        labels = pod["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        names = [port["name"] for only in pod_spec(each)["containers"] for port in only.get("ports", [])]
        if labels["app.kubernetes.io/component"] in WITHOUT_METRICS:
            assert endpoint["port"] not in names
            continue
        notes = pod["metadata"]["annotations"]  # tests/deploy/test_policy.py compares them with the programs
        assert str(port_number(each, endpoint["port"])) == notes["prometheus.io/port"]
        assert endpoint["path"] == notes["prometheus.io/path"]
        assert endpoint.get("scheme", "http") == notes.get("prometheus.io/scheme", "http")
        scraped += 1
    assert scraped >= len(objects.stateful_sets) == 2
    if endpoint.get("scheme") == "https":
        assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}
    _check_job(endpoint)


def _check_job(endpoint: Object) -> None:
    rules = (ROOT / "deploy" / "prometheus" / "rules.yaml").read_text()
    (job,) = set(re.findall(r'job="([^"]+)"', rules))
    assert {"targetLabel": "job", "replacement": job} in endpoint["relabelings"]


@pytest.mark.parametrize("overlay", sorted(OVERLAYS))
def test_of_the_component(overlay: str, tmp_path: Path) -> None:
    check(with_monitoring(copy_tree(tmp_path, key="only-for-tests-" * 4), overlay))


@pytest.mark.parametrize("examples", [(), ("container", "secure"), ("proxy", "analytics"), ("secure",)])
def test_of_the_chart(examples: tuple[str, ...], helm: Path) -> None:
    check(objects_of(template(helm, [*examples, "monitoring"], release="two")))
    without = objects_of(template(helm, [*examples, "monitoring"], "monitoring.podMonitor=false"))
    assert without.kind("PodMonitor") == [] and without.kind("PrometheusRule")


def test_the_chart_has_that_of_the_component(helm: Path) -> None:
    text = (ROOT / "deploy/k8s/components/monitoring/pod-monitor.yaml").read_text()
    of_chart = objects_of(template(helm, ["monitoring"])).named("PodMonitor", "keelmq")["spec"]
    assert of_chart["selector"]["matchLabels"].pop("app.kubernetes.io/instance") == "keelmq"
    assert of_chart == yaml.safe_load(text)["spec"]
