"""Suite analytics_stream: how old a live page is, and what the stream costs, under a steady load.

    python -m tests.bench.analytics_stream [--rate 5000] [--seconds 60] [--every 5] [--json]

freshness_s: from the time in a sample to the moment at which the page file has it; the 95th percentile of one
group's samples, after the first WARM_UP_S, in which an engine with Java compiles. cpu_s_per_million: of all
of the stream's processes, per million records. The load is a process of its own and does not count. kept_up:
rows written, by rows read; the record of a master is a row, and one more for each of its replicas.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.web.live_reader import LiveFiles
from keelmq.web.page_files import STEP_MS
from tests.bench.analytics_load import BROKERS, CLUSTER, PROBE, PROBE_FILE
from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results, print_json, print_table

RATE, SECONDS, EVERY_S = 5_000, 60.0, 5.0
WARM_UP_S = 45.0
START_S = 240.0
POLL_S = 0.2
DRAIN_S = 60.0
FRESHNESS_S_MAX = 15.0
CORES = 2
MINUTE_MS = STEP_MS["minute"]
ROWS_OF_A_GROUP = 5
"""From the three records of a second: the master, its two replicas as it sees them, and the two slaves."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Seen:
    """What a reader of the page saw. `samples`: of the probe's minutes, each with the time at which the page
    had so many."""

    batches: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(ms that it took, rows) by number."""
    samples: list[tuple[int, Counter[int]]] = field(default_factory=list)
    _rows: int = 0

    def look(self, out: Path) -> None:
        try:
            status = json.loads((out / "live" / "status.json").read_bytes())
        except FileNotFoundError:
            return
        number = status["batch"]
        if number < 0 or number in self.batches:
            return
        files = LiveFiles(out)
        head = files.head()
        series = None if head is None else files.series(head, CLUSTER, PROBE)
        at = wall_ms()
        self.batches[number] = status["took_ms"], status["rows"] - self._rows
        self._rows = status["rows"]
        if series is not None and "samples" in series.lag:
            counts = series.lag["samples"]
            first = series.start_ts // MINUTE_MS
            self.samples.append((at, Counter({first + i: n for i, n in enumerate(counts) if n})))

    def ages_s(self, written: list[int], *, from_ts: int) -> list[float]:
        """Returns how old each sample was when the page had it first, of those from a time on; infinity: it
        never had. `written`: the times of all samples."""
        before: Counter[int] = Counter()
        ages = []
        for ts in written:
            minute = ts // MINUTE_MS
            before[minute] += 1
            if ts >= from_ts:
                seen = (at for at, counts in self.samples if counts[minute] >= before[minute])
                ages.append((next(seen, float("inf")) - ts) / 1_000)
        return ages


def run(rate: int = RATE, seconds: float = SECONDS, every_s: float = EVERY_S) -> Results:
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as name:
        root = Path(name)
        (root / "in").mkdir()
        with _load(root / "in", rate) as load, _stream(root, every_s) as stream:
            seen = Seen()
            _watch(root, stream, seen, until=lambda: bool(seen.batches), seconds=START_S)
            begin = now_ms()
            _watch(root, stream, seen, until=lambda: now_ms() - begin > WARM_UP_S * 1_000, seconds=1e9)
            first, cpu_s, from_ts = max(seen.batches), _cpu_s(stream.pid), wall_ms()
            _watch(root, stream, seen, until=lambda: wall_ms() - from_ts > seconds * 1_000, seconds=1e9)
            load.kill()
            load.wait()
            elapsed_s, cpu_s = (wall_ms() - from_ts) / 1_000, _cpu_s(stream.pid) - cpu_s
            last = max(seen.batches)
            written = [int(line) for line in (root / "in" / PROBE_FILE).read_text().split()]
            drained = now_ms() + DRAIN_S * 1_000
            _watch(
                root, stream, seen, seconds=1e9,
                until=lambda: _complete(seen, len(written)) or now_ms() > drained,
            )  # fmt: skip
        ages = sorted(seen.ages_s(written, from_ts=from_ts))
        took = sorted(ms for number, (ms, _) in seen.batches.items() if first < number <= last)
        rows = sum(rows for number, (_, rows) in seen.batches.items() if first < number <= last)
    if not ages or not took or not rows:
        raise BenchError(f"nothing was measured in {elapsed_s:.0f} s: give a longer time")
    written_s = ROWS_OF_A_GROUP / len(BROKERS) * rate * elapsed_s
    return {
        "freshness_s": _against(ages[len(ages) * 95 // 100], "s", FRESHNESS_S_MAX),
        "freshness_s_median": _against(ages[len(ages) // 2], "s", FRESHNESS_S_MAX),
        "batch_s_median": _against(took[len(took) // 2] / 1_000, "s", every_s),
        "batch_s_max": _against(took[-1] / 1_000, "s", every_s),
        "cpu_share": _against(cpu_s / elapsed_s, "cores", CORES),
        "cpu_s_per_million": _against(cpu_s / (rate * elapsed_s / 1e6), "CPU s", CORES / (rate / 1e6)),
        "kept_up": _against(written_s / rows, "written/read", 1.0),
    }


def _against(value: float, unit: str, limit: float) -> Measurement:
    return Measurement(value, unit, limit, value / limit)


def _complete(seen: Seen, written: int) -> bool:
    return bool(seen.samples) and seen.samples[-1][1].total() >= written


def _watch(
    root: Path, stream: "subprocess.Popen[bytes]", seen: Seen, *, until: Callable[[], bool], seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        if stream.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"the stream wrote no page: {(root / 'stream.log').read_text()[-2_000:]}")
        seen.look(root / "out")
        time.sleep(POLL_S)


@contextmanager
def _load(root: Path, rate: int) -> "Iterator[subprocess.Popen[bytes]]":
    command = [sys.executable, "-m", "tests.bench.analytics_load", str(root), str(rate)]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def _stream(root: Path, every_s: float) -> "Iterator[subprocess.Popen[bytes]]":
    command = [
        *(sys.executable, "-m", "cli.keelmq", "analytics", "stream", "--every", str(every_s)),
        *("--input", str(root / "in"), "--output", str(root / "out")),
    ]
    with (root / "stream.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _cpu_s(session: int) -> float:
    """CPU seconds of a session's processes and of their ended children."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended
        if int(fields[3]) == session:
            total += sum(map(int, fields[11:15]))
    return total / TICKS


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rate", type=int, default=RATE, help="records a second")
    options.add_argument("--seconds", type=float, default=SECONDS, help="after the warm-up")
    options.add_argument("--every", type=float, default=EVERY_S, help="seconds from one batch to the next")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    results = run(given.rate, given.seconds, given.every)
    print_table(results)
    if given.json:
        print_json(results)


if __name__ == "__main__":
    main()
