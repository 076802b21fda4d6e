"""The overlay analytics: every node's telemetry reaches the job and the stream, and their pages the name
servers, with commands and options that exist."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from click import Command
from typer.main import get_command

from cli.keelmq import app
from keelmq.runtime.program import overrides_of
from tests.deploy.conftest import ROOT
from tests.deploy.objects import Object, Objects, container, pod_spec
from tests.deploy.test_policy import PARSERS, brokers_in, configs

DATA = "/data"
VOLUME = {"name": "analytics", "persistentVolumeClaim": {"claimName": "keelmq-analytics"}}


@pytest.fixture
def objects(rendered: dict[str, Objects]) -> Objects:
    return rendered["analytics"]


def command_of(words: list[str]) -> tuple[Command, list[str]]:
    """Of `keelmq`, and its options."""
    command = get_command(app)
    while words and not words[0].startswith("-"):
        command = command.commands[words[0]]  # type: ignore[attr-defined]
        words = words[1:]
    return command, words


def options_of(found: Object) -> dict[str, str]:
    assert found["command"] == ["keelmq"] and found["image"] == "keelmq-analytics:0.1.0"
    command, words = command_of(found["args"])
    known = {name for parameter in command.params for name in parameter.opts}
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options.keys() <= known
    return options


def pod_of(objects: Objects, kind: str, name: str) -> Any:
    spec = objects.named(kind, name)["spec"]
    return (spec["jobTemplate"]["spec"] if kind == "CronJob" else spec)["template"]["spec"]


def beside(stateful_set: Object) -> Object:
    _, found = pod_spec(stateful_set)["containers"]
    assert VOLUME in pod_spec(stateful_set)["volumes"]
    result: Object = found
    return result


@pytest.mark.slow
def test_each_node_copies_what_it_writes(objects: Objects, tmp_path: Path) -> None:
    for each in objects.stateful_sets:
        options, found = options_of(beside(each)), configs(objects, each, tmp_path)
        of_brokers = [config.telemetry_path for config in brokers_in(found)]
        assert [Path(options["--input"])] == (of_brokers or [found[1].telemetry_directory])
        assert options["--output"] == f"{DATA}/telemetry/$(POD_NAME)/telemetry"
        mounts = {mount["mountPath"]: mount for mount in beside(each)["volumeMounts"]}
        assert mounts["/var/lib/keelmq"]["readOnly"] and not mounts[DATA].get("readOnly")


def test_the_job_and_the_stream_read_it_and_the_name_servers_show_it(objects: Objects) -> None:
    outputs = set()
    for kind, name in (("CronJob", "keelmq-analytics"), ("Deployment", "keelmq-analytics-stream")):
        pod = pod_of(objects, kind, name)
        (only,) = pod["containers"]
        options = options_of(only)
        assert options["--input"] == f"{DATA}/telemetry"
        outputs.add(options["--output"])
        assert VOLUME in pod["volumes"]
        assert pod["securityContext"]["runAsNonRoot"] and only["securityContext"]["readOnlyRootFilesystem"]
    servers = container(objects.named("StatefulSet", "keelmq-namesrv"))
    parsed = PARSERS["mqnamesrv"]().parse_args(servers["args"])
    assert outputs == {overrides_of(parsed.overrides)["analyticsOutputDir"]}
    (mount,) = [each for each in servers["volumeMounts"] if each["name"] == "analytics"]
    assert mount["mountPath"] == DATA and mount["readOnly"]
    assert objects.named("Deployment", "keelmq-analytics-stream")["spec"]["strategy"]["type"] == "Recreate"
    assert objects.named("CronJob", "keelmq-analytics")["spec"]["concurrencyPolicy"] == "Forbid"
    assert objects.named("PersistentVolumeClaim", "keelmq-analytics")["spec"]["accessModes"] == [
        "ReadWriteMany"
    ]


def test_the_jars_fit_the_wheel() -> None:
    pyspark = pytest.importorskip("pyspark")
    jars = {path.name for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    if not jars:
        pytest.skip("only Spark's client is installed")
    tree = ElementTree.parse(ROOT / "deploy" / "docker" / "spark-jars.xml")
    (properties,) = tree.iter("{http://maven.apache.org/POM/4.0.0}properties")
    versions = {each.tag.partition("}")[2]: each.text for each in properties}
    assert f"hadoop-client-api-{versions['hadoop.version']}.jar" in jars
    assert versions["spark.version"] == pyspark.__version__
    assert f"spark-core_2.13-{versions['spark.version']}.jar" in jars


def test_the_jars_fit_the_lock_file() -> None:
    """Also where Spark is not installed."""
    text = (ROOT / "deploy" / "docker" / "spark-jars.xml").read_text()
    (version,) = re.findall(r"<spark.version>(.+)</spark.version>", text)
    assert f"\npyspark=={version} " in (ROOT / "requirements" / "spark.txt").read_text()


@pytest.mark.parametrize(
    ("image", "copies"),
    [
        ("analytics", ["requirements/analytics.txt", "."]),
        ("spark", ["deploy/docker/spark-jars.xml", "requirements/spark.txt", "."]),
    ],
)
def test_the_image_copies_what_its_context_has(image: str, copies: list[str]) -> None:
    docker = ROOT / "deploy" / "docker"
    ignored = (docker / f"Dockerfile.{image}.dockerignore").read_text().splitlines()
    common = {line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] != "#"}
    assert common - set(ignored) == {"!requirements/run.txt"}
    text = (docker / f"Dockerfile.{image}").read_text()
    copied = re.findall(r"^COPY (?!--from)(\S+)", text, flags=re.MULTILINE)
    assert copied == copies
    for path in copied[:-1]:
        assert (ROOT / path).is_file() and f"!{path}" in ignored
