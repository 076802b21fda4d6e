"""Loads modules that Cython compiled where a C compiler was available: X.py, with its types in X.pxd.

The .py is the only source. The compiled module is in `compiled/` beside it; its name has the checksum of both
files, so one that was built from an older text is never loaded, and the interpreted functions are used. Every
module works without its compiled one; with PURE_PYTHON=1 in the environment none is loaded. hatch_build.py
builds them; see ADR 23.
"""

import hashlib
import importlib.util
import logging
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

logger = logging.getLogger(__name__)

PACKAGES: Final = ("keelmq", "broker")
DIRECTORY: Final = "compiled"
TYPES_SUFFIX: Final = ".pxd"
CHECKSUM_DIGITS: Final = 16


class Leaf(NamedTuple):
    """A module with a compiled twin. interpreted: the functions of the .py by name. twin: None if it was not
    loaded, and then `problem` says why."""

    interpreted: dict[str, Any]
    twin: ModuleType | None
    problem: str


NOT_WANTED: Final = "PURE_PYTHON is set"
SLOWER: Final = "interpreted ones need 3 to 6 times the CPU"
HOW_TO_COMPILE: Final = "Install a C compiler and Python's headers, and install keelmq again"
leaves: Final[dict[str, Leaf]] = {}
"""By module name, in the order of their import."""
is_warned = False
"""Whether tell_report() has warned in this process."""


def is_compiled(file: str) -> bool:
    """Returns whether the module with this __file__ is compiled: a loop over bytes is the fastest way in
    compiled code, and the slowest in interpreted code."""
    return not file.endswith(".py")


def twin_path(source: Path) -> Path:
    """Returns the path of the compiled twin of exactly this text, for exactly this Python."""
    text = b"".join(path.read_bytes() for path in (source, source.with_suffix(TYPES_SUFFIX)))
    checksum = hashlib.sha256(text).hexdigest()[:CHECKSUM_DIGITS]
    return source.parent / DIRECTORY / f"{source.stem}-{checksum}{EXTENSION_SUFFIXES[0]}"


def prefer_twin(module: str, namespace: dict[str, Any], *names: str) -> None:
    """Replaces functions of a leaf by those of its twin, if there is one; the last statement of the leaf."""
    if is_compiled(namespace["__file__"]):
        return
    twin, problem = _load(module, Path(namespace["__file__"]))
    leaves[module] = Leaf({name: namespace[name] for name in names}, twin, problem)
    if twin is not None:
        namespace.update({name: getattr(twin, name) for name in names})


def _load(module: str, source: Path) -> tuple[ModuleType | None, str]:
    if os.environ.get("PURE_PYTHON", "") not in ("", "0"):
        return None, NOT_WANTED
    try:
        path = twin_path(source)
        if not path.exists():
            return None, "not built, or of an older source"
        package, _, name = module.rpartition(".")
        spec = importlib.util.spec_from_file_location(f"{package}.{DIRECTORY}.{name}", path)
        assert spec is not None and spec.loader is not None, path
        twin = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(twin)
    except (ImportError, OSError) as error:  # built for another machine, or not readable
        return None, str(error)
    return twin, ""


def report() -> str:
    """Returns a text on how many of the imported leaf modules are compiled, and why the others are not."""
    missing = {name.rpartition(".")[2]: leaf.problem for name, leaf in leaves.items() if leaf.twin is None}
    if not missing:
        return f"{len(leaves)} modules compiled"
    problems = "; ".join(sorted(set(missing.values())))
    if len(missing) == len(leaves):
        return f"no module compiled ({problems})"
    return f"{len(leaves) - len(missing)} modules compiled, but not {', '.join(sorted(missing))} ({problems})"


def tell_report() -> None:
    """Logs report(); once in a process as a warning if modules that should be compiled are not."""
    global is_warned
    is_slow = any(leaf.twin is None and leaf.problem != NOT_WANTED for leaf in leaves.values())
    if is_slow and not is_warned:
        is_warned = True
        logger.warning("data path: %s; %s. %s", report(), SLOWER, HOW_TO_COMPILE)
    else:
        logger.info("data path: %s", report())


def built() -> tuple[int, int]:
    """Returns how many leaf modules have a compiled twin on this disk, and how many there are; imports
    none."""
    packages = (Path(__file__).parents[2] / name for name in PACKAGES)
    sources = [
        types.with_suffix(".py") for package in packages for types in package.rglob(f"*{TYPES_SUFFIX}")
    ]
    return sum(twin_path(source).exists() for source in sources), len(sources)


def built_report() -> str:
    """Returns a text on how many leaf modules have a compiled twin on this disk, and what it costs if some
    have none. Imports none."""
    count, total = built()
    if os.environ.get("PURE_PYTHON", "") not in ("", "0"):
        return f"data path: interpreted, because PURE_PYTHON is set; {SLOWER}"
    if count == total:
        return f"data path: {total} modules compiled"
    return f"data path: {count} of {total} modules compiled; {SLOWER}. {HOW_TO_COMPILE}"
