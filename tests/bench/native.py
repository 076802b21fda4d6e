"""The C helpers of the benchmarks, compiled on demand into a cache directory of this user."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

FLAGS = ["-O2", "-Wall", "-Wextra"]
RUN_SECONDS_MAX = 120


class BenchError(Exception):
    """The benchmark cannot run here; one line for the user."""


@lru_cache
def program(name: str) -> Path:
    """The executable of tests/bench/NAME.c."""
    source = Path(__file__).with_name(f"{name}.c")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    directory = Path(tempfile.gettempdir()) / f"keelmq-bench-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise BenchError(f"{directory} belongs to somebody else")
    target = directory / f"{name}-{digest}"
    if not target.exists():
        _compile(source, target)
    return target


def _compile(source: Path, target: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BenchError("no C compiler (cc, gcc, clang) is installed: this suite needs one")
    partial = target.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        [compiler, *FLAGS, "-o", partial, source], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchError(f"{source.name} does not compile: {done.stderr.strip().splitlines()[0]}")
    partial.replace(target)


def run_json(name: str, *arguments: object, cpu: int | None = None) -> dict[str, Any]:
    """Run it, on that core if it is not None; its output is one JSON object."""
    prefix = [] if cpu is None or shutil.which("taskset") is None else ["taskset", "-c", str(cpu)]
    done = subprocess.run(
        [*prefix, str(program(name)), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"{name}: {done.stderr.strip() or done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
