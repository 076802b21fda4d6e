"""The import graph of our packages, for the house rules: which module imports which, and the circles in it.

`python -m tests.support.imports [PACKAGE...]` prints the circles, and the arrows between folders.

Every import counts, also one under TYPE_CHECKING or inside a function: a reader has to follow it.
Not counted: Python runs the `__init__` of a package before any module in it.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("keelmq", "namesrv", "broker", "proxy", "pytest_keelmq", "cli", "analytics")
"""Dotted names. One may be inside of another: a module of "keelmq.client" is not one of "keelmq"."""

Graph = Mapping[str, frozenset[str]]
"""Importer to what it imports. Every imported name is a key, too."""


@cache
def tree_of(path: Path) -> ast.Module:
    """The file, parsed once for all rules."""
    return ast.parse(path.read_text(), str(path))


@cache
def modules() -> Mapping[str, Path]:
    """Dotted name to file of every module of our packages, by name; an `__init__` has its folder's name."""
    tops = {package.split(".")[0] for package in PACKAGES}
    return dict(sorted((_dotted(path), path) for top in tops for path in (ROOT / top).rglob("*.py")))


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def package_of(name: str) -> str | None:
    """The innermost of PACKAGES that this module is in. None: it is not ours."""
    found = [package for package in PACKAGES if is_in(name, package)]
    return max(found, key=len, default=None)


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@cache
def _statements(path: Path) -> Sequence[ast.Import | ast.ImportFrom]:
    """Every import statement of the file, wherever it is. Relative ones are refused."""
    found = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in found:
        is_relative = isinstance(node, ast.ImportFrom) and node.level
        assert not is_relative, f"{path.relative_to(ROOT)}:{node.lineno}: relative import"
    return found


def imported(path: Path) -> Iterator[str]:
    """The modules that the file's import statements name, as written: of `from a import b`, it is a."""
    for node in _statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            yield node.module or ""


def _imported_modules(name: str) -> Iterator[str]:
    """Our modules that this one imports: of `from broker.metadata import topics`, it is the module."""
    known = modules()
    for node in _statements(known[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif node.module is not None and node.module in known:
            below = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (each if each in known else node.module for each in below)


@cache
def module_graph(package: str) -> Graph:
    """The imports among the modules of one package."""
    own = [name for name in modules() if package_of(name) == package]
    return {
        name: frozenset(each for each in _imported_modules(name) if package_of(each) == package) - {name}
        for name in own
    }


@cache
def folders() -> Sequence[str]:
    """Dotted names of all folders with Python modules in our packages."""
    return sorted({_dotted(path.parent / "__init__.py") for path in modules().values()})


def room_graph(folder: str) -> Graph:
    """The imports among what is directly in a folder: its modules, and its folders with all that is in them.

    The folder's own `__init__` is left out: it re-exports.
    """
    package = package_of(folder)
    assert package is not None, folder
    graph: dict[str, set[str]] = {}
    for name, targets in module_graph(package).items():
        here = _child(name, folder)
        if here is not None:
            graph.setdefault(here, set()).update(
                there for each in targets if (there := _child(each, folder)) not in (None, here)
            )
    return {name: frozenset(targets) for name, targets in graph.items()}


def _child(name: str, folder: str) -> str | None:
    """The part of `folder` that a module is in: broker.ha for broker.ha.core.acks. None: it is in none."""
    if not name.startswith(folder + "."):
        return None
    return f"{folder}.{name[len(folder) + 1 :].split('.')[0]}"


def rooms(folder: str) -> list[str]:
    """The folders directly in a folder; not those that are packages of their own."""
    return [each for each in folders() if each.rpartition(".")[0] == folder and each not in PACKAGES]


def circles(graph: Graph) -> list[frozenset[str]]:
    """The strongly connected components of more than one node (Tarjan), the largest first."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for each in sorted(graph[name]):
            if each not in index:
                visit(each)
                low[name] = min(low[name], low[each])
            elif each in stack:
                low[name] = min(low[name], index[each])
        if low[name] == index[name]:
            begin = stack.index(name)
            if len(stack) - begin > 1:
                found.append(frozenset(stack[begin:]))
            del stack[begin:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return sorted(found, key=lambda circle: (-len(circle), sorted(circle)))


def arrows(graph: Graph, among: Iterable[str]) -> set[tuple[str, str]]:
    """(importer, imported) for the imports among these nodes."""
    nodes = set(among)
    return {(name, each) for name in nodes & set(graph) for each in graph[name] & nodes}


def witnesses(importer: str, target: str) -> list[str]:
    """The imports behind an arrow between two modules or folders, as `a.b imports c.d`."""
    package = package_of(importer)
    assert package is not None, importer
    return sorted(
        f"{name} imports {each}"
        for name, targets in module_graph(package).items()
        if is_in(name, importer)
        for each in targets
        if is_in(each, target)
    )


def main(packages: Sequence[str]) -> None:
    for package in packages:
        for circle in circles(module_graph(package)):
            print(f"CIRCLE of {len(circle)} modules in {package}")
            for importer, target in sorted(arrows(module_graph(package), circle)):
                print(f"    {importer} imports {target}")
    for folder in folders():
        if package_of(folder) not in packages or not rooms(folder):
            continue
        graph = room_graph(folder)
        for circle in circles(graph):
            print(f"CIRCLE of {len(circle)} rooms in {folder}: {' '.join(sorted(circle))}")
            for importer, target in sorted(arrows(graph, circle)):
                print("    " + "\n    ".join(witnesses(importer, target)))
        print(f"ARROWS between the folders in {folder}")
        for importer, target in sorted(arrows(graph, rooms(folder))):
            print(f"    {importer} -> {target} ({len(witnesses(importer, target))})")


if __name__ == "__main__":
    main(sys.argv[1:] or PACKAGES)
