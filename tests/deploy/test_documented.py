"""The commands of README.md and docs/kubernetes.md, as they are written there, in a fresh checkout."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.conftest import ROOT, copy_tree, kubectl


@pytest.mark.parametrize("document", ["README.md", "docs/kubernetes.md"])
def test_the_first_apply_works_in_a_fresh_checkout(document: str, tmp_path: Path) -> None:
    """Up to the first `kubectl apply -k`, which renders here instead of talking to a cluster."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    apply = next(line for line in lines if line.startswith("kubectl apply -k "))
    before = lines[: lines.index(apply)]
    keys = [line for line in before if "raft.key" in line]
    (tmp_path / "deploy").mkdir()
    copy_tree(tmp_path / "deploy", key=None)
    script = "\n".join(["set -e", *keys, apply.replace("kubectl apply -k", f"{kubectl()} kustomize")])
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    kinds = [each["kind"] for each in yaml.safe_load_all(done.stdout)]
    assert kinds.count("StatefulSet") == 2 and "Secret" in kinds
    assert (tmp_path / "deploy" / "k8s" / "base" / "raft.key").stat().st_mode & 0o077 == 0
