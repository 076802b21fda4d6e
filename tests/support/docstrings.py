"""Which public functions have no docstring. `python -m tests.support.docstrings broker/ha` lists them.

A method needs none of its own where it implements one that has: of a base class, or of a Protocol, in this
repository or in asyncio.
"""

import ast
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.imports import PACKAGES, ROOT, tree_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
ASYNCIO = {
    name
    for kind in (asyncio.BufferedProtocol, asyncio.Protocol, asyncio.DatagramProtocol)
    for name in dir(kind)
}


def _functions(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, Function]]:
    for node in body:
        if isinstance(node, Function):
            yield owner + node.name, node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _functions(node.body, f"{owner}{node.name}.")


def _inherits(paths: list[Path]) -> dict[str, set[str]]:
    """Names of the documented methods of each class."""
    found: dict[str, set[str]] = {}
    for path in paths:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                names = {
                    each.name for each in node.body if isinstance(each, Function) and ast.get_docstring(each)
                }
                found.setdefault(node.name, set()).update(names)
                if any(ast.unparse(base).partition("[")[0] == "Protocol" for base in node.bases):
                    found.setdefault("Protocol", set()).update(names)
    return found


def undocumented(under: Path = ROOT) -> list[str]:
    """Returns `file:line name` of each public function or method below `under` that has no docstring."""
    sources = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    documented = _inherits(sources)
    offenders: list[str] = []
    for path in sources:
        if not path.is_relative_to(under):
            continue
        tree = tree_of(path)
        bases = {
            node.name: [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        }
        for name, node in _functions(tree.body):
            owner, _, short = name.rpartition(".")
            if short.startswith("_") or ast.get_docstring(node) or (owner and short in ASYNCIO):
                continue
            families = [*bases.get(owner, ()), "Protocol"] if owner else []
            if any(short in documented.get(base, ()) for base in families):
                continue
            if any(
                "overload" in ast.unparse(each) or ".setter" in ast.unparse(each)
                for each in node.decorator_list
            ):
                continue
            offenders.append(f"{path.relative_to(ROOT)}:{node.lineno} {name}")
    return offenders


if __name__ == "__main__":
    for line in [each for path in sys.argv[1:] or ["."] for each in undocumented((ROOT / path).resolve())]:
        print(line)
