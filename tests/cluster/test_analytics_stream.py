"""`keelmq analytics stream` as a process: a page that follows, and exact totals over kill -9.

KILLS=20 (make kill-stream) kills it so many times instead of a few.
"""

import importlib.util
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from keelmq.remoting.records import HaSample, ReplicaSample, encode_record
from keelmq.runtime.clock import wall_ms
from keelmq.web.live_files import FLEET, LiveFleet
from keelmq.web.live_reader import LiveFiles
from keelmq.web.page_files import STEP_MS, unpacked

pytest.importorskip("pyspark")

from analytics.live.app import make_directory

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parent.parent.parent
MINUTE_MS = STEP_MS["minute"]
GROUPS = 20
TICK_S = 0.2
KILLS = int(os.environ.get("KILLS", "2"))
IS_EMBEDDED = importlib.util.find_spec("pysail") is not None
OF_ENGINE = () if IS_EMBEDDED else ("--engine", "spark", "--conf", "spark.driver.memory=1g")
Key = tuple[str, int]


class Fleet(threading.Thread):
    """Masters of GROUPS groups that write samples, one group a tick, into files that grow."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self._root, self._stopped = root, threading.Event()
        self.counts: Counter[Key] = Counter()
        """Samples by group and minute."""

    def run(self) -> None:
        number = 0
        while not self._stopped.wait(TICK_S / GROUPS):
            number += 1
            self._write(f"group-{number % GROUPS}", wall_ms(), number)

    def _write(self, group: str, ts: int, number: int) -> None:
        sample = HaSample(
            ts=ts,
            cluster_name="C",
            broker_name=group,
            broker_id=1,
            role="master",
            master_epoch=1,
            max_offset=number * 100,
            confirm_offset=number * 100,
            replicas=(ReplicaSample(broker_id=2, ack_offset=number * 100, lag_ms=0, in_sync=True),),
        )
        hour = time.strftime("dt=%Y-%m-%d/hour=%H", time.gmtime(ts / 1000))
        folder = self._root / group / "telemetry" / "ha_sample" / hour
        folder.mkdir(parents=True, exist_ok=True)
        line = encode_record(sample)
        doubled = number % 7 == 0
        with (folder / f"{group}-1.jsonl.open").open("ab") as file:
            file.write(line * (1 + doubled))
        self.counts[group, ts // MINUTE_MS] += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path / "in")
    fleet.start()
    yield fleet
    fleet.stop()


def stream(tmp_path: Path) -> "subprocess.Popen[bytes]":
    command = [
        *(sys.executable, "-m", "cli.keelmq", "analytics", "stream"),
        *("--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--every", "2"),
        *OF_ENGINE,
    ]
    with (tmp_path / "stream.log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Python and its Java."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def until(condition: Callable[[], bool], tmp_path: Path, seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, (tmp_path / "stream.log").read_text()[-3_000:]
        threading.Event().wait(0.1)


def live(tmp_path: Path) -> Counter[Key]:
    """Samples by group and minute, as the pages have them."""
    found: Counter[Key] = Counter()
    files = LiveFiles(tmp_path / "out")
    head = files.head()
    for number in range(GROUPS) if head is not None else ():
        series = files.series(head, "C", f"group-{number}")
        for at, samples in enumerate(series.lag["samples"] if series is not None else ()):
            if samples:
                found[f"group-{number}", series.start_ts // MINUTE_MS + at] = samples
    return found


def fleet_groups(tmp_path: Path) -> set[str]:
    path = tmp_path / "out" / FLEET
    fleet = msgspec.json.decode(unpacked(path.read_bytes()), type=LiveFleet)
    return {group.broker_name for group in fleet.groups if group.ms_p99[-1] is not None}


def test_exact_totals_over_kill_9(tmp_path: Path, fleet: Fleet) -> None:
    """Killed at random moments: while it starts, takes a batch, writes files, or waits."""
    dice = random.Random(KILLS)
    until(lambda: len(fleet.counts) >= GROUPS, tmp_path)
    process = stream(tmp_path)
    try:
        until(lambda: live(tmp_path).total() > 0, tmp_path)
        for _ in range(KILLS):
            threading.Event().wait(dice.uniform(0, 6))
            assert process.poll() is None, (tmp_path / "stream.log").read_text()[-3_000:]
            kill(process)
            process = stream(tmp_path)
        before = live(tmp_path).total()
        until(lambda: live(tmp_path).total() > before + 500, tmp_path)
        fleet.stop()
        until(lambda: live(tmp_path) == fleet.counts, tmp_path, 40)
        assert fleet_groups(tmp_path) == {group for group, _ in fleet.counts}
        before = (tmp_path / "stream.log").stat().st_size
        os.killpg(process.pid, signal.SIGTERM)  # a Java gets it, too
        code, log = process.wait(30), (tmp_path / "stream.log").read_bytes()[before:].decode()
        assert code == 0 and "Traceback" not in log and "could not be stopped" not in log, log[-3_000:]
    finally:
        if process.poll() is None:
            kill(process)


@pytest.mark.skipif(IS_EMBEDDED, reason="the embedded engine has no Java")
def test_a_java_that_is_killed_ends_it_with_one_line(tmp_path: Path, fleet: Fleet) -> None:
    process = stream(tmp_path)
    try:
        until(lambda: live(tmp_path).total() > 0, tmp_path)
        assert fleet.counts
        before = (tmp_path / "stream.log").stat().st_size
        subprocess.run(["pkill", "-KILL", "-x", "-g", str(process.pid), "java"], check=True)
        code, log = process.wait(30), (tmp_path / "stream.log").read_bytes()[before:].decode()
        assert code == 1 and "Traceback" not in log, log[-3_000:]
        assert "Java process is gone: killed, or out of memory" in log
    finally:
        if process.poll() is None:
            kill(process)


def test_an_error_ends_it_with_one_line(tmp_path: Path, fleet: Fleet) -> None:
    until(lambda: len(fleet.counts) >= GROUPS, tmp_path)
    make_directory(tmp_path / "out" / "live", streams=not IS_EMBEDDED)
    (tmp_path / "out" / "live" / "rollup").write_bytes(b"")
    process = stream(tmp_path)
    try:
        code, log = process.wait(60), (tmp_path / "stream.log").read_text()
        assert code == 1 and "Traceback" not in log and "\tat " not in log, log[-3_000:]
        last = log.splitlines()[-1]
        assert last.startswith(f"keelmq: {tmp_path}/out/live/rollup") and "irectory" in last
    finally:
        if process.poll() is None:
            kill(process)
