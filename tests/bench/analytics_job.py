"""A process of the suite analytics: computes an output directory and prints what it took, as JSON.

    python -m tests.bench.analytics_job INPUT OUT     the whole job, as `keelmq analytics run`
    python -m tests.bench.analytics_job --lag OUT     only the table lag, twice in one session

cpu_s and peak_kib are of this process, its Java, and the Python workers that Java started, together. cpu_s
is from their start; with --lag it is that of the second time.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from analytics import job
from analytics.compaction.manifest import HourManifest, read_manifests
from analytics.rollup.run import roll_up_samples, windows_of
from analytics.rollup.store import RollupStore
from analytics.rollup.tables import LAG
from analytics.session import spark_session
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


def cpu_s(java: int) -> float:
    total = time.process_time()
    for pid in (java, *workers_of(java)):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / TICKS
    here = os.times()
    return total + here[2] + here[3]


def peak_kib(*pids: int) -> int:
    """Returns the sum of the highest resident memory of each; pages that they share count in each."""
    return sum(
        int(line.split()[1])
        for pid in pids
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )


def lag_only(spark: SparkSession, out: str, manifests: list[HourManifest]) -> None:
    roll_up_samples(spark, RollupStore(out), manifests, windows_of(None), tables=[LAG.name], target=LAG_ONLY)


def lag_twice(out: str) -> float:
    """Returns the CPU seconds of the second time; within the session, whose end ends its Python workers."""
    manifests = read_manifests(out)
    with spark_session(quick=False, conf=CONF) as spark:
        lag_only(spark, out, manifests)
        before = cpu_s(java_pid())
        lag_only(spark, out, manifests)
        return cpu_s(java_pid()) - before


def main(source: str, out: str) -> None:
    before = 0.0
    if source == "--lag":
        before = lag_twice(out)
    else:
        job.run(source, out, conf=CONF)
    java = java_pid()
    print(
        json.dumps(
            {"cpu_s": cpu_s(java) - before, "peak_kib": peak_kib(java, os.getpid(), *workers_of(java))}
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
