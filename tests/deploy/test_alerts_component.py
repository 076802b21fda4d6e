"""The alerts for the Prometheus operator, rendered with a place of the runbooks."""

import shutil
import subprocess
from pathlib import Path

import yaml

from tests.deploy.conftest import ROOT, kubectl

COMPONENT = "components/monitoring"


def urls(tree: Path) -> list[str]:
    """Renders the component alone. Returns each alert's runbook_url."""
    (tree / "alone").mkdir(exist_ok=True)
    (tree / "alone" / "kustomization.yaml").write_text(f"components: [../{COMPONENT}]\n")
    done = subprocess.run(
        [kubectl(), "kustomize", str(tree / "alone")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    monitor, rules = yaml.safe_load_all(done.stdout)  # the place is no object of the cluster
    assert (monitor["kind"], rules["kind"]) == ("PodMonitor", "PrometheusRule")
    return [rule["annotations"]["runbook_url"] for each in rules["spec"]["groups"] for rule in each["rules"]]


def test_the_place_of_the_runbooks_is_in_every_url(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "deploy/k8s" / COMPONENT, tmp_path / COMPONENT)
    before = urls(tmp_path)
    assert len(before) >= 36 and all(each.startswith("https://keelmq.example/docs/") for each in before)
    place = tmp_path / COMPONENT / "runbooks.yaml"
    place.write_text(
        place.read_text().replace("place: keelmq.example", "place: git.example.com/a/b/blob/main")
    )
    wanted = "https://git.example.com/a/b/blob/main/docs/"
    assert urls(tmp_path) == [each.replace("https://keelmq.example/docs/", wanted) for each in before]
