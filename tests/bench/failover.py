"""Suite failover: how long a producer waits when the master is killed (the demo's), hangs, or hands over.

Promised: 150 ms (median) and 300 ms (p95) after a kill; no failed send and 200 ms (p99) in a planned switch;
1.2 s when the master hangs, each time.
"""

import asyncio
import re
import subprocess
import sys

from cli.lab.cluster import ClusterError
from tests.bench import failover_full, full_load_features, switch
from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results
from tests.bench.servers import ROOT

CALM, FULL = "calm", "full"
KILLS = 50
MEDIAN_PROMISED_MS = 150.0
PROMISED_MS = 300.0
PLANNED_PROMISED_MS = 200.0
HUNG_PROMISED_MS = 1_200.0
RUN_SECONDS_MAX = 600
TIMELINE = re.compile(r"timeline: median ms since SIGKILL: (?P<steps>.*)")
RESULT = re.compile(
    r"^RESULT .*\blost=(?P<lost>\d+)\b.*\bgap_ms_p50=(?P<p50>\d+)"
    r".*\bgap_ms_p95=(?P<p95>\d+).*\bgap_ms_max=(?P<max>\d+)"
)


def run(*, secure: bool = False, load: str = CALM, **full: int | bool) -> Results:
    """secure: with everything on that `keelmq init-security` switches on. load: CALM or FULL; full: the
    parameters of failover_full.run(), or, with features=True, of full_load_features.run()."""
    if load == FULL and full.pop("features", False):
        if other := sorted(full.keys() & {"offsets", "topics"}):
            raise BenchError(f"{', '.join(other)}: not with --features")
        return full_load_features.run(secure=secure, **full)  # type: ignore[arg-type]
    if load == FULL:
        return failover_full.run(secure=secure, **full)  # type: ignore[arg-type]
    if full:
        raise BenchError(f"{', '.join(sorted(full))}: only with --load {FULL}")
    command = [sys.executable, "-m", "cli.keelmq", "demo", "--kills", str(KILLS), "--plain"]
    command += ["--secure"] if secure else []
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        try:
            output, errors = demo.communicate(timeout=RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise BenchError(f"the demo with {KILLS} kills did not end within {RUN_SECONDS_MAX} s") from None
        finally:
            demo.terminate()  # after Ctrl-C; it deletes its data, which a kill leaves
    lines = output.strip().splitlines()
    result = RESULT.match(lines[-1]) if lines else None
    if result is None:
        raise BenchError(f"the demo failed: {(errors.strip() or output.strip())[-500:]}")
    if result["lost"] != "0":
        raise BenchError(f"messages were lost: {lines[-1]}")
    return {
        "kill_gap_ms": _gap(float(result["p50"]), MEDIAN_PROMISED_MS),
        "kill_gap_p95_ms": _gap(float(result["p95"])),
        "kill_gap_max_ms": _gap(float(result["max"])),
        **_timeline(output),
        **_switches(secure),
    }


def _switches(secure: bool) -> Results:
    try:
        found = asyncio.run(switch.measure(secure=secure))
    except ClusterError as error:
        raise BenchError(str(error)) from None
    if found.errors:
        sys.stderr.write(f"failed sends, the first: {found.errors[0]}\n")
    return {
        "planned_failed": Measurement(found.failed, "sends", 0, found.failed),
        "planned_p99_ms": _gap(found.p99_ms, PLANNED_PROMISED_MS),
        "planned_max_ms": _gap(found.max_ms, PLANNED_PROMISED_MS),
        "hung_gap_ms": _gap(found.hung_ms, HUNG_PROMISED_MS),
    }


def _timeline(output: str) -> Results:
    """The steps of a fail-over in ms since SIGKILL, medians of all kills: cli/lab/failover_timeline.py."""
    found = TIMELINE.search(output)
    if found is None:
        raise BenchError("the demo printed no timeline")
    steps = (step.partition("=") for step in found["steps"].split())
    return {f"kill_{name}_ms": _gap(float(ms), MEDIAN_PROMISED_MS) for name, _, ms in steps}


def _gap(value_ms: float, promised_ms: float = PROMISED_MS) -> Measurement:
    return Measurement(value_ms, "ms", promised_ms, value_ms / promised_ms)
