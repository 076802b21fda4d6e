"""Leaf modules and their compiled twins: which one is used, and that a twin of an older text never is."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.keelmq import app as keelmq
from hatch_build import CannotCompile, check_tools
from keelmq.runtime import compiled
from keelmq.runtime.compiled import Leaf, prefer_twin, report, twin_path

ROOT = Path(__file__).parents[4]
LEAVES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("keelmq", "broker")
    for path in (ROOT / package).rglob("*.pxd")
)
IS_PURE = bool(os.environ.get("PURE_PYTHON"))


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    source = tmp_path / "leaf.py"
    source.write_text("def double(number):\n    return 2 * number\n")
    source.with_suffix(".pxd").write_text("cpdef double(number)\n")
    return source


@pytest.fixture(autouse=True)
def known_leaves(monkeypatch: pytest.MonkeyPatch) -> dict[str, Leaf]:
    """Those of this test alone."""
    found: dict[str, Leaf] = {}
    monkeypatch.setattr(compiled, "leaves", found)
    monkeypatch.delenv("PURE_PYTHON", raising=False)
    return found


def namespace_of(source: Path) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__file__": str(source)}
    exec(source.read_text(), namespace)
    return namespace


@pytest.mark.parametrize("suffix", [".py", ".pxd"])
def test_a_twin_of_an_older_text_is_not_found(leaf: Path, suffix: str) -> None:
    before = twin_path(leaf)
    assert before.parent == leaf.parent / "compiled"
    with leaf.with_suffix(suffix).open("a") as file:
        file.write("# edited\n")
    assert twin_path(leaf) != before


def test_without_a_twin_the_functions_stay(leaf: Path, known_leaves: dict[str, Leaf]) -> None:
    namespace = namespace_of(leaf)
    double = namespace["double"]
    prefer_twin("a.leaf", namespace, "double")
    assert namespace["double"] is double is known_leaves["a.leaf"].interpreted["double"]
    assert report() == "no module compiled (not built, or of an older source)"


def test_what_is_no_module_of_this_machine_is_left_alone(leaf: Path, known_leaves: dict[str, Leaf]) -> None:
    twin = twin_path(leaf)
    twin.parent.mkdir()
    twin.write_bytes(b"another machine's")
    namespace = namespace_of(leaf)
    prefer_twin("a.leaf", namespace, "double")
    assert namespace["double"](4) == 8
    assert known_leaves["a.leaf"].twin is None
    assert str(twin) in report()


def test_some_are_missing(known_leaves: dict[str, Leaf]) -> None:
    module: Any = SimpleNamespace()
    known_leaves.update({"a.one": Leaf({}, module, ""), "a.two": Leaf({}, None, "not built")})
    assert report() == "1 modules compiled, but not two (not built)"


@pytest.mark.parametrize("name", LEAVES)
def test_every_leaf_has_a_twin_where_one_can_be_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    module = importlib.import_module(name)
    found = compiled.leaves[name]
    if IS_PURE:
        assert (found.twin, found.problem) == (None, "PURE_PYTHON is set")
        return
    try:
        check_tools()
    except CannotCompile as error:
        pytest.skip(str(error))
    assert found.twin is not None, f"{found.problem}; run: .venv/bin/python hatch_build.py"
    for function, interpreted in found.interpreted.items():
        assert getattr(module, function) is getattr(found.twin, function) is not interpreted


def test_what_is_built_is_counted_without_importing_it() -> None:
    count, total = compiled.built()
    assert total == len(LEAVES)
    assert count == sum(twin_path(ROOT / f"{name.replace('.', '/')}.py").exists() for name in LEAVES)


def test_a_fall_back_to_the_interpreter_is_a_warning_once(
    known_leaves: dict[str, Leaf], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(compiled, "is_warned", False)
    module: Any = SimpleNamespace()
    known_leaves.update({"a.one": Leaf({}, module, ""), "a.two": Leaf({}, None, compiled.NOT_WANTED)})
    compiled.tell_report()
    known_leaves["a.two"] = Leaf({}, None, "not built")
    compiled.tell_report()
    compiled.tell_report()  # another broker of the process
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]
    assert "3 to 6 times the CPU. Install a C compiler" in caplog.records[1].getMessage()


def test_the_version_says_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "built", lambda: (14, 14))
    assert compiled.built_report() == "data path: 14 modules compiled"
    monkeypatch.setattr(compiled, "built", lambda: (0, 14))
    assert "0 of 14 modules compiled; interpreted ones need" in compiled.built_report()
    assert "0 of 14 modules" in CliRunner().invoke(keelmq, ["version"]).output
    monkeypatch.setenv("PURE_PYTHON", "1")
    assert "because PURE_PYTHON is set" in compiled.built_report()


def test_pure_python() -> None:
    """No twin is loaded, and everything can be imported."""
    imports = "; ".join(f"import {name}" for name in LEAVES)
    code = f"{imports}; from keelmq.runtime.compiled import report; print(report())"
    environment = {**os.environ, "PURE_PYTHON": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "no module compiled (PURE_PYTHON is set)\n"


def test_a_machine_without_a_compileris_warned_so_in_one_line(tmp_path: Path) -> None:
    for package in ("keelmq", "broker"):
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("compiled", "*.pyc")
        )
    shutil.copy(ROOT / "hatch_build.py", tmp_path)
    done = subprocess.run(
        [sys.executable, "hatch_build.py"],
        cwd=tmp_path,
        env={"PATH": "/nowhere", "CC": "no-such-compiler"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == (
        "keelmq set-up: no compiled modules: there is no C compiler (no-such-compiler);"
        " the interpreted ones are used\n"
    )
    assert not list(tmp_path.rglob("*.so"))
