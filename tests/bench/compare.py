"""Compares the figures of this checkout with those of an older commit: `make bench-compare BASE=<commit>`.

The commit is checked out under build/, with its own environment. Both trees run each suite in turns (base,
new, new, base, ...), because a slow minute of the machine must meet both. A figure is judged by its value
against the yardstick of the same run, and by the ratio of the two trees in each pair: it is better or worse
only if every pair says so and the median pair by more than the tolerance.
"""

import argparse
import io
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.every_suite import SuiteError, run_suite
from tests.bench.report import machine
from tests.bench.servers import ROOT

ROUNDS = 3
TOLERANCE = 0.05
THINGS = frozenset({"msg", "MB", "replies", "events", "records", "rows", "sends"})
"""What rates count. More of them per time is better; less of any other unit (ms, J, MiB, CPU s, ...)."""


@dataclass(frozen=True)
class Verdict:
    """ratios: the new tree's score by the base's, one for each pair; None if a score of the base was 0."""

    name: str
    word: str
    ratios: tuple[float | None, ...]


def score(figure: Mapping[str, Any]) -> float:
    """The value by the yardstick of its run, or the value alone if it has none."""
    yardstick = float(figure["yardstick"])
    return float(figure["value"]) / yardstick if yardstick else float(figure["value"])


def is_rate(unit: str) -> bool:
    counted, slash, _ = unit.partition("/")
    return bool(slash) and counted in THINGS


def judge(
    name: str,
    base: Sequence[Mapping[str, Any]],
    new: Sequence[Mapping[str, Any]],
    tolerance: float = TOLERANCE,
) -> Verdict:
    """base and new: one figure for each round, paired by position."""
    pairs = [(score(old), score(each)) for old, each in zip(base, new, strict=True)]
    ratios = tuple(each / old if old else None for old, each in pairs)
    changes = [each / old - 1 if old else float((each > 0) - (each < 0)) for old, each in pairs]
    gains = changes if is_rate(str(new[0]["unit"])) else [-change for change in changes]
    median = statistics.median(gains)
    if median > tolerance and min(gains) > 0:
        return Verdict(name, "better", ratios)
    if median < -tolerance and max(gains) < 0:
        return Verdict(name, "worse", ratios)
    return Verdict(name, "same", ratios)


def verdicts(
    base: Sequence[Mapping[str, Mapping[str, Any]]],
    new: Sequence[Mapping[str, Mapping[str, Any]]],
    tolerance: float = TOLERANCE,
) -> list[Verdict]:
    """base, new: all figures of each round. Names that one tree lacks are `added` or `gone`."""
    found = []
    for name in {**base[0], **new[0]}:
        if any(name not in each for each in base):
            found.append(Verdict(name, "added", ()))
        elif any(name not in each for each in new):
            found.append(Verdict(name, "gone", ()))
        else:
            found.append(judge(name, [each[name] for each in base], [each[name] for each in new], tolerance))
    return found


def checkout(commit: str) -> Path:
    """The commit's files under build/, with an environment. Raises SystemExit with what is wrong."""
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if found.returncode != 0:
        sys.exit(f"bench-compare: {commit!r} is no commit of this checkout; `git log` lists them")
    name = found.stdout.strip()
    directory = ROOT / "build" / "bench-base" / name[:12]
    if not (directory / "run").exists():
        directory.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", name], cwd=ROOT, capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(directory, filter="data")
    prepared = subprocess.run(["./run", "python", "-c", ""], cwd=directory, check=False)
    if prepared.returncode != 0:
        sys.exit(f"bench-compare: the environment of {commit} cannot be set up in {directory}")
    return directory


def _rounds(suite: str, base: Path, rounds: int) -> tuple[list[Any], list[Any]]:
    """The figures of the base and of this tree."""
    old: list[Any] = []
    new: list[Any] = []
    trees = [(old, base, str(base / ".venv/bin/python")), (new, ROOT, sys.executable)]
    for number in range(rounds):
        for figures, root, python in trees if number % 2 == 0 else reversed(trees):
            sys.stderr.write(
                f"{suite}, round {number + 1} of {rounds}, {'new' if root == ROOT else 'base'} ...\n"
            )
            figures.append(run_suite(suite, root, python))
    return old, new


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench-compare", description="Compares two trees by paired ratios.")
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("suites", nargs="+", help="suites of keelmq bench")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="pairs for each suite (default: %(default)s)"
    )
    parser.add_argument(
        "--tolerance", type=float, default=TOLERANCE, help="a smaller change is none (%(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    base = checkout(options.base)
    print(machine())
    is_worse = False
    for suite in options.suites:
        try:
            old, new = _rounds(suite, base, options.rounds)
        except SuiteError as error:
            sys.exit(f"bench-compare: {suite}: {error}")
        print(f"\n{suite}: new by base in each pair")
        for each in verdicts(old, new, options.tolerance):
            is_worse = is_worse or each.word == "worse"
            ratios = "  ".join("-" if ratio is None else f"{ratio:.3f}" for ratio in each.ratios)
            print(f"  {each.name:<32} {each.word:<7} {ratios}")
    return 1 if is_worse else 0


if __name__ == "__main__":
    sys.exit(main())
