"""The house rules that a machine can check: floors, purity, sizes, and what must never stand in here."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("remoting", "namesrv", "broker", "client", "cli", "web", "analytics", "keelmq")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
CORES = [path for path in MODULES if "core" in path.relative_to(ROOT).parts[:-1]]

IMPURE = {
    "asyncio", "concurrent", "datetime", "fastapi", "logging", "mmap", "multiprocessing", "os", "pathlib",
    "pysyncobj", "random", "secrets", "select", "signal", "socket", "ssl", "subprocess", "threading", "time",
    "uuid", "uvicorn", "uvloop",
}  # fmt: skip
"""A core never waits, reads a clock, rolls dice or touches a file: all of that comes in as values."""

FLOOR_0 = {
    "remoting.codes", "remoting.command", "remoting.frame", "remoting.lenient_json", "remoting.operation",
    "remoting.records",
}  # fmt: skip

MAY_IMPORT = {
    "remoting": {"remoting"},
    "namesrv": {"namesrv", "remoting", "web"},
    "broker": {"broker", "remoting"},
    "client": {"client", "remoting"},
    "cli": {"analytics", "cli", "client", "remoting", "web"},
    "web": {"web"},
    "analytics": {"analytics", "remoting"},
    "keelmq": {"broker", "client", "keelmq", "namesrv", "remoting"},
}
"""keelmq stands on everything, and nothing on it: it is for the tests of programs that use KeelMQ (ADR)."""
CLI_READS = {
    "broker.config", "broker.repair", "namesrv.config",
    "namesrv.plugins.controller.config",
}  # fmt: skip
"""The doctor judges configuration files by the models that the programs load them with; a repair is of the
files of a stopped broker."""
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 450


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(path: Path) -> Iterator[str]:
    """Every module that the file imports, at the top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import"
            yield node.module or ""


def test_there_is_a_house() -> None:
    assert len(MODULES) > 30
    assert len(CORES) > 10


@pytest.mark.parametrize("path", CORES, ids=name_of)
def test_core_is_pure(path: Path) -> None:
    assert not IMPURE & {name.split(".")[0] for name in imported(path)}


@pytest.mark.parametrize("path", CORES, ids=name_of)
def test_core_stands_on_floor_0(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    for name in imported(path):
        if name.split(".")[0] in PACKAGES:
            own_core = name.startswith(f"{package}.") and ".core" in name
            ground = name in FLOOR_0 or name.startswith("remoting.operations")
            assert own_core or ground, f"{name_of(path)} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_floors(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    also = CLI_READS if package == "cli" else set()
    ours = {name.split(".")[0] for name in imported(path) if name not in also} & set(PACKAGES)
    assert ours <= MAY_IMPORT[package]
    assert "tests" not in {name.split(".")[0] for name in imported(path)}


def test_namesrv_never_names_a_plugin() -> None:
    for path in (ROOT / "namesrv").rglob("*.py"):
        if "plugins" not in path.relative_to(ROOT).parts:
            assert not any(name.startswith("namesrv.plugins.controller") for name in imported(path)), path


def test_one_file_imports_pysyncobj() -> None:
    users = {name_of(path) for path in MODULES if any(n.startswith("pysyncobj") for n in imported(path))}
    assert users == {"namesrv/plugins/controller/replicator.py"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_pickle(path: Path) -> None:
    assert not {"pickle", "marshal", "shelve", "dill"} & {name.split(".")[0] for name in imported(path)}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_sizes(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MODULE_LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", [path for path in MODULES if path.name != "__init__.py"], ids=name_of)
def test_a_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def sleeps(tree: ast.AST, *, in_loop: bool = False) -> Iterator[int]:
    """Lines of calls of `sleep` that no loop asks again after; sleep(0) is a turn of the event loop."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep":
            is_turn = isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if not (in_loop or is_turn):
                yield node.lineno
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from sleeps(node)
        else:
            yield from sleeps(node, in_loop=in_loop or isinstance(node, ast.While | ast.For | ast.AsyncFor))


def test_tests_never_sleep() -> None:
    """Virtual time (tests/sim), or a condition with a deadline: a test that waits looks again and again."""
    pattern = re.compile(r"\btime\.sleep\(")
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path == Path(__file__):
            continue
        text = path.read_text()
        assert not pattern.search(text), path
        if "sim" not in path.parts:
            assert not list(sleeps(ast.parse(text))), path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("async def test():\n    await asyncio.sleep(0.2)", 1),
        ("while waits():\n    async def later():\n        await asyncio.sleep(0.2)", 1),
        ("async def test():\n    while waits():\n        await asyncio.sleep(0.01)", 0),
        ("async def test():\n    await asyncio.sleep(0)", 0),
    ],
)
def test_a_sleep_is_found(text: str, found: int) -> None:
    assert len(list(sleeps(ast.parse(text)))) == found


def test_lock_files_name_no_registry() -> None:
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    assert locks
    for lock in locks:
        assert "://" not in lock.read_text(), lock
        assert "--hash=sha256:" in lock.read_text(), lock


def test_versions_are_pinned_where_it_matters() -> None:
    assert '"pysyncobj==0.3.17"' in (ROOT / "pyproject.toml").read_text()
