"""A process of the suite analytics: computes an output directory and prints what it took, as JSON.

    python -m tests.bench.analytics_job INPUT OUT     the whole job, as `keelmq analytics run`
    python -m tests.bench.analytics_job --lag OUT     only the table lag, twice in one session

On the engine of this Python environment: the embedded one, or Spark, local[2]. cpu_s and peak_kib are of this
process and its Java together. cpu_s is from their start; with --lag it is that of the second time.
"""

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from analytics import job
from analytics.compaction.manifest import HourManifest, read_manifests
from analytics.engine.sessions import spark_engine
from analytics.queries.kept import keeping
from analytics.rollup.hours import Hours
from analytics.rollup.inputs import inputs_of
from analytics.rollup.run import windows_of, write_hours
from analytics.rollup.store import RollupStore
from analytics.rollup.tables import LAG
from tests.bench.analytics import LAG_ONLY
from tests.spark.jdk import provide_java
from tests.spark.programs import EMBEDDED, names

TICKS = os.sysconf("SC_CLK_TCK")
MASTER = None if EMBEDDED in names() else "local[2]"


def java_pids() -> list[int]:
    """Returns the process of Java, which stays when its session has ended; none on the embedded engine."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if "java" in Path(f"/proc/{pid}/comm").read_text()]


def ticks_of(pid: int) -> tuple[float, float]:
    """Returns the CPU seconds of a process, and of its children that have ended and were waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # has ended meanwhile
        return 0.0, 0.0
    own, children = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    return own / TICKS, children / TICKS


def cpu_s() -> float:
    """Returns the CPU seconds of this process, its ended children, and Java."""
    here = os.times()
    return time.process_time() + here[2] + here[3] + sum(ticks_of(pid)[0] for pid in java_pids())


def peak_kib(*pids: int) -> int:
    """Returns the sum of the highest resident memory of each; pages that they share count in each."""
    return sum(
        int(line.split()[1])
        for pid in pids
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )


def lag_only(spark: SparkSession, out: str, manifests: list[HourManifest]) -> None:
    store, inputs = RollupStore(out), inputs_of(manifests)
    with keeping() as keep:
        of_hours = [inputs[each.hour_ts] for each in manifests]
        hours = Hours(spark, store.url, of_hours, manifests, windows_of(None), {}, keep)
        for _ in write_hours(store, LAG_ONLY, LAG, LAG.rows(hours)):
            pass


def lag_twice(out: str) -> float:
    """Returns the CPU seconds of the second time."""
    manifests = read_manifests(out)
    with spark_engine(master=MASTER) as spark:
        lag_only(spark, out, manifests)
        before = cpu_s()
        lag_only(spark, out, manifests)
        return cpu_s() - before


def main(source: str, out: str) -> None:
    if MASTER is not None:
        provide_java(Path(out))
    if source == "--lag":
        print(json.dumps({"cpu_s": lag_twice(out), "peak_kib": 0}))
        return
    job.run(source, out, master=MASTER)
    print(json.dumps({"cpu_s": cpu_s(), "peak_kib": peak_kib(os.getpid(), *java_pids())}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
