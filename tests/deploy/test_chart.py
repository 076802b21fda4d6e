"""The Helm chart: it makes the objects of the overlays, an upgrade is accepted, and wrong values are refused
with the reason."""

import base64
import itertools
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest
import yaml

from tests.deploy.chart import CHART, IMMUTABLE, LABELS, comparable, immutable, objects_of, template
from tests.deploy.conftest import ROOT
from tests.deploy.objects import Object, Objects, container, pod_spec
from tests.deploy.test_documented import section
from tests.deploy.test_schema import NEWEST, OLDEST

EXAMPLES_OF = {
    "base": ("dev",),
    "ha": (),
    "analytics": ("analytics",),
    "proxy": ("proxy",),
    "dual-stack": ("dual-stack",),
    "external-nodeport": ("external-nodeport",),
    "external-loadbalancer": ("external-loadbalancer",),
    "container": ("container",),
    "secure": ("secure",),
    "container-secure": ("container", "secure"),
}
"""Overlay -> the chart's examples that make the same cluster."""
RELEASED = Path(__file__).parent / "chart_releases"
"""Of each version of the chart, what its objects have that no upgrade may change."""


@pytest.mark.parametrize("overlay", EXAMPLES_OF)
def test_the_chart_is_the_overlay(overlay: str, helm: Path, rendered: dict[str, Objects]) -> None:
    of_kustomize = comparable(rendered[overlay])
    of_helm = comparable(objects_of(template(helm, EXAMPLES_OF[overlay])))
    assert of_helm.keys() == of_kustomize.keys()
    for key, each in of_kustomize.items():
        assert of_helm[key] == each, key


def test_every_overlay_and_every_example_is_compared(rendered: dict[str, Objects]) -> None:
    assert EXAMPLES_OF.keys() == rendered.keys()
    compared = {name for names in EXAMPLES_OF.values() for name in names}
    assert {path.stem for path in (CHART / "examples").iterdir()} == compared | {"monitoring"}


def test_the_alerts_are_those_of_the_component(helm: Path) -> None:
    component = yaml.safe_load((ROOT / "deploy/k8s/components/monitoring/prometheus-rule.yaml").read_text())
    key = ("PrometheusRule", "keelmq")
    assert objects_of(template(helm, ["monitoring"])).named(*key)["spec"] == component["spec"]
    moved = objects_of(template(helm, ["monitoring"], "monitoring.runbooks=git.example/team/main"))
    text = repr(moved.named(*key))
    assert (
        text.count("https://git.example/team/main/docs/runbooks/Keelmq")
        == repr(component).count("runbook_url")
        >= 36
    )


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("overlay", EXAMPLES_OF)
def test_objects_are_valid(overlay: str, version: str, helm: Path) -> None:
    """Also what the overlays do not have: labels of a release, and the Secret."""
    import kubernetes_validate  # takes long, as in test_schema.py

    for each in objects_of(template(helm, EXAMPLES_OF[overlay], "labels.team=a", "annotations.note=b")).all:
        kubernetes_validate.validate(each, version, strict=True)


# -- versions and upgrades -------------------------------------------------------------------------------


def chart() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
    return found


def test_the_version_is_the_servers() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart()["version"], chart()["appVersion"]) == (version, version)
    assert chart()["kubeVersion"] == f">={OLDEST}.0-0"


