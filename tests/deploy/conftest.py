"""Our overlays as Kubernetes would get them, rendered once by the real tool with a throw-away key. The one
with secrets gets them by the commands of docs/kubernetes.md."""

import base64
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.deploy.objects import Object, Objects

ROOT = Path(__file__).resolve().parent.parent.parent
OVERLAYS = {
    "base": "base",
    "ha": "overlays/ha",
    "analytics": "overlays/analytics",
    "proxy": "overlays/proxy",
    "dual-stack": "overlays/dual-stack",
    "external-nodeport": "overlays/external-nodeport",
    "external-loadbalancer": "overlays/external-loadbalancer",
    "container": "overlays/container",
    "secure": "overlays/secure",
    "container-secure": "overlays/container-secure",
}
SECURE = {"secure": "ha", "container-secure": "container"}
"""Closed overlays, and what they close."""
HOST_OF_BROKERS = {"secure": "*.keelmq-broker-a", "container-secure": "*.keelmq-container"}


def kubectl() -> str:
    """The one of the environment (a development package) before any other."""
    beside = Path(sys.executable).parent / "kubectl"
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    assert found, "no kubectl: ./test installs one into .venv"
    return found


def _program_of_layer(name: str, directory: Path) -> Path:
    """Of the package that has helm, and kubectl of the oldest Kubernetes that docs/kubernetes.md names."""
    layers = list((ROOT / "tests/deploy/oldest_kubectl/node_modules").glob("@aws-cdk/*/lib/layer.zip"))
    if not layers:
        pytest.skip(f"{name} is not installed: run `npm ci` in tests/deploy/oldest_kubectl")
    with zipfile.ZipFile(layers[0]) as layer:
        program = Path(layer.extract(f"{name}/{name}", directory))
    program.chmod(0o755)
    return program


@pytest.fixture(scope="session")
def oldest_kubectl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _program_of_layer("kubectl", tmp_path_factory.mktemp("kubectl"))


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _program_of_layer("helm", tmp_path_factory.mktemp("helm"))


def render(tree: Path, overlay: str, program: str | Path | None = None) -> subprocess.CompletedProcess[str]:
    """program: kubectl(), if None."""
    return subprocess.run(
        [program or kubectl(), "kustomize", str(tree / OVERLAYS[overlay])],
        capture_output=True,
        text=True,
        check=False,
    )


def render_directory(directory: Path, program: str | Path | None = None) -> Objects:
    """Of any kustomization. program: kubectl(), if None."""
    done = subprocess.run(
        [program or kubectl(), "kustomize", str(directory)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Objects([each for each in yaml.safe_load_all(done.stdout) if each])


def copy_tree(directory: Path, *, key: str | None) -> Path:
    """deploy/k8s without a key that may lie in the checkout, and with this one."""
    tree = directory / "k8s"
    shutil.copytree(ROOT / "deploy" / "k8s", tree, ignore=shutil.ignore_patterns("raft.key"))
    if key is not None:
        (tree / "base" / "raft.key").write_text(key)
    return tree


def documented_secrets() -> list[str]:
    """The commands of docs/kubernetes.md from `init-security` to `apply`."""
    section = (ROOT / "docs" / "kubernetes.md").read_text().partition("## Security")[2]
    (block, *_) = re.findall(r"^```sh\n(.*?)^```", section, flags=re.DOTALL | re.MULTILINE)
    return str(block).splitlines()


def run_documented_secrets(directory: Path, overlay: str = "secure") -> list[Object]:
    """Runs those commands in a directory that has deploy/k8s, with the replacements for another overlay.
    Returns what Kubernetes would get; the files of init-security are in directory/security."""
    script = ["set -e"]
    for written in documented_secrets():
        line = written.replace("overlays/secure", OVERLAYS[overlay])
        line = line.replace(HOST_OF_BROKERS["secure"], HOST_OF_BROKERS[overlay])
        rendering = line.replace("kubectl apply -k", f"{kubectl()} kustomize")
        if line.startswith("kubectl apply -f "):
            rendering = f"cat {line.split()[-1]}"
        elif " create secret " in line:
            rendering = f"{kubectl()} {line.removeprefix('kubectl ')} --dry-run=client -o yaml"
        script += [rendering, "echo ---"] if line.startswith("kubectl ") else [f"{line} >&2"]
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(directory)}
    done = subprocess.run(
        ["sh", "-c", "\n".join(script)],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for each in yaml.safe_load_all(done.stdout):
        if each:
            found[each["kind"], each["metadata"]["name"]] = each
    return list(found.values())


@pytest.fixture(scope="session")
def security_path(rendered: dict[str, Objects], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Secret keelmq-security as a directory: what a pod gets, and nothing else."""
    directory = tmp_path_factory.mktemp("security")
    for name, data in rendered["secure"].named("Secret", "keelmq-security")["data"].items():
        (directory / name).write_bytes(base64.b64decode(data))
        (directory / name).chmod(0o600)
    return directory


@pytest.fixture(scope="session")
def secure_directory(secure_directories: dict[str, Path]) -> Path:
    """Where the commands of docs/kubernetes.md run as they are written."""
    return secure_directories["secure"]


@pytest.fixture(scope="session")
def secure_directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where they run for each closed overlay."""
    return {overlay: tmp_path_factory.mktemp(overlay) for overlay in SECURE}


@pytest.fixture(scope="session")
def rendered(
    tmp_path_factory: pytest.TempPathFactory, secure_directories: dict[str, Path]
) -> dict[str, Objects]:
    tree = copy_tree(tmp_path_factory.mktemp("deploy"), key="only-for-tests-" * 4)
    found = {}
    for overlay, directory in secure_directories.items():
        (directory / "deploy").mkdir()
        copy_tree(directory / "deploy", key=None)
        found[overlay] = Objects(run_documented_secrets(directory, overlay))
    for overlay in OVERLAYS.keys() - found.keys():
        done = render(tree, overlay)
        assert done.returncode == 0, done.stderr
        found[overlay] = Objects([each for each in yaml.safe_load_all(done.stdout) if each])
    return found


@pytest.fixture(scope="session", params=sorted(OVERLAYS))
def objects(request: pytest.FixtureRequest, rendered: dict[str, Objects]) -> Objects:
    return rendered[request.param]
