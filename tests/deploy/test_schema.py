"""The overlays render, are valid for every Kubernetes that we claim, and hold no key."""

import re
from pathlib import Path

import pytest

from tests.deploy.conftest import OVERLAYS, ROOT, copy_tree, render
from tests.deploy.objects import Objects

OLDEST, NEWEST = "1.28", "1.37"
"""1.28 is the first with the label apps.kubernetes.io/pod-index."""


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_objects_are_valid(objects: Objects, version: str) -> None:
    import kubernetes_validate  # a second of CPU time, which every worker would spend on collecting this file

    for each in objects.all:
        kubernetes_validate.validate(each, version, strict=True)


def test_the_documents_name_the_same_versions() -> None:
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    assert f"{OLDEST} to {NEWEST}" in text


@pytest.mark.parametrize("overlay", sorted(OVERLAYS))
def test_without_a_key_nothing_is_rendered(tmp_path: Path, overlay: str) -> None:
    done = render(copy_tree(tmp_path, key=None), overlay)
    assert done.returncode != 0 and done.stdout == ""
    assert "raft.key" in done.stderr


def test_no_key_in_the_repository() -> None:
    ignored = (ROOT / "deploy" / "k8s" / "base" / ".gitignore").read_text().split()
    assert "raft.key" in ignored
    for path in (ROOT / "deploy").rglob("*.*"):
        if path.is_file() and path.name != "raft.key":
            assert not re.search(r"[A-Za-z0-9+/]{43}=", path.read_text()), path