@pytest.mark.parametrize("path", sorted(RELEASED.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_upgrade_is_accepted(path: Path, helm: Path, request: pytest.FixtureRequest) -> None:
    """From each earlier version. --rewrite writes the present one, before its release and not afterwards."""
    now = {overlay: immutable(objects_of(template(helm, each))) for overlay, each in EXAMPLES_OF.items()}
    if request.config.getoption("--rewrite") and path.stem == chart()["version"]:
        path.write_text(yaml.safe_dump(now))
    for overlay, before in yaml.safe_load(path.read_text()).items():
        assert any(key.startswith("StatefulSet/") for key in before)
        for key, fields in before.items():
            assert now[overlay].get(key, fields) == fields, (
                f"{overlay}: {key} cannot be upgraded from {path.stem}"
            )


def test_this_version_is_among_those() -> None:
    assert (RELEASED / f"{chart()['version']}.yaml").exists(), "touch it, and run this file with --rewrite"


def test_an_upgrade_changes_no_selector(helm: Path) -> None:
    """Labels that change with a version, or with a user's values, are in no selector."""
    settings = ("labels.team=a", "image.tag=9.9.9", "namesrv.config.logLevel=DEBUG")
    before, after = (objects_of(template(helm, ["analytics"], *each)) for each in ((), settings))
    assert immutable(before) == immutable(after)
    assert not any(
        "9.9.9" in repr(each) or "helm.sh/chart" in repr(each) for each in immutable(after).values()
    )


def test_a_changed_file_restarts_its_pods_and_no_others(helm: Path) -> None:
    before, after = (
        objects_of(template(helm, (), *each)) for each in ((), ("broker.config.fileReservedTime=72",))
    )
    for name, changes in (("keelmq-broker-a", True), ("keelmq-namesrv", False)):
        templates = [each.named("StatefulSet", name)["spec"]["template"] for each in (before, after)]
        assert (templates[0] != templates[1]) == changes
    text = after.config_files(after.named("StatefulSet", "keelmq-broker-a"))["/etc/keelmq/conf/broker.conf"]
    assert "\nfileReservedTime=72\n" in text


# -- names -----------------------------------------------------------------------------------------------


def test_two_releases_in_a_namespace_have_nothing_in_common(helm: Path) -> None:
    examples = ["analytics", "proxy", "monitoring"]
    first, second = (objects_of(template(helm, examples, release=name)) for name in ("one", "two-keelmq"))
    for found, name in ((first, "one-keelmq"), (second, "two-keelmq")):
        assert all(each["metadata"]["name"].startswith(name) for each in found.all)
    for found, other in ((first, "two-keelmq"), (second, "one-keelmq")):
        assert other not in yaml.safe_dump(found.all)
    selectors = [
        each["spec"]["selector"].get("matchLabels", each["spec"]["selector"])
        for each in first.all
        if each["kind"] in ("Service", "StatefulSet", "Deployment", "PodDisruptionBudget")
    ]
    assert len(selectors) > 8
    assert all(each["app.kubernetes.io/instance"] == "one" for each in selectors)


def test_every_object_and_pod_has_the_labels(helm: Path) -> None:
    found = objects_of(template(helm, ["analytics", "proxy"], "labels.team=a", "annotations.note=b"))
    for each in found.all:
        assert LABELS | {"app.kubernetes.io/part-of", "team"} <= each["metadata"]["labels"].keys()
        assert each["metadata"]["annotations"]["note"] == "b"
    for each in found.stateful_sets + found.kind("Deployment"):
        pod = each["spec"]["template"]["metadata"]
        assert pod["labels"]["team"] == "a" and pod["annotations"]["note"] == "b"
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & pod["labels"].keys(), "would restart pods"


# -- values ----------------------------------------------------------------------------------------------


def test_any_field_can_be_changed(helm: Path, tmp_path: Path) -> None:
    patch = {
        "metadata": {"annotations": {"note": "a"}},
        "spec": {
            "minReadySeconds": 5,
            "template": {
                "spec": {
                    "priorityClassName": "high",
                    "affinity": {"$patch": "delete"},
                    "containers": [
                        {
                            "name": "mqbroker",
                            "env": [{"name": "TZ", "value": "UTC"}],
                            "volumeMounts": [{"name": "tmp", "$patch": "delete"}],
                        },
                        {"name": "beside", "image": "busybox:1"},
                    ],
                }
            },
        },
    }
    (values := tmp_path / "values.yaml").write_text(
        yaml.safe_dump({"overrides": {"StatefulSet/keelmq-broker-a": patch}})
    )
    before = objects_of(template(helm)).named("StatefulSet", "keelmq-broker-a")
    after = objects_of(template(helm, values=values)).named("StatefulSet", "keelmq-broker-a")
    assert after["metadata"]["annotations"]["note"] == "a" and after["spec"]["minReadySeconds"] == 5
    assert pod_spec(after)["priorityClassName"] == "high" and "affinity" not in pod_spec(after)
    program, beside = pod_spec(after)["containers"]
    assert beside == {"name": "beside", "image": "busybox:1"}
    assert [each["name"] for each in program["env"]] == ["POD_IP", "TZ"]
    assert [each["name"] for each in program["volumeMounts"]] == ["conf", "data"]
    for each in ("image", "args", "resources", "livenessProbe"):
        assert program[each] == container(before)[each]
    assert pod_spec(after)["volumes"] == pod_spec(before)["volumes"]


def test_more_groups_objects_and_settings(helm: Path, tmp_path: Path) -> None:
    values = {
        "image": {"repository": "example.com/keelmq", "digest": f"sha256:{'a' * 64}"},
        "imagePullSecrets": ["mine"],
        "raftKeySecret": "key",
        "broker": {
            "groups": [{"name": "broker-a", "config": {"fileReservedTime": 24}}, {"name": "broker-b"}],
            "config": {
                "fileReservedTime": 48,
                "minInSyncReplicas": None,
                "maxMessageSize": 1_073_741_824,
            },
            "storageClassName": "fast",
        },
        "extraObjects": [
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Release.Name }}-x'}\ndata: {}\n",
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "more"}, "data": {"of.conf": ""}},
        ],
    }
    (path := tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    found = objects_of(template(helm, values=path))
    assert found.kind("Secret") == []
    files: dict[str, list[str]] = {}
    for each in found.stateful_sets:
        assert container(each)["image"] == f"example.com/keelmq@sha256:{'a' * 64}"
        assert pod_spec(each)["imagePullSecrets"] == [{"name": "mine"}]
        files |= {each["metadata"]["name"]: "".join(found.config_files(each).values()).split("\n")}
    assert (
        "fileReservedTime=24" in files["keelmq-broker-a"]
        and "fileReservedTime=48" in files["keelmq-broker-b"]
    )
    assert "brokerName=broker-b" in files["keelmq-broker-b"]
    assert "maxMessageSize=1073741824" in files["keelmq-broker-b"]
    assert not any(line.startswith("minInSyncReplicas") for line in files["keelmq-broker-b"])
    (claim,) = found.named("StatefulSet", "keelmq-broker-b")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert found.named("ConfigMap", "keelmq-x") and found.named("ConfigMap", "more")


REFUSED = {
    "brokers.replicas=3": "Additional property brokers is not allowed",
    "broker.replica=3": "broker: Additional property replica is not allowed",
    "broker.storage=much": "broker.storage: Does not match pattern",
    "container.groups[0].name=too-long-for-a-port": "String length must be less than or equal to 12",
    "namesrv.replicas=2": "namesrv.replicas: 2 controllers tolerate no loss; set 1, or 3 or more",
    "broker.enabled=false": "no brokers: set broker.enabled=true or container.enabled=true",
    "container.enabled=true": "container.groups: the group broker-a is in broker.groups already",
    "overrides.StatefulSet/x.spec.replicas=5": "overrides: no object StatefulSet/x; there are: S",
    "proxy.enabled=true,security.enabled=true": "proxy.enabled: the chart's proxies have no users and no TLS",
    "broker.config.a.b=1": "broker.config.a: Invalid type",
    "external.enabled=true,external.type=LoadBalancer": "external.domain: brokers announce POD.DOMAIN",
    "external.enabled=true,broker.replicas=11": "external.type: node ports are for at most 10 groups of at m",
    "external.enabled=true,broker.enabled=false,container.enabled=true": "external.enabled: the chart",
}
"""--set -> what helm says"""


@pytest.mark.parametrize("setting", REFUSED)
def test_wrong_values_are_refused_with_the_reason(setting: str, helm: Path) -> None:
    done = template(helm, (), setting)
    assert done.returncode != 0 and done.stdout == "" and REFUSED[setting] in done.stderr


def test_the_schema_knows_each_value_and_no_other() -> None:
    """The comments of values.yaml are the reference: a value of the schema has a line there."""
    schema = json.loads((CHART / "values.schema.json").read_text())

    def paths(of: Any, values: Any, at: str = "") -> list[str]:
        of = schema["$defs"][of["$ref"].rpartition("/")[2]] if "$ref" in of else of
        if "properties" not in of:
            return []
        assert values.keys() == of["properties"].keys() - {"global"}, at
        assert of["additionalProperties"] is False
        inner = (paths(of["properties"][key], value, f"{at}.{key}") for key, value in values.items())
        return [at, *itertools.chain(*inner)]

    assert len(paths(schema, yaml.safe_load((CHART / "values.yaml").read_text()))) >= 10


def test_the_documented_commands(helm: Path, tmp_path: Path) -> None:
    """Those of docs/kubernetes.md, with its file: each renders the chart, and the values have an effect."""
    values, *lines = re.findall(
        r"^```(?:yaml|sh)\n(.*?)^```", section("Helm"), flags=re.DOTALL | re.MULTILINE
    )
    name = values.splitlines()[0].removeprefix("# ")
    (tmp_path / name).write_text(values)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    commands = [line.split() for line in "".join(lines).splitlines() if line.startswith("helm ")]
    assert [command[1] for command in commands] == ["install", "upgrade", "template"]
    for _, _, *arguments in commands:
        found = Objects(list(yaml.safe_load_all(run(helm, "template", *arguments, directory=tmp_path))))
        assert {each["metadata"]["namespace"] for each in found.all} == {"keelmq"}
        stateful = found.named("StatefulSet", "keelmq-broker-a")
        assert pod_spec(stateful)["priorityClassName"] == "high"
        assert container(stateful)["image"] == f"HOST/keelmq:{chart()['version']}"
        assert "priorityClassName" not in pod_spec(found.named("StatefulSet", "keelmq-broker-b"))


# -- helm's own commands ---------------------------------------------------------------------------------


def run(helm: Path, *arguments: str | Path, directory: Path) -> str:
    done = subprocess.run(
        [helm, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(directory)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lint_and_package(helm: Path, tmp_path: Path) -> None:
    for values in ([], *([f"--values={path}"] for path in sorted((CHART / "examples").iterdir()))):
        assert "0 chart(s) failed" in run(helm, "lint", "--strict", CHART, *values, directory=tmp_path)
    run(helm, "package", CHART, directory=tmp_path)
    (package,) = tmp_path.glob(f"keelmq-{chart()['version']}.tgz")
    assert "kind: StatefulSet" in run(helm, "template", "keelmq", package, directory=tmp_path)


class ApiServer(BaseHTTPRequestHandler):
    """As much of a Kubernetes API server as a dry run asks: versions, kinds, objects."""

    kinds: ClassVar[dict[str, set[str]]] = {}
    """apiVersion -> the kinds that helm will ask for"""
    objects: ClassVar[dict[str, Object]] = {}

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        answer = self.objects.get(path) or self._answer(path)
        self.send_response(answer.get("code", 200))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def _answer(self, path: str) -> Object:
        groups = [each.split("/") for each in self.kinds if "/" in each]
        versions = [{"groupVersion": f"{name}/{each}", "version": each} for name, each in groups]
        of_version = path.removeprefix("/apis/").removeprefix("/api/")
        resources = [
            {
                "name": re.sub("ys$", "ies", f"{kind.lower()}s"),
                "kind": kind,
                "namespaced": True,
                "verbs": [""],
            }
            for kind in self.kinds.get(of_version, ())
        ]
        match path.split("/")[1:]:
            case ["version"]:
                return {"major": "1", "minor": "30", "gitVersion": "v1.30.0"}
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"]}
            case ["apis"]:
                listed = [
                    {"name": name, "versions": [version], "preferredVersion": version}
                    for (name, _), version in zip(groups, versions, strict=True)
                ]
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
            case ["api", _] | ["apis", _, _]:
                return {"kind": "APIResourceList", "groupVersion": of_version, "resources": resources}
        return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}

    def log_message(self, *_: object) -> None:
        """Nothing: the tests look at what helm says."""


@pytest.fixture
def api_server(helm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address."""
    kinds: dict[str, set[str]] = {}
    for each in itertools.chain(*(objects_of(template(helm, each)).all for each in EXAMPLES_OF.values())):
        kinds.setdefault(each["apiVersion"], set()).add(each["kind"])
    monkeypatch.setattr(ApiServer, "kinds", kinds)
    monkeypatch.setattr(ApiServer, "objects", {})
    with ThreadingHTTPServer(("127.0.0.1", 0), ApiServer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def dry_run(helm: Path, api_server: str, directory: Path, *arguments: str) -> str:
    """What `helm install` would do in the namespace n, and its notes."""
    of_server = [f"--kube-apiserver={api_server}", "--kube-token=t", "-n", "n", "--dry-run=server"]
    validates = "--disable-openapi-validation"  # the server has no schemas
    return run(helm, "install", "one", CHART, *of_server, validates, *arguments, directory=directory)


@pytest.mark.parametrize("overlay", EXAMPLES_OF)
def test_the_notes_name_what_there_is(overlay: str, helm: Path, api_server: str, tmp_path: Path) -> None:
    """Each object of the notes' commands is rendered, in the release's namespace."""
    examples = [f"--values={CHART / 'examples' / each}.yaml" for each in EXAMPLES_OF[overlay]]
    notes = dry_run(helm, api_server, tmp_path, *examples).partition("NOTES:")[2]
    found = objects_of(template(helm, EXAMPLES_OF[overlay], release="one"))
    targets = re.findall(r"(statefulset/|deploy/|deployment |exec |port-forward )(one-\S+)", notes)
    assert len(targets) >= 4
    names = {each["metadata"]["name"] for each in found.stateful_sets + found.kind("Deployment")}
    assert {re.sub(r"-\d$", "", name) for _, name in targets} <= names
    waited = {name for kind, name in targets if kind == "statefulset/"}
    assert waited == {each["metadata"]["name"] for each in found.stateful_sets}
    assert all(" -n n " in line for line in notes.splitlines() if line.startswith("  kubectl "))


def test_the_raft_key_is_made_once(helm: Path, api_server: str, tmp_path: Path) -> None:
    """An upgrade, and an install after an uninstall, find the Secret: controllers with different keys refuse
    each other."""

    def key() -> Object:
        text = dry_run(helm, api_server, tmp_path).partition("MANIFEST:")[2].partition("NOTES:")[0]
        (found,) = Objects([each for each in yaml.safe_load_all(text) if each]).kind("Secret")
        return found

    first, other = key(), key()
    assert first["data"] != other["data"] and len(base64.b64decode(first["data"]["raft.key"])) >= 43
    assert first["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    ours = {"meta.helm.sh/release-name": "one", "meta.helm.sh/release-namespace": "n"}
    first["metadata"]["annotations"] |= ours
    ApiServer.objects["/api/v1/namespaces/n/secrets/one-keelmq-raft-key"] = first
    assert key()["data"] == first["data"]


def test_each_immutable_field_is_there(helm: Path) -> None:
    """A field with another name in IMMUTABLE would be compared with nothing."""
    found = objects_of(template(helm, ["analytics"], "analytics.storageClassName=a"))
    there = immutable(found)
    for kind, fields in IMMUTABLE.items():
        assert any({*fields} == {*each} for key, each in there.items() if key.startswith(f"{kind}/"))
