"""The Dockerfile and compose.yaml against what they package, and the wheel that goes into the image."""

import fnmatch
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.init_security import SecurityOptions, create
from hatch_build import PACKAGES as COMPILED
from hatch_build import CannotCompile, compile_leaves
from keelmq.runtime.config import load_config
from keelmq.runtime.program import overrides_of
from keelmq.security.open_network import openings
from namesrv.plugins.controller.config import ControllerConfig
from tests.deploy.conftest import ROOT
from tests.deploy.objects import Objects, container, pod_spec
from tests.deploy.test_policy import MODELS, PARSERS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
DOCKERFILE = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
COMPOSE_DIRECTORY = ROOT / "deploy" / "docker"


def instructions(name: str, dockerfile: str = DOCKERFILE) -> list[str]:
    """Arguments of every such line; continued lines are one."""
    lines = dockerfile.replace("\\\n", " ").splitlines()
    return [line.removeprefix(f"{name} ").strip() for line in lines if line.startswith(f"{name} ")]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the image's build stage makes it."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def build_wheel(directory: Path) -> Path:
    epoch = re.search(r"SOURCE_DATE_EPOCH=(\d+)", DOCKERFILE)
    assert epoch
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        env={"SOURCE_DATE_EPOCH": epoch[1], "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
    )
    (found,) = directory.glob("*.whl")
    return found


def test_the_wheel_has_everything(wheel: Path) -> None:
    """All modules, the files that they read at run time, and the programs; no tests."""
    packed = set(zipfile.ZipFile(wheel).namelist())
    there = {
        str(path.relative_to(ROOT))
        for package in PACKAGES["packages"]
        for path in (ROOT / package).rglob("*")
        if path.is_file() and not {"__pycache__", "frontend"} & set(path.parts)
    }
    assert there <= packed
    assert not any(name.startswith(("tests/", "deploy/", "keelmq/web/frontend/")) for name in packed)
    (entry_points,) = [name for name in packed if name.endswith("/entry_points.txt")]
    text = zipfile.ZipFile(wheel).read(entry_points).decode()
    assert all(f"{name} = {target}" in text for name, target in PROJECT["scripts"].items())
    assert "controller = namesrv.plugins.controller.plugin:ControllerPlugin" in text


def test_the_wheel_has_compiled_modules_where_they_can_be_made(wheel: Path) -> None:
    """It is one for this Python and machine then; and, by the next test, the same bytes each time."""
    twins = [name for name in zipfile.ZipFile(wheel).namelist() if "/compiled/" in name]
    try:
        expected = [str(path.relative_to(ROOT)) for path in compile_leaves()]
    except CannotCompile:
        expected = []
    assert sorted(twins) == sorted(expected)
    assert wheel.name.endswith("-py3-none-any.whl") == (not expected)


def test_the_wheel_is_the_same_each_time(wheel: Path, tmp_path: Path) -> None:
    assert build_wheel(tmp_path).read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.analytics", "Dockerfile.spark"])
