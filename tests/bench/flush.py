"""Suite flush: what SYNC_FLUSH costs, against the same broker and producer without it.

Per CPU second of the broker, and the waiting time of a lone message against one fdatasync of this disk. The
producer has all its messages in flight on one connection; both brokers stand on one disk.
"""

import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.bench.report import Measurement, Results, alternate
from tests.bench.servers import Server, Shape, load, lone_broker, per_cpu_second

IN_FLIGHT = (16, 64, 256)
FDATASYNCS = 100
FILE_BYTES = 64 << 20


def run() -> Results:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keelmq-bench-")))
        disk_us = _fdatasync_us(place)
        settings = {"mappedFileSizeCommitLog": str(FILE_BYTES)}
        plain = stack.enter_context(lone_broker(place / "async", settings))
        synced = stack.enter_context(lone_broker(place / "sync", settings | {"flushDiskType": "SYNC_FLUSH"}))
        results = {"lone_p50_vs_fdatasync": _lone(synced, disk_us)}
        for in_flight in IN_FLIGHT:
            shape = Shape(1, in_flight)
            value, reference = alternate(
                lambda shape=shape: per_cpu_second(load(synced, shape)),  # type: ignore[misc]
                lambda shape=shape: per_cpu_second(load(plain, shape)),  # type: ignore[misc]
            )
            results[f"sync_vs_async_1x{in_flight}"] = Measurement(
                value, "msg/CPU-s", reference, value / reference
            )
        return results


def _lone(server: Server, disk_us: float) -> Measurement:
    (p50_us,) = alternate(lambda: float(load(server, Shape(1, 1))["p50_us"]))
    return Measurement(p50_us, "us", disk_us, p50_us / disk_us)


def _fdatasync_us(directory: Path) -> float:
    """After a small overwrite of blocks that were written before: the median."""
    descriptor = os.open(directory / "probe", os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(descriptor, bytes(1 << 20), 0)
        os.fsync(descriptor)
        samples = []
        for number in range(FDATASYNCS):
            os.pwrite(descriptor, b"x" * 512, number * 4_096)
            begin = time.perf_counter_ns()
            os.fdatasync(descriptor)
            samples.append((time.perf_counter_ns() - begin) / 1_000)
        return statistics.median(samples)
    finally:
        os.close(descriptor)
