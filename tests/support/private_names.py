"""The uses of private names of our packages in the tests, for the house rules.

`python -m tests.support.private_names` prints them.

A test looks at what a class shows to everybody: the wire, files, public properties, metrics. Then the class
can be rewritten without its tests. Not counted: names that no module of ours defines (those of asyncio and
PySyncObj), and names that the test's file defines itself.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.imports import ROOT, modules, package_of, tree_of

PRIVATE = re.compile(r"_[a-z]\w*(?<!__)")
NAMEDTUPLE = {"_asdict", "_fields", "_make", "_replace"}
"""Public in spite of the underscore."""
ASYNCIO = {"_context", "_scheduled"}
"""Names of asyncio.TimerHandle too, which the simulator's event loop reads and sets."""


def defined(tree: ast.AST) -> Iterator[str]:
    """Private names that the module gives to functions, classes, variables, attributes and fields."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names = [node.name]
            case ast.Name(ctx=ast.Store()):
                names = [node.id]
            case ast.Attribute(ctx=ast.Store(), value=ast.Name(id="self" | "cls")):
                names = [node.attr]
            case _:
                continue
        yield from (name for name in names if PRIVATE.fullmatch(name) and name not in NAMEDTUPLE)


@cache
def ours() -> frozenset[str]:
    return frozenset(name for path in modules().values() for name in defined(tree_of(path)))


def used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of every private name that the module reads, sets, replaces or imports from elsewhere."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute():
                names = [node.attr]
            case ast.Call(func=ast.Attribute(attr="setattr") | ast.Name(id="setattr" | "getattr")):
                strings = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
                names = [each.rpartition(".")[2] for each in strings if isinstance(each, str)]
            case ast.ImportFrom(module=str(module)) if package_of(module):
                names = [alias.name for alias in node.names]
            case _:
                continue
        yield from ((node.lineno, name) for name in names if PRIVATE.fullmatch(name))


def uses() -> Iterator[tuple[Path, int, str]]:
    """File, line and name of every use in tests/, tests/support aside, in order."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        is_ours = not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        if is_ours and (ROOT / "tests" / "support") not in path.parents:
            own = frozenset(defined(tree_of(path)))
            for line, name in sorted(used(tree_of(path))):
                if name in ours() and name not in own | ASYNCIO:
                    yield path.relative_to(ROOT), line, name


if __name__ == "__main__":
    for file, line, name in uses():
        print(f"{file}:{line}: {name}")