def test_the_build_gets_what_it_needs_and_no_more(name: str) -> None:
    """The ignore file begins with everything and lets in by name."""
    own = COMPOSE_DIRECTORY / f"{name}.dockerignore"
    text = (own if own.exists() else ROOT / ".dockerignore").read_text()
    lines = [line for line in text.splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line[0] == "!"}
    hook = PACKAGES["hooks"]["custom"]["path"]
    needed = {"pyproject.toml", hook, PROJECT["readme"], *PROJECT["license-files"], *PACKAGES["packages"]}
    dockerfile = (COMPOSE_DIRECTORY / name).read_text()
    for source in (each.split()[0] for each in instructions("COPY", dockerfile)):
        if source != "." and not source.startswith("--from="):
            needed.add(source)
    assert let_in == needed
    assert not any(fnmatch.fnmatch("deploy/k8s/base/raft.key", pattern) for pattern in let_in)


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.analytics", "Dockerfile.spark"])
def test_no_image_is_built_without_the_pages(name: str, tmp_path: Path) -> None:
    """The check of the Dockerfile fails until the checkout has both pages, and names the command to run."""
    dockerfile = (COMPOSE_DIRECTORY / name).read_text()
    (check,) = [each for each in instructions("RUN", dockerfile) if "web/static" in each]
    wheel = dockerfile.index("--no-build-isolation")
    assert dockerfile.index("COPY . .") < dockerfile.index(f"RUN {check[:20]}") < wheel
    for page in ("console/index.html", "analytics/analytics.js"):
        done = subprocess.run(["sh", "-c", check], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and re.fullmatch(r"[^\n]+ run \"./run [^\n]+\n", done.stderr), done.stderr
        (built := tmp_path / "keelmq" / "web" / "static" / page).parent.mkdir(parents=True)
        built.touch()
    subprocess.run(["sh", "-c", check], cwd=tmp_path, check=True)


DOCKERFILES = ("Dockerfile", "Dockerfile.analytics", "Dockerfile.spark")
OF_ONE_PLATFORM = re.compile(
    r"--platform|TARGETARCH|amd64|x86[-_]64|arm64|aarch64|-march|-mavx|-msse", re.IGNORECASE
)


def test_nothing_is_for_one_platform_only() -> None:
    """With `docker buildx build --platform` each platform has its own wheels, and compiles its own modules
    for any processor of its kind."""
    files = [COMPOSE_DIRECTORY / name for name in DOCKERFILES] + [ROOT / "hatch_build.py"]
    for path in files:
        assert OF_ONE_PLATFORM.findall(path.read_text()) == [], path.name
    for dockerfile in ((COMPOSE_DIRECTORY / name).read_text() for name in DOCKERFILES):
        locks = set(re.findall(r"-r (requirements/\w+\.txt)", dockerfile))
        assert len(locks) == 1
        for lock in locks:
            assert "platform_machine" not in (ROOT / lock).read_text(), lock
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for package in COMPILED:
        assert f"{package}/**/compiled" in ignored, "modules that the checkout has compiled"


@pytest.mark.slow
def test_ports_user_and_programs(rendered: dict[str, Objects]) -> None:
    stateful_sets = [
        *rendered["ha"].stateful_sets,
        rendered["container"].named("StatefulSet", "keelmq-container"),
    ]
    workloads = [*stateful_sets, rendered["proxy"].named("Deployment", "keelmq-proxy")]
    ports = {port["containerPort"] for each in workloads for port in container(each)["ports"]}
    (exposed,) = instructions("EXPOSE")
    assert {int(port) for port in exposed.split()} == ports
    uid = pod_spec(stateful_sets[0])["securityContext"]["runAsUser"]
    assert instructions("USER") == [f"{uid}:{uid}"]
    programs = [each for found in instructions("CMD") for each in yaml.safe_load(found)]
    for each in workloads:
        programs += container(each)["command"]
    assert set(programs) <= PROJECT["scripts"].keys()
    assert not instructions("ENTRYPOINT")  # `docker run IMAGE mqadmin ...` runs mqadmin, as process 1


def test_the_image_has_nothing_that_gives_rights(rendered: dict[str, Objects]) -> None:
    """Code belongs to root; no file makes its user another one; a number as user, which runAsNonRoot can
    check; no package installer; nothing is fetched but locked packages."""
    assert not any("--chown" in each or "--chmod" in each for each in instructions("COPY"))
    last = DOCKERFILE.rindex("\nFROM ")
    (run,) = [each for each in instructions("RUN") if "useradd" in each]
    assert DOCKERFILE.index("useradd") > last, "of the image, and not of the build stage"
    assert "find / -xdev -type f -perm /6000 -exec chmod a-s {} +" in run
    assert re.search(r"pip uninstall --yes --quiet setuptools wheel pip$", run)
    assert "nologin" in run
    (user,) = instructions("USER")
    assert all(part.isdecimal() and int(part) >= 10_000 for part in user.split(":"))
    assert not instructions("ADD") and not any(word in DOCKERFILE for word in ("curl", "wget", "sudo"))
    assert not any(
        "SECRET" in each or "PASSWORD" in each for each in instructions("ENV") + instructions("ARG")
    )


def test_versions_and_bases(rendered: dict[str, Objects]) -> None:
    assert f"VERSION={PROJECT['version']}" in instructions("ARG")
    (base,) = [each for each in instructions("ARG") if each.startswith("BASE=")]
    assert re.fullmatch(r"BASE=python:3\.\d+-slim-\w+", base)  # a tag that does not move to another Python
    (build_base,) = [each for each in instructions("ARG") if each.startswith("BUILD_BASE=")]
    assert build_base == f"BUILD_{base.replace('-slim', '')}"  # the same Python, with a C compiler
    assert all("latest" not in each for each in instructions("FROM"))
    assert any("--require-hashes" in each for each in instructions("RUN"))


CONFIGS: dict[str, Any] = yaml.safe_load((COMPOSE_DIRECTORY / "compose.yaml").read_text())["configs"]


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE_DIRECTORY / "compose.yaml").read_text())["services"]
    return found


