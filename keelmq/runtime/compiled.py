"""Loads modules that Cython compiled where a C compiler was available: X.py, with its types in X.pxd.

The .py is the only source. The compiled module lies in `compiled/` beside it; its name has the checksum of
both files, so one that was built from an older text is never loaded, and the interpreted functions are used.
Every module works without its compiled one; PURE_PYTHON=1 in the environment loads none. hatch_build.py
builds them; see ADR 23.
"""

import hashlib
import importlib.util
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

PACKAGES: Final = ("keelmq", "broker")
DIRECTORY: Final = "compiled"
TYPES_SUFFIX: Final = ".pxd"
CHECKSUM_DIGITS: Final = 16


class Leaf(NamedTuple):
    """interpreted: the functions of the .py by name. twin: None, and then `problem` says why."""

    interpreted: dict[str, Any]
    twin: ModuleType | None
    problem: str


leaves: Final[dict[str, Leaf]] = {}
"""By module name, as they are imported."""


def is_compiled(file: str) -> bool:
    """Asked by a leaf of its __file__: a loop over bytes is the fastest way there, and the slowest here."""
    return not file.endswith(".py")


def twin_path(source: Path) -> Path:
    """Where the compiled twin of exactly this text is, for exactly this Python."""
    text = b"".join(path.read_bytes() for path in (source, source.with_suffix(TYPES_SUFFIX)))
    checksum = hashlib.sha256(text).hexdigest()[:CHECKSUM_DIGITS]
    return source.parent / DIRECTORY / f"{source.stem}-{checksum}{EXTENSION_SUFFIXES[0]}"


def prefer_twin(module: str, namespace: dict[str, Any], *names: str) -> None:
    """The last statement of a leaf: from here on these functions are its twin's, if it has one."""
    if is_compiled(namespace["__file__"]):
        return
    twin, problem = _load(module, Path(namespace["__file__"]))
    leaves[module] = Leaf({name: namespace[name] for name in names}, twin, problem)
    if twin is not None:
        namespace.update({name: getattr(twin, name) for name in names})


def _load(module: str, source: Path) -> tuple[ModuleType | None, str]:
    if os.environ.get("PURE_PYTHON", "") not in ("", "0"):
        return None, "PURE_PYTHON is set"
    try:
        path = twin_path(source)
        if not path.exists():
            return None, "not built, or of an older source"
        package, _, name = module.rpartition(".")
        spec = importlib.util.spec_from_file_location(f"{package}.{DIRECTORY}.{name}", path)
        assert spec is not None and spec.loader is not None, path
        twin = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(twin)
    except (ImportError, OSError) as error:  # of another machine, or not for us to read
        return None, str(error)
    return twin, ""


def report() -> str:
    """Reports how many of the imported leaf modules are compiled, and why the others are not."""
    missing = {name.rpartition(".")[2]: leaf.problem for name, leaf in leaves.items() if leaf.twin is None}
    if not missing:
        return f"{len(leaves)} modules compiled"
    problems = "; ".join(sorted(set(missing.values())))
    if len(missing) == len(leaves):
        return f"no module compiled ({problems})"
    return f"{len(leaves) - len(missing)} modules compiled, but not {', '.join(sorted(missing))} ({problems})"


def built() -> tuple[int, int]:
    """Returns how many leaf modules have a compiled one on this disk, of how many; imports none."""
    packages = (Path(__file__).parents[2] / name for name in PACKAGES)
    sources = [
        types.with_suffix(".py") for package in packages for types in package.rglob(f"*{TYPES_SUFFIX}")
    ]
    return sum(twin_path(source).exists() for source in sources), len(sources)
