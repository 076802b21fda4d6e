"""The documentation site that `make docs` builds in 11 s, its pictures, and the map of the code."""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import ROOT, pages
from tools import pictures

DOCS = ROOT / "docs"
needs_mkdocs = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="MkDocs is not installed: `make docs`"
)


def build(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)


@needs_mkdocs
@pytest.mark.slow
def test_the_site_has_every_page_and_needs_no_other_host(tmp_path: Path) -> None:
    done = build("--site-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for page in pages():
        name = page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).with_suffix(".html")
        built = {"README.html": "index.html", "runbooks/README.html": "runbooks/index.html"}
        assert (tmp_path / built.get(str(name), name)).is_file(), name
    loaded = re.compile(r"<(?:script|img|iframe|source)[^>]*\bsrc=\"?https?:|<link[^>]*\bhref=\"?https?:")
    assert [each.name for each in tmp_path.rglob("*.html") if loaded.search(each.read_text())] == []
    assert "allAckInSyncStateSet</code></td>" in (tmp_path / "configuration.html").read_text()
    told = "docs/reference/"  # where a checkout has the tables
    named = {each.name for each in tmp_path.rglob("*.html") if told in each.read_text()}
    assert named == {"CHANGELOG.html", "testing.html"}
    assert (tmp_path / "search" / "search_index.js").stat().st_size > 1_000_000


@needs_mkdocs
@pytest.mark.slow
def test_a_dead_link_and_a_dead_anchor_fail(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    with (tmp_path / "docs" / "chaos.md").open("a") as page:
        page.write("[a](nothing.md), [b](store.md#nothing)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT}/mkdocs.yml\nhooks: ['{ROOT}/tools/docs_site.py']\n")
    done = build("--config-file", str(config))
    assert done.returncode != 0
    assert all(f"'{target}'" in done.stderr for target in ("nothing.md", "store.md#nothing")), done.stderr


def test_the_pictures_are_what_the_program_draws() -> None:
    for name in pictures.PICTURES:
        assert (pictures.OUTPUT / name).read_text() == pictures.drawn(name), "python -m tools.pictures"


def has(tree: ast.AST, names: list[str]) -> bool:
    """A function, a class, or a method of a class."""
    found = (node for node in ast.iter_child_nodes(tree) if getattr(node, "name", None) == names[0])
    return any(not names[1:] or has(node, names[1:]) for node in found)


def missing(text: str) -> list[str]:
    """What `file::name` of a text names that does not exist."""
    named = re.findall(r"`([\w/]+\.py)::([\w.]+)`", text)
    assert named
    return [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file() or not has(ast.parse((ROOT / path).read_text()), name.split("."))
    ]


def test_the_map_of_the_code_names_what_exists() -> None:
    assert missing((DOCS / "code-map.md").read_text()) == []


def test_a_name_that_is_gone_is_found() -> None:
    text = "`tests/unit/docs/test_site.py::has`, `tests/unit/docs/test_site.py::has.x`, `a/b.py::c`"
    assert missing(text) == ["tests/unit/docs/test_site.py::has.x", "a/b.py::c"]
