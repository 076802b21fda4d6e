"""J, the unit of handler cost: CPU time of stdlib json.loads on the header of frames.send_header()."""

import gc
import json
import time
from collections.abc import Callable

from tests.bench.frames import send_header
from tests.bench.report import alternate

SAMPLE_CALLS = 10_000
ROUNDS = 7


def cpu_us(work: Callable[[], object], calls: int = SAMPLE_CALLS) -> float:
    """CPU microseconds of this thread per call (a helper thread prepares files on the other core)."""
    gc.collect()
    begin = time.thread_time_ns()
    for _ in range(calls):
        work()
    return (time.thread_time_ns() - begin) / calls / 1_000


def in_j(*works: Callable[[], object], calls: int = SAMPLE_CALLS) -> tuple[float, list[float]]:
    """(J in microseconds, each work's cost in J), measured in turns. `calls`: of a work per sample."""
    header = send_header().decode()
    loads = json.loads
    subjects: list[Callable[[], float]] = [lambda: cpu_us(lambda: loads(header))]
    subjects += [lambda work=work: cpu_us(work, calls) for work in works]  # type: ignore[misc]
    j_us, *costs = alternate(*subjects, rounds=ROUNDS)
    return j_us, [cost / j_us for cost in costs]
