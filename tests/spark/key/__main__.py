"""Compares what each engine computes from messy telemetry with the truth.

    python -m tests.spark.key [--engine spark] [--groups 18] [--seed 1] [--keep DIRECTORY]

is `make answer-key`.

Prints a line per engine of this Python environment: comparisons, differences, CPU, memory. Ends with exit
code 1 if there is a difference.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.spark.key.check import compare
from tests.spark.key.expected import SHOWN_MAX
from tests.spark.key.files import write
from tests.spark.key.world import Plan, groups
from tests.spark.processes import measure
from tests.spark.programs import environ, names, program


def main() -> int:
    """Runs the comparison; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.key")
    parser.add_argument("--engine", choices=names(), action="append", help="default: each that is installed")
    parser.add_argument("--groups", type=int, default=18)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="write the telemetry and the outputs here, and keep them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="keelmq-key-") as name:
        return _compare(options.keep or Path(name), options)


def _compare(folder: Path, options: argparse.Namespace) -> int:
    plan, count, seed = Plan(), options.groups, options.seed
    written = write(folder / "in", groups(count, plan, seed=seed), plan, seed=seed)
    counts = (written.rows, written.duplicates, written.bad_lines)
    records, duplicates, bad = (f"{sum(each.values()):,}" for each in counts)
    print(f"{count} groups, seed {seed}: {records} records, {duplicates} duplicates, {bad} bad lines")
    print(_line("engine", "comparisons", "differences", "CPU s", "wall s", "peak MiB"))
    failed = False
    for name in options.engine or names():
        out = folder / name
        with program(name) as it:
            command = it.command(folder / "in", out)
            took = measure(command, environ(), folder / f"{name}-output", it.servers())
        found = compare(out, written, plan)
        numbers = (f"{took.cpu_s:.1f}", f"{took.wall_s:.1f}", f"{took.peak_bytes / (1 << 20):,.0f}")
        print(_line(name, f"{found.values:,}", f"{len(found.differences):,}", *numbers), flush=True)
        for each in found.differences[:SHOWN_MAX]:
            print(f"  {each}")
        failed = failed or bool(found.differences)
    return int(failed)


def _line(*cells: str) -> str:
    return cells[0].ljust(12) + "".join(each.rjust(13) for each in cells[1:])


if __name__ == "__main__":
    sys.exit(main())
