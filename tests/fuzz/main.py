"""`keelmq fuzz frames|http|security|grpc`: garbage for every handler and every check, and a verdict.

Rounds of frames do not depend on each other, so each core runs its share of them in a process of its own:
the same rounds, whatever the number of cores.
"""

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import reduce

from tests.fuzz.frames import ROUND_FRAMES, Report, fuzz
from tests.fuzz.targets import TARGETS


def run(what: str, *, count: int, seed: int, target: str | None) -> int:
    """The exit code."""
    if what == "frames":
        return run_frames(count, seed, target)
    if what == "http":
        from tests.fuzz.http import run_http

        return run_http(count, seed)
    if what == "security":
        return run_security(count, seed, target)
    if what == "grpc":
        return run_grpc(count, seed)
    print(f"keelmq fuzz: no fuzzer {what!r}; there are frames, http, security and grpc", file=sys.stderr)
    return 2


@dataclass(frozen=True)
class Share:
    """The rounds of one process."""

    seed: int
    count: int
    names: tuple[str, ...]


def run_frames(count: int, seed: int, target: str | None) -> int:
    if target is not None and target not in TARGETS:
        print(f"keelmq fuzz: no target {target!r}; there are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    names = tuple(TARGETS) if target is None else (target,)
    shares = list(shares_of(Share(seed, count, names), len(os.sched_getaffinity(0))))
    begun = time.perf_counter()
    with ProcessPoolExecutor(len(shares)) as processes:
        reports = list(processes.map(_run, shares))
    report = reduce(Report.with_another, reports)
    for finding in report.findings:
        print(finding)
        print(f"repeat: ./run keelmq fuzz frames --count {ROUND_FRAMES}, with the target and seed above\n")
    seconds, cpu_seconds = time.perf_counter() - begun, sum(os.times()[:4])
    print(
        report.line(),
        f"processes={len(shares)} seconds={seconds:.0f} frames_per_s={report.frames / seconds:.0f} "
        f"frames_per_cpu_s={report.frames / cpu_seconds:.0f}",
    )
    return 1 if report.findings else 0


def run_security(count: int, seed: int, target: str | None) -> int:
    """One process: an input must not disturb the CPU time of another."""
    from tests.fuzz.security import ROUND_INPUTS
    from tests.fuzz.security import fuzz as fuzz_security
    from tests.fuzz.security_targets import makers

    made = makers()
    if target is not None and target not in made:
        print(f"keelmq fuzz: no target {target!r}; there are {', '.join(made)}", file=sys.stderr)
        return 2
    chosen = [(name, make) for name, make in made.items() if target in (None, name)]
    report = fuzz_security(seed, count, chosen, progress=_progress)
    for finding in report.findings:
        print(finding)
        print(f"repeat: ./run keelmq fuzz security --count {ROUND_INPUTS}, with the target and seed above\n")
    print(report.line())
    return 1 if report.findings else 0


def run_grpc(count: int, seed: int) -> int:
    from tests.fuzz.grpc import ROUND_INPUTS
    from tests.fuzz.grpc import fuzz as fuzz_grpc

    report = fuzz_grpc(seed, count, progress=_progress)
    for finding in report.findings:
        print(finding)
        print(f"repeat: ./run keelmq fuzz grpc --count {ROUND_INPUTS}, with the seed above\n")
    print(report.line())
    return 1 if report.findings else 0


def shares_of(whole: Share, processes: int) -> Iterator[Share]:
    """Whole rounds, with the seeds and targets that they have in one process; never none."""
    rounds = max(1, -(-whole.count // ROUND_FRAMES))
    size = -(-rounds // processes)
    for first in range(0, rounds, size):
        count = min(size * ROUND_FRAMES, whole.count - first * ROUND_FRAMES)
        turn = first % len(whole.names)
        yield Share(whole.seed + first, count, whole.names[turn:] + whole.names[:turn])


def _run(share: Share) -> Report:
    return fuzz(share.seed, share.count, share.names, progress=_progress)


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
