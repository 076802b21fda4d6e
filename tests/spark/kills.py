"""`keelmq analytics run` is killed at random moments and run again: its output must be that of a run that
nobody disturbed.

    python -m tests.spark.kills [--engine embedded] [--victim driver] [--count 20] [--seed 1]

is `make kill-analytics`. The victim is the driver, which on the embedded engine is also the engine, or a
process that computes for it: its Java, an executor, a server of Spark Connect. Everything of the killed run
ends before the next one begins.
"""

import argparse
import contextlib
import gzip
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from analytics.compaction.manifest import read_manifests
from tests.spark.key.files import write
from tests.spark.key.world import HOUR_MS, SILENCE_MS, START_TS, Plan, groups
from tests.spark.processes import FailedError, check, kill, start, wait_for_all
from tests.spark.programs import CONNECT, DRIVER, Program, environ, names, program

GROUPS = 2
RESUME_TS = START_TS + HOUR_MS + SILENCE_MS
PLAN = Plan(pause=START_TS + HOUR_MS, resume=RESUME_TS, end=RESUME_TS + 600_000)
END_S = 600
"""In which everything of a killed run has ended, and a run that nobody kills as well."""
MISSES = 4
"""So many rounds for a kill: a run may be faster than the first one was."""
TWICE = 0.3
"""So many of the kills are followed by a second one."""


@dataclass(frozen=True)
class Killed:
    """`at_s`: after the start. `exit_code` 0: the run went on without its victim, or had ended before."""

    at_s: float
    victim: str
    exit_code: int
    was_there: bool


class Killer:
    """Runs the program on one input, again and again. `folder`: for everything that it writes."""

    def __init__(self, engine: str, folder: Path, seed: int) -> None:
        self._engine, self._folder, self._dice = engine, folder, random.Random(seed)
        self._source = folder / "in"
        write(self._source, groups(GROUPS, PLAN, seed=seed), PLAN, seed=seed)
        with program(engine) as it:
            self._finish(it, self._folder / "first")  # starts whatever takes longer the first time
            began = time.monotonic()
            self._finish(it, self._folder / "whole")
            self._took_s = time.monotonic() - began
        self._expected = content(self._folder / "whole")

    def round(self, number: int, victim: str) -> list[Killed]:
        """Kills a run, perhaps another one that goes on with its output, and then lets one finish. Raises
        AssertionError if the output differs from that of a run that nobody disturbed."""
        out = self._folder / f"out-{number}"
        kills = []
        with ExitStack() as stack:
            it = stack.enter_context(program(self._engine))
            for _ in range(2 if self._dice.random() < TWICE else 1):
                kills.append(self._kill_one(it, out, victim))
                if self._engine == CONNECT:
                    it = stack.enter_context(program(self._engine))  # another server
            self._finish(it, out)
        differences = list(differing(self._expected, content(out)))
        assert not differences, f"round {number}, {kills}: {differences[:5]}"
        shutil.rmtree(out)
        return kills

    def _finish(self, it: Program, out: Path) -> None:
        log = self._folder / "log"
        process = start(it.command(self._source, out), environ(), log)
        wait_for_all(process, END_S)
        check(process, log)

    def _kill_one(self, it: Program, out: Path, victim: str) -> Killed:
        log = self._folder / "log-of-killed"
        process = start(it.command(self._source, out), environ(), log)
        at_s = self._dice.uniform(0.02, 0.98) * self._took_s
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(at_s)
        pids: list[int] = []
        while process.returncode is None and not (pids := it.pids(process.pid, victim)):
            with contextlib.suppress(subprocess.TimeoutExpired):  # its executors start late
                process.wait(0.5)
        was_there = bool(pids) and kill(self._dice.choice(pids))
        wait_for_all(process, END_S)
        if process.returncode and victim != DRIVER:
            _one_line(log)
        return Killed(round(at_s, 2), victim, process.returncode, was_there)


def _one_line(log: Path) -> None:
    """A run that lost what computes for it may fail, but says so in one line."""
    lines = [line for line in (log / "stderr").read_text().splitlines() if not line.startswith("analytics: ")]
    if len(lines) > 1 and any("Traceback" in line for line in lines):
        raise FailedError(f"a run that lost what computes for it wrote a stack trace: {lines[:20]}")


Content = Mapping[str, object]


def content(out: Path) -> Content:
    """Returns what a run has left: each roll-up to the byte, the rows of compacted telemetry and of each
    table of the newest run, and what is in its pages."""
    found: dict[str, object] = {}
    for path in sorted((out / "rollup").rglob("*.parquet")):
        found[str(path.relative_to(out))] = path.read_bytes()
    newest = max((out / "tables").glob("run=*"), key=lambda each: int(each.name.removeprefix("run=")))
    for path in sorted(newest.rglob("*.parquet")):
        found[f"tables/{path.parent.relative_to(newest)}"] = pq.ParquetFile(path).read().to_pylist()
    for hour in read_manifests(str(out)):  # a killed run may leave parts that no manifest names
        found[f"counts of {hour.hour_ts}"] = hour.counts
        for table, parts in hour.parts.items():
            rows = [row for part in parts for row in pq.ParquetFile(out / part.path).read().to_pylist()]
            found[f"compacted/{table}/{hour.hour_ts}"] = rows
    return found | _pages(out)


def _pages(out: Path) -> dict[str, object]:
    """Returns the files of the newest pages by their names. When they were made is in the index."""
    current = json.loads((out / "current.json").read_bytes())
    folder = out / "pages" / str(current["generation"])
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*.json.gz")):
        value = json.loads(gzip.decompress(path.read_bytes()))
        if path.name == "index.json.gz":
            value = {name: each for name, each in value.items() if name != "generated_ts"}
        found[f"pages/{path.relative_to(folder)}"] = value
    return found


def differing(expected: Content, found: Content) -> Iterator[str]:
    """Yields what is in one and not in the other, or differs."""
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            yield f"{name} is missing"
        elif name not in expected:
            yield f"{name} is left over"
        elif expected[name] != found[name]:
            yield f"{name} differs"


def main(arguments: Sequence[str]) -> int:
    """Runs the kills; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills")
    parser.add_argument("--engine", choices=names(), action="append", help="default: each that is installed")
    parser.add_argument("--victim", help="default: each of the engine")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    for engine in options.engine or names():
        with program(engine) as it:
            victims = (DRIVER, *it.victims)
        for victim in victims:
            if options.victim in (None, victim):
                print(kill_often(engine, victim, options.count, options.seed), flush=True)
    return 0


def kill_often(engine: str, victim: str, count: int, seed: int) -> str:
    """Kills until `count` runs were hit; returns what was done, in one line. Raises AssertionError if an
    output is not exact, and TimeoutError if most kills come when nothing runs any more."""
    kills: list[Killed] = []
    rounds = 0
    with tempfile.TemporaryDirectory(prefix="keelmq-kills-") as name:
        killer = Killer(engine, Path(name), seed)
        while sum(each.was_there for each in kills) < count:
            if rounds > MISSES * count:
                raise TimeoutError(f"{rounds} rounds, and these kills: {kills}")
            kills += killer.round(rounds, victim)
            rounds += 1
            done = f"{engine}, {victim}: output {rounds} is exact, after {kills[-1]}"
            print(done, file=sys.stderr, flush=True)
    hit = sum(each.was_there for each in kills)
    return f"{engine}, {victim}: {hit} runs killed, {rounds} outputs, all exact"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
