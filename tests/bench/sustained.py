"""Full load for minutes: does the dispatch of the replicas keep up, and does the memory of the brokers stay?

`make sustained-load SECONDS=600` runs three brokers that acknowledge with all of the SyncStateSet under the
senders of cli/lab/full_load.py. It samples every broker once a second:

- backlog: bytes that are confirmed and not dispatched, divided by the bytes per second that the master
  appended over the run: how long a promotion at that moment would have to dispatch;
- memory: what the system could not get back by writing it to files, the median of the last quarter of the
  samples against that of the second quarter.

Ten minutes write more than a disk has: every file of the log that is full is due for deletion.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from cli.lab.cluster import Program
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Ok
from keelmq.remoting.operations.broker import GET_BROKER_RUNTIME_INFO
from tests.bench.failover_full import full_load
from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results, print_json, print_table
from tests.bench.resident import own_kib
from tests.bench.switch import Group

SECONDS: Final = 600
EVERY_S: Final = 1.0
TIMEOUT_MS: Final = 10_000
BACKLOG_PROMISED_S: Final = 1.0
GROWTH_PROMISED: Final = 1.1
ENDLESS: Final = 10**12
SETTINGS: Final = {
    "mappedFileSizeCommitLog": str(256 << 20),
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "fileReservedTime": "0",
}


class Sample(NamedTuple):
    """One broker at one time. t: monotonic seconds; end, behind: bytes; kib: memory of its own."""

    t: float
    end: int
    behind: int
    kib: float


Samples = dict[str, list[Sample]]


def results_of(samples: Samples, queued: int) -> Results:
    """queued: messages of the topic after the run. BenchError: too few samples for quarters."""
    if min(map(len, samples.values())) < 8:
        raise BenchError("the run was too short: less than eight samples of a broker")
    rate = max((each[-1].end - each[0].end) / (each[-1].t - each[0].t) for each in samples.values())
    behind = sorted(sample.behind for each in samples.values() for sample in each)
    growth = max(_growth([sample.kib for sample in each]) for each in samples.values())
    most = max(sample.kib for each in samples.values() for sample in each) / 1024
    longest = behind[-1] / rate
    return {
        "load_mb_per_s": Measurement(rate / 1e6, "MB/s", rate / 1e6, 1.0),
        "messages": Measurement(queued, "messages", queued, 1.0),
        "backlog_p50_ms": _backlog(behind[len(behind) // 2] / rate),
        "backlog_p99_ms": _backlog(behind[int(len(behind) * 0.99)] / rate),
        "backlog_max_ms": _backlog(longest),
        "memory_growth": Measurement(growth, "x", GROWTH_PROMISED, growth / GROWTH_PROMISED),
        "memory_max_mib": Measurement(most, "MiB", most, 1.0),
    }


def _backlog(seconds: float) -> Measurement:
    return Measurement(1_000 * seconds, "ms", 1_000 * BACKLOG_PROMISED_S, seconds / BACKLOG_PROMISED_S)


def _growth(kib: Sequence[float]) -> float:
    quarter = len(kib) // 4
    return median(kib[-quarter:]) / median(kib[quarter : 2 * quarter])


async def measure(seconds: float) -> Results:
    """BenchError: a broker did not answer, or full load ended by itself."""
    with tempfile.TemporaryDirectory(prefix="keelmq-sustained-") as directory:
        async with Group(Path(directory), SETTINGS) as group:
            client = RemotingClient()
            samples: Samples = {program.name: [] for program in group.cluster.brokers}
            try:
                with full_load(group.cluster.namesrv_addr, ENDLESS) as process:
                    until = time.monotonic() + seconds
                    while time.monotonic() < until:
                        await asyncio.sleep(EVERY_S)
                        for program in group.cluster.brokers:
                            samples[program.name].append((await _sample(client, program))[0])
                        if process.poll() is not None:
                            raise BenchError(f"full load ended with exit code {process.returncode}")
                queued = max([(await _sample(client, each))[1] for each in group.cluster.brokers])
            finally:
                await client.close()
    return results_of(samples, queued)


async def _sample(client: RemotingClient, program: Program) -> tuple[Sample, int]:
    outcome = await client.call(program.address, GET_BROKER_RUNTIME_INFO, Empty(), timeout_ms=TIMEOUT_MS)
    if not isinstance(outcome, Ok) or outcome.body is None or program.process is None:
        raise BenchError(f"{program.name} did not tell its runtime information: {outcome}")
    table = outcome.body.table
    sample = Sample(
        time.monotonic(),
        int(table["commitLogMaxOffset"]),
        int(table["dispatchBehindBytes"]),
        own_kib(program.process.pid),
    )
    return sample, int(table["msgPutTotalTodayNow"])


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--seconds", type=float, default=SECONDS)
    options.add_argument("--json", action="store_true", help="one JSON object as the last line")
    given = options.parse_args()
    try:
        results = asyncio.run(measure(given.seconds))
    except BenchError as error:
        sys.exit(f"sustained load: {error}")
    print_table(results)
    if given.json:
        print_json(results)
    if any(results[name].ratio > 1 for name in ("backlog_max_ms", "memory_growth")):
        sys.exit("sustained load: a promise is broken")


if __name__ == "__main__":
    main()
