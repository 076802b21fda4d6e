"""Suite failover: how long the demo's producer waits when the master is killed; promised are 300 ms."""

import re
import subprocess
import sys

from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results
from tests.bench.servers import ROOT

KILLS = 10
PROMISED_MS = 300.0
RUN_SECONDS_MAX = 600
RESULT = re.compile(
    r"^RESULT .*\blost=(?P<lost>\d+)\b.*\bgap_ms_p50=(?P<p50>[\d.]+).*\bgap_ms_max=(?P<max>[\d.]+)"
)


def run() -> Results:
    command = [sys.executable, "-m", "cli.keelmq", "demo", "--kills", str(KILLS), "--plain"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"the demo with {KILLS} kills did not end within {RUN_SECONDS_MAX} s") from None
    lines = done.stdout.strip().splitlines()
    result = RESULT.match(lines[-1]) if lines else None
    if result is None:
        raise BenchError(f"the demo failed: {(done.stderr.strip() or done.stdout.strip())[-500:]}")
    if result["lost"] != "0":
        raise BenchError(f"messages were lost: {lines[-1]}")
    return {
        "kill_gap_ms": _gap(float(result["p50"])),
        "kill_gap_max_ms": _gap(float(result["max"])),
    }


def _gap(value_ms: float) -> Measurement:
    return Measurement(value_ms, "ms", PROMISED_MS, value_ms / PROMISED_MS)
