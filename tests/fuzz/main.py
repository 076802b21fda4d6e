"""`keelmq fuzz frames|http`: garbage for every handler, and a verdict."""

import sys
import time

from tests.fuzz.frames import ROUND_FRAMES, fuzz
from tests.fuzz.targets import TARGETS


def run(what: str, *, count: int, seed: int, target: str | None) -> int:
    """The exit code."""
    if what == "frames":
        return run_frames(count, seed, target)
    if what == "http":
        from tests.fuzz.http import run_http

        return run_http(count, seed)
    print(f"keelmq fuzz: no fuzzer {what!r}; there are frames and http", file=sys.stderr)
    return 2


def run_frames(count: int, seed: int, target: str | None) -> int:
    if target is not None and target not in TARGETS:
        print(f"keelmq fuzz: no target {target!r}; there are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    begun = time.process_time()
    report = fuzz(seed, count, tuple(TARGETS) if target is None else (target,), progress=_progress)
    for finding in report.findings:
        print(finding)
        print(f"repeat: ./run keelmq fuzz frames --count {ROUND_FRAMES}, with the target and seed above\n")
    print(report.line(), f"frames_per_cpu_s={report.frames / (time.process_time() - begun):.0f}")
    return 1 if report.findings else 0


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
