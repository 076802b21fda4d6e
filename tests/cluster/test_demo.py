"""The demo as a user runs it: real processes, SIGKILL, and an exit code that means something."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keelmq.remoting.records import RECORDS, ClockSample, ConsumerLag, HaSample, SendGap, decode_record

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

SELDOM = {ClockSample, ConsumerLag}
"""Written less often than a demo with one kill takes."""
ROOT = Path(__file__).resolve().parent.parent.parent
RESULT = re.compile(
    r"RESULT sent=(\d+) acked=(\d+) lost=0 duplicated=\d+ kills=1"
    r" gap_ms_p50=(\d+) gap_ms_p95=\d+ gap_ms_max=(\d+)"
)


def demo(tmp_path: Path, *args: str) -> "subprocess.Popen[str]":
    return keelmq(tmp_path, "demo", "--plain", *args)


def keelmq(tmp_path: Path, *args: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "cli.keelmq", *args],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def left_in(directory: Path) -> list[Path]:
    """Returns what is in a directory for temporary files, but for the user's file of locked ports."""
    return [path for path in directory.iterdir() if not path.name.startswith("keelmq-ports.")]


def processes_below(directory: Path) -> list[str]:
    """Command lines that name the directory: what the demo left behind."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if str(directory) in line and "-m cli.keelmq" not in line:
            found.append(line)
    return found


@pytest.mark.parametrize("options", [(), ("--grpc",)], ids=["remoting", "grpc"])
def test_one_kill_loses_nothing_and_leaves_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    with demo(tmp_path, "--kills", "1", *options) as process:
        output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, output + errors
    result = RESULT.fullmatch(output.splitlines()[-1])
    assert result, output
    sent, acked, gap_p50, gap_max = map(int, result.groups())
    assert sent >= acked > 1_000 and 0 < gap_p50 == gap_max < 10_000
    assert "SIGKILL to the controller leader" in output
    assert re.search(r"slowest send took \d{1,3} ms, \d+ retried, 0 failed", output), output
    assert processes_below(tmp_path) == []
    check_what_it_left(tmp_path, output)


def check_what_it_left(tmp_path: Path, output: str) -> None:
    """Telemetry and nothing else; in it, what was printed."""
    (directory,) = left_in(tmp_path)
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert files and all(path.suffix == ".jsonl" or path.suffix == ".open" for path in files), files
    records = [decode_record(line) for path in files for line in path.read_bytes().splitlines()]
    kinds = {type(record) for record in records}
    assert kinds | SELDOM == set(RECORDS)
    (gap,) = (record for record in records if isinstance(record, SendGap))
    assert f"SIGKILL to the master {gap.program} " in output
    assert f"the producer waited {gap.gap_ms} ms" in output
    masters = {
        record.broker_id for record in records if isinstance(record, HaSample) and record.role == "master"
    }
    assert gap.broker_id in masters and len(masters) == 2
    assert f"keelmq report {directory}\n" in output


@pytest.mark.parametrize(
    ("options", "moment", "number"),
    [
        ((), "the producer starts", signal.SIGTERM),
        (("--keep",), "starting", signal.SIGHUP),  # a closed terminal; the programs would outlive the demo
        (("--container",), "", signal.SIGTERM),
    ],
    ids=["sigterm", "sighup", "container"],
)
def test_a_signal_ends_everything(
    tmp_path: Path, options: tuple[str, ...], moment: str, number: signal.Signals
) -> None:
    with demo(tmp_path, *options) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if moment in line:
                break
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130 and "Traceback" not in errors, errors
    assert processes_below(tmp_path) == [] and left_in(tmp_path) == []


def test_a_signal_ends_the_demo_of_a_benchmark(tmp_path: Path) -> None:
    with keelmq(tmp_path, "bench", "failover") as process:
        deadline = time.monotonic() + 30
        while not any(tmp_path.glob("keelmq-demo-*/broker-2.log")):
            assert time.monotonic() < deadline
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.02)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert "Traceback" not in errors, errors
    assert processes_below(tmp_path) == [] and left_in(tmp_path) == []
