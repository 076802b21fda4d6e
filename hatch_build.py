"""Compiles the leaf modules (keelmq/runtime/compiled.py) with Cython, if Cython and a C compiler are here.
Builds the pages (keelmq/web/frontend), if npm is here.

Run by hatchling for a wheel, and by tools/env.sh for a checkout: python hatch_build.py [pages]. Whatever is
missing costs one line and nothing else: the package is complete without.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
PACKAGES = ("keelmq", "broker")
FLAGS = ["-O3", "-g0"]
DIRECTIVES = {"language_level": 3, "annotation_typing": False}  # the types of the twin are in its .pxd
BUILD_SECONDS_MAX = 600
ERROR_CHARACTERS_MAX = 300
FRONTEND, PAGES = ROOT / "keelmq" / "web" / "frontend", ROOT / "keelmq" / "web" / "static"
BUILT_FROM = FRONTEND / "node_modules" / ".built-from"
NPM_STEPS = (("ci", "--no-audit", "--no-fund", "--loglevel=error"), ("run", "build"))


class CannotCompile(Exception):
    """One line for the user."""


class CannotBuildPages(Exception):
    """One line for the user."""


class LeafHook(BuildHookInterface):  # type: ignore[type-arg]
    """A wheel with the twins is one for this Python and machine; without, it is for all."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # tools/env.sh looks after a checkout
        try:
            build_pages()
            build_data["artifacts"].append(f"/{PAGES.relative_to(ROOT)}/**")
        except CannotBuildPages as error:
            self.app.display_warning(f"{error}; this wheel has neither the console nor the analytics page")
        try:
            twins = compile_leaves()
        except CannotCompile as error:
            self.app.display_warning(f"{error}; this wheel has no compiled modules, and needs none")
            return
        build_data["artifacts"] += [f"/{twin.relative_to(ROOT)}" for twin in twins]
        build_data["pure_python"], build_data["infer_tag"] = False, True


def compile_leaves() -> list[Path]:
    """The twins of all leaves, made where they are missing; older ones for this Python go. CannotCompile."""
    sources = [types.with_suffix(".py") for package in PACKAGES for types in (ROOT / package).rglob("*.pxd")]
    twins = {source: _twin_path(source) for source in sorted(sources)}
    missing = {source: twin for source, twin in twins.items() if not twin.exists()}
    if missing:
        check_tools()
        _compile(missing)
    for directory in {twin.parent for twin in twins.values()}:
        for twin in directory.glob(f"*{EXTENSION_SUFFIXES[0]}"):
            if twin not in twins.values():
                twin.unlink()
    return list(twins.values())


def _twin_path(source: Path) -> Path:
    """As the programs find it."""
    spec = importlib.util.spec_from_file_location("compiled", ROOT / "keelmq" / "runtime" / "compiled.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path: Path = module.twin_path(source)
    return path


def build_pages() -> None:
    """The pages of the console and the analytics, in keelmq/web/static, if they are not those of the sources
    already. CannotBuildPages."""
    npm, is_there = shutil.which("npm"), (PAGES / "analytics" / "analytics.js").exists()
    if npm is None:
        if is_there:  # an image is built from a checkout that has built them
            return
        raise CannotBuildPages("no pages: they need npm and Node 20")
    # `npm ci` empties node_modules first, under the hands of whoever uses it.
    sources = _sources_of_pages()
    if is_there and BUILT_FROM.exists() and BUILT_FROM.read_text() == sources:
        return
    for step in NPM_STEPS:
        try:
            done = subprocess.run(
                [npm, *step],
                cwd=FRONTEND,
                capture_output=True,
                text=True,
                check=False,
                timeout=BUILD_SECONDS_MAX,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotBuildPages(f"no pages: npm {step[0]} did not run: {error}") from None
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()
            raise CannotBuildPages(f"no pages: npm {step[0]}: {lines[0][:ERROR_CHARACTERS_MAX]}")
    BUILT_FROM.write_text(sources)


def _sources_of_pages() -> str:
    """A digest of what the pages are built from."""
    digest = hashlib.sha256()
    for folder in (FRONTEND, FRONTEND / "public", FRONTEND / "src"):
        files = folder.rglob("*") if folder != FRONTEND else folder.glob("*")
        for path in sorted(each for each in files if each.is_file()):
            digest.update(f"{path.relative_to(FRONTEND)} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def check_tools() -> None:
    """The usual reasons, before a compiler puts them in many words."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if sys.platform != "win32" and shutil.which(compiler) is None:
        raise CannotCompile(f"no compiled modules: there is no C compiler ({compiler})")
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise CannotCompile(
            f"no compiled modules: Python's headers are not in {headers} (package python3-dev)"
        )
    for name in ("Cython", "setuptools"):
        if importlib.util.find_spec(name) is None:
            raise CannotCompile(f"no compiled modules: {name} is not installed")


def _compile(wanted: dict[Path, Path]) -> None:
    """In a process of its own: compilers talk."""
    with tempfile.TemporaryDirectory(prefix="keelmq-leaves-") as directory:
        command = [sys.executable, __file__, directory, *map(str, wanted)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS_MAX
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotCompile(f"the compiler did not run: {error}") from None
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()
            raise CannotCompile(f"no compiled modules: {lines[-1][:ERROR_CHARACTERS_MAX]}")
        for source, twin in wanted.items():
            twin.parent.mkdir(exist_ok=True)
            partial = twin.with_suffix(f".{os.getpid()}")
            shutil.copyfile(Path(directory) / f"{source.stem}{EXTENSION_SUFFIXES[0]}", partial)
            partial.rename(twin)  # two builds at once: both are whole


def _build(directory: Path, sources: list[Path]) -> None:
    """The child's part: X.py and X.pxd of every leaf to directory/X.*.so, the same bytes each time."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    for source in sources:
        for path in (source, source.with_suffix(".pxd")):
            shutil.copy(path, directory)
    os.chdir(directory)  # paths are in what is built
    extensions = [Extension(each.stem, [each.name], extra_compile_args=FLAGS) for each in sources]
    modules = cythonize(extensions, compiler_directives=DIRECTIVES, quiet=True)
    distribution = Distribution({"ext_modules": modules})
    build = distribution.get_command_obj("build_ext")
    build.build_lib, build.build_temp = ".", "objects"
    build.parallel = os.cpu_count()
    build.ensure_finalized()
    build.run()


def main() -> int:
    if sys.argv[1:] == ["pages"]:
        try:
            build_pages()
        except CannotBuildPages as error:
            print(f"keelmq set-up: {error}", file=sys.stderr)
            return 1
        return 0
    if sys.argv[1:]:
        _build(Path(sys.argv[1]), [Path(each).resolve() for each in sys.argv[2:]])
        return 0
    try:
        twins = compile_leaves()
    except CannotCompile as error:
        print(f"keelmq set-up: {error}; the interpreted ones are used", file=sys.stderr)
        return 0
    print(f"keelmq set-up: {len(twins)} modules compiled", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
