"""`keelmq sim`: many seeds of the simulated worlds, on several processes.

Worker processes have PYTHONHASHSEED=0: sets of text loop in the same order in each, so a seed is a run.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.sim.kinds import KINDS

PROGRESS_S = 2.0
RUNS_PER_PROCESS = 400
SHOWN_FAILURES = 5


@dataclass(frozen=True)
class Result:
    kind: str
    seed: int
    faults: int
    acknowledged: int
    failure: str | None
    story: list[str]


def run_one(job: tuple[str, int, bool]) -> Result:
    """In a worker. Anything that a run raises is its failure."""
    kind, seed, with_story = job
    try:
        run = KINDS[kind].run(seed)
    except Exception as error:  # noqa: BLE001 - reported, with its seed
        return Result(kind, seed, 0, 0, f"{type(error).__name__}: {error}", [])
    return Result(kind, seed, run.faults, run.acknowledged, None, run.story if with_story else [])


def results(jobs: Sequence[tuple[str, int, bool]], processes: int) -> Iterator[Result]:
    os.environ["PYTHONHASHSEED"] = "0"
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, maxtasksperchild=RUNS_PER_PROCESS) as pool:
        yield from pool.imap_unordered(run_one, jobs)


def repeat_command(kind: str, seed: int) -> str:
    return f"./run keelmq sim --kind {kind} --seed {seed}"


def run(kind: str | None, *, seeds: int, first: int, jobs: int | None, seed: int | None) -> int:
    """The exit code."""
    if kind is not None and kind not in KINDS:
        print(f"keelmq sim: no kind {kind!r}; there are {', '.join(KINDS)}", file=sys.stderr)
        return 2
    if seed is not None:
        return _run_with_story(kind or "controllers", seed)
    chosen = {kind: seeds} if kind else {each: round(seeds * KINDS[each].share) for each in KINDS}
    failed = 0
    for each, count in chosen.items():
        failed += _run_kind(each, range(first, first + count), jobs or os.cpu_count() or 1)
    return 1 if failed else 0


def _run_kind(kind: str, seeds: range, processes: int) -> int:
    """How many failed."""
    begun = shown = time.monotonic()
    done, failures, faults, acknowledged = 0, list[Result](), 0, 0
    for result in results([(kind, seed, False) for seed in seeds], processes):
        done += 1
        faults, acknowledged = faults + result.faults, acknowledged + result.acknowledged
        if result.failure is not None:
            failures.append(result)
            if len(failures) <= SHOWN_FAILURES:
                print(f"FAILED {kind} {result.seed}: {result.failure}", flush=True)
        if time.monotonic() - shown > PROGRESS_S:
            shown = time.monotonic()
            print(
                f"{kind}: {done} of {len(seeds)} seeds, {len(failures)} failed", file=sys.stderr, flush=True
            )
    seconds = time.monotonic() - begun
    print(
        f"SIM kind={kind} seeds={done} failed={len(failures)} faults={faults} acknowledged={acknowledged} "
        f"seconds={seconds:.0f}",
        flush=True,
    )
    for result in sorted(failures, key=lambda each: each.seed):
        print(f"repeat: {repeat_command(kind, result.seed)}")
        print(f"keep, with the fix, in tests/sim/seeds.txt: {kind} {result.seed}  # what it showed")
    return len(failures)


def _run_with_story(kind: str, seed: int) -> int:
    (result,) = results([(kind, seed, True)], 1)
    if result.failure is not None:
        print(f"FAILED {kind} {seed}: {result.failure}")
        return 1
    print("\n".join(result.story))
    print(f"SIM kind={kind} seed={seed} failed=0 faults={result.faults} acknowledged={result.acknowledged}")
    return 0
