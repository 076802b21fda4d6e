"""Our overlays as Kubernetes would get them, rendered once by the real tool with a throw-away key."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.deploy.objects import Objects

ROOT = Path(__file__).resolve().parent.parent.parent
OVERLAYS = {"base": "base", "ha": "overlays/ha"}


def kubectl() -> str:
    """The one of the environment (a development package) before any other."""
    beside = Path(sys.executable).parent / "kubectl"
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    assert found, "no kubectl: ./test installs one into .venv"
    return found


def render(tree: Path, overlay: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [kubectl(), "kustomize", str(tree / OVERLAYS[overlay])], capture_output=True, text=True, check=False
    )


def copy_tree(directory: Path, *, key: str | None) -> Path:
    """deploy/k8s without a key that may lie in the checkout, and with this one."""
    tree = directory / "k8s"
    shutil.copytree(ROOT / "deploy" / "k8s", tree, ignore=shutil.ignore_patterns("raft.key"))
    if key is not None:
        (tree / "base" / "raft.key").write_text(key)
    return tree


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Objects]:
    tree = copy_tree(tmp_path_factory.mktemp("deploy"), key="only-for-tests-" * 4)
    found = {}
    for overlay in OVERLAYS:
        done = render(tree, overlay)
        assert done.returncode == 0, done.stderr
        found[overlay] = Objects([each for each in yaml.safe_load_all(done.stdout) if each])
    return found


@pytest.fixture(scope="session", params=sorted(OVERLAYS))
def objects(request: pytest.FixtureRequest, rendered: dict[str, Objects]) -> Objects:
    return rendered[request.param]
