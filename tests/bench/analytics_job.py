"""A process of the suite analytics: computes an output directory and prints what it took, as JSON.

    python -m tests.bench.analytics_job INPUT OUT     the whole job, as `keelmq analytics run`
    python -m tests.bench.analytics_job --lag OUT     only the table lag, twice in one session

cpu_s and peak_kib are of this process, its Java, and the Python workers that Java started, together. cpu_s
is from their start; with --lag it is that of the second time. Workers are looked at before their session
ends: they are gone afterwards, and nobody waited for them.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from analytics import job
from analytics.compaction.manifest import HourManifest, read_manifests
from analytics.engines import SPARK, spark_engine
from analytics.rollup.run import roll_up_samples, windows_of
from analytics.rollup.store import RollupStore
from analytics.rollup.tables import LAG
from tests.bench.analytics import LAG_ONLY

TICKS = os.sysconf("SC_CLK_TCK")
CONF = {"spark.master": "local[2]"}


def java_pid() -> int:
    """Returns the process of Java, which stays when its session has ended."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    (found,) = [int(pid) for pid in children if "java" in Path(f"/proc/{pid}/comm").read_text()]
    return found


def workers_of(java: int) -> list[int]:
    """Returns Java's children and theirs: Spark's Python workers."""
    found, parents = [], [java]
    while parents:
        pid = parents.pop()
        with contextlib.suppress(OSError):  # has ended meanwhile
            for task in Path(f"/proc/{pid}/task").iterdir():
                parents += map(int, (task / "children").read_text().split())
        found.append(pid)
    return found[1:]


def ticks_of(pid: int) -> tuple[float, float]:
    """Returns the CPU seconds of a process, and of its children that have ended and were waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # has ended meanwhile
        return 0.0, 0.0
    own, children = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    return own / TICKS, children / TICKS


def workers_cpu_s(java: int) -> float:
    """Returns the CPU seconds of the processes below Java."""
    return ticks_of(java)[1] + sum(sum(ticks_of(pid)) for pid in workers_of(java))


def cpu_s(java: int, workers_s: float) -> float:
    here = os.times()
    return time.process_time() + here[2] + here[3] + ticks_of(java)[0] + workers_s


def peak_kib(*pids: int) -> int:
    """Returns the sum of the highest resident memory of each; pages that they share count in each."""
    return sum(
        int(line.split()[1])
        for pid in pids
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )


@dataclass
class Workers:
    """What the Python workers took until their session ended."""

    cpu_s: float = 0.0
    peak_kib: int = 0

    @contextlib.contextmanager
    def session(self, *options: Any) -> Iterator[SparkSession]:
        """Yields the session of the job."""
        with spark_engine(*options) as spark:
            yield spark
            java = java_pid()
            self.cpu_s, self.peak_kib = workers_cpu_s(java), peak_kib(*workers_of(java))


def lag_only(spark: SparkSession, out: str, manifests: list[HourManifest]) -> None:
    roll_up_samples(spark, RollupStore(out), manifests, windows_of(None), tables=[LAG.name], target=LAG_ONLY)


def lag_twice(out: str) -> float:
    """Returns the CPU seconds of the second time."""
    manifests = read_manifests(out)
    with spark_engine(SPARK, conf=CONF) as spark:
        lag_only(spark, out, manifests)
        java = java_pid()
        before = cpu_s(java, workers_cpu_s(java))
        lag_only(spark, out, manifests)
        return cpu_s(java, workers_cpu_s(java)) - before


def main(source: str, out: str) -> None:
    if source == "--lag":
        print(json.dumps({"cpu_s": lag_twice(out), "peak_kib": 0}))
        return
    workers = Workers()
    job.spark_engine = workers.session
    job.run(source, out, engine=SPARK, conf=CONF)
    java = java_pid()
    peak = peak_kib(java, os.getpid()) + workers.peak_kib
    print(json.dumps({"cpu_s": cpu_s(java, workers.cpu_s), "peak_kib": peak}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
