"""The Helm chart as helm renders it, and what it has in common with the overlays of kustomize.

kustomize adds a hash to the names of ConfigMaps and Secrets; helm restarts pods by an annotation instead, and
adds the labels of its releases. `comparable` removes these differences, and no others.
"""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from keelmq.runtime.config import parse_settings
from tests.deploy.conftest import ROOT
from tests.deploy.objects import Object, Objects

CHART = ROOT / "deploy" / "helm" / "keelmq"
NAMESPACE = "keelmq"
LABELS = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "app.kubernetes.io/part-of",
    "helm.sh/chart",
}
"""In no selector of kustomize. The overlays have part-of at some objects, and none of the others."""
IMMUTABLE = {
    "StatefulSet": ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates"),
    "Deployment": ("selector",),
    "Service": ("clusterIP",),
    "PersistentVolumeClaim": ("accessModes", "storageClassName"),
}
"""Fields of `spec` that Kubernetes refuses to change."""


def template(
    helm: Path,
    examples: Sequence[str] = (),
    *settings: str,
    release: str = "keelmq",
    values: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Renders the chart with these files of its folder examples, then `values`, then `--set` settings."""
    arguments = [f"--values={CHART / 'examples' / each}.yaml" for each in examples]
    arguments += [f"--values={values}"] if values else []
    arguments += [f"--set={each}" for each in settings]
    return subprocess.run(
        [helm, "template", release, CHART, "--namespace", NAMESPACE, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def objects_of(done: subprocess.CompletedProcess[str]) -> Objects:
    assert done.returncode == 0, done.stderr
    return Objects([each for each in yaml.safe_load_all(done.stdout) if each])


def comparable(objects: Objects) -> dict[tuple[str, str], Object]:
    """By kind and name. Without the namespace and Secrets, which are not the chart's: users create both."""
    made = ("ConfigMap", "Secret")
    short = {
        each["metadata"]["name"]: re.sub(r"-[0-9a-z]{10}$", "", each["metadata"]["name"])
        for each in objects.all
        if each["kind"] in made
    }
    found = {}
    for each in objects.all:
        if each["kind"] not in ("Namespace", "Secret"):
            same = _plain(each, short)
            found[same["kind"], same["metadata"]["name"]] = same
    return found


def _plain(value: Any, short: dict[str, str]) -> Any:
    """`value` with short names of ConfigMaps and Secrets, without what only one tool adds, and without the
    order of lists that have none."""
    if isinstance(value, dict):
        added = LABELS | {"checksum/config"}
        kept = {key: _plain(each, short) for key, each in value.items() if key not in added}
        if kept.get("labels") == {}:
            del kept["labels"]
        if kept.get("kind") == "ConfigMap":
            kept["data"] = {name: parse_settings(text, name) for name, text in kept["data"].items()}
        return kept
    if isinstance(value, list):
        plain = [_plain(each, short) for each in value]
        has_order = any(not isinstance(each, dict) or "image" in each for each in plain)
        return plain if has_order else sorted(plain, key=repr)
    return short.get(value, value) if isinstance(value, str) else value


def immutable(objects: Objects) -> dict[str, Object]:
    """Kind and name -> the fields that an upgrade must not change."""
    return {
        f"{each['kind']}/{each['metadata']['name']}": {
            field: each["spec"][field] for field in IMMUTABLE[each["kind"]] if field in each["spec"]
        }
        for each in objects.all
        if each["kind"] in IMMUTABLE
    }