def test_compose_commands(tmp_path: Path) -> None:
    """Every key and flag is ours; every controller is known under the name that its peers use."""
    compose = yaml.safe_load((COMPOSE_DIRECTORY / "compose.yaml").read_text())
    aliases, members = {}, set()
    for name, service in services().items():
        program, *arguments = service["command"]
        parsed = PARSERS[program]().parse_args(arguments)
        (config,) = service["configs"]
        assert str(parsed.config) == config["target"]
        path = COMPOSE_DIRECTORY / compose["configs"][config["source"]]["file"]
        overrides = overrides_of(parsed.overrides)
        found = load_config(*MODELS[program], path=path, environ={}, overrides=overrides)
        if isinstance(found[-1], ControllerConfig):
            me = found[-1].controller_d_leger_self_id
            (aliases[me],) = service["networks"]["default"]["aliases"]
            members |= {(each, host) for each, (host, _) in found[-1].request_addresses.items()}
            assert str(found[-1].controller_raft_secret_file) == service["secrets"][0]["target"]
        assert service["volumes"] == [f"{name}:/var/lib/keelmq"] and name in compose["volumes"]
    assert set(aliases.items()) == members


def test_compose_closed(tmp_path: Path) -> None:
    """Every service gets the directory, the programs know the keys, and the health check trusts its CA."""
    secure = yaml.safe_load((COMPOSE_DIRECTORY / "compose.secure.yaml").read_text())["services"]
    assert secure.keys() == services().keys()
    create(tmp_path / "security", SecurityOptions("DefaultCluster", ("127.0.0.1",)))
    for name, service in secure.items():
        (mount,) = service["volumes"]
        assert mount == "./security:/etc/keelmq/security:ro"
        environ = dict(service["environment"])
        assert environ["KEELMQ_securityPath"] == "/etc/keelmq/security"
        environ["KEELMQ_securityPath"] = str(tmp_path / "security")
        program, *arguments = services()[name]["command"]
        overrides = overrides_of(PARSERS[program]().parse_args(arguments).overrides)
        path = COMPOSE_DIRECTORY / CONFIGS[services()[name]["configs"][0]["source"]]["file"]
        config, *_ = load_config(*MODELS[program], path=path, environ=environ, overrides=overrides)
        assert config.authentication_enabled and openings(config) == []
        test = service["healthcheck"]["test"][-1]
        assert "'/etc/keelmq/security/ca.crt'" in test
        assert f"https://127.0.0.1:{19876 if program == 'mqnamesrv' else 20911}/readyz" in test
        compile(test, name, "exec")
    assert "security" in (COMPOSE_DIRECTORY / ".gitignore").read_text().split()


def test_compose_is_as_careful_as_the_manifests(rendered: dict[str, Objects]) -> None:
    (image,) = {container(each)["image"] for each in rendered["ha"].stateful_sets}
    for service in services().values():
        assert service["image"] == image
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"] and "privileged" not in service
        test = shlex.join(service["healthcheck"]["test"])
        assert re.findall(r"http://127\.0\.0\.1:(\d+)/readyz", test) == [
            "19876" if service["command"][0] == "mqnamesrv" else "20911"
        ]
