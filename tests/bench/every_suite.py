"""`keelmq bench all`: one suite after the other, each in a process of its own, so that none inherits the
memory, imports or garbage collector settings of another. A suite that fails is named; the others go on."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.report import machine
from tests.bench.servers import ROOT

SUITE_SECONDS_MAX = 3_600


class SuiteError(Exception):
    """The suite ended without figures; the text is the end of what it wrote."""


def run_suite(suite: str, root: Path = ROOT, python: str = sys.executable) -> dict[str, dict[str, Any]]:
    """The figures of the suite of the checkout `root`: by name, the fields of report.Measurement. Raises
    SuiteError."""
    command = [python, "-m", "tests.bench.main", suite, "--json"]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=SUITE_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise SuiteError(f"no result within {SUITE_SECONDS_MAX} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        written = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise SuiteError(written[-1] if written else f"exit code {done.returncode}, and no output")
    figures: dict[str, dict[str, Any]] = json.loads(lines[-1])
    return figures


def run_all(suites: Sequence[str], *, as_json: bool) -> int:
    """The exit code: 1 if a suite failed. The JSON object is the last line of stdout: `machine`, `figures` by
    suite and name, `failed` by suite."""
    figures: dict[str, dict[str, dict[str, Any]]] = {}
    failed: dict[str, str] = {}
    print(machine())
    for number, suite in enumerate(suites, 1):
        sys.stderr.write(f"{suite} ({number} of {len(suites)}) ...\n")
        begin = time.monotonic()
        try:
            figures[suite] = run_suite(suite)
        except SuiteError as error:
            failed[suite] = str(error)
            print(f"\n{suite}: failed: {error}")
            continue
        print(f"\n{suite} ({time.monotonic() - begin:.0f} s)")
        _print(figures[suite])
    if as_json:
        print(json.dumps({"machine": machine(), "figures": figures, "failed": failed}, sort_keys=True))
    return 1 if failed else 0


def _print(figures: dict[str, dict[str, Any]]) -> None:
    width = max(len(name) for name in figures)
    for name, each in figures.items():
        value = f"{each['value']:>14,.3f} {each['unit']:<14}"
        print(f"  {name:{width}} {value} {each['yardstick']:>14,.3f} {each['ratio']:>8.3f}")
