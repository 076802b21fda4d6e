"""Suite replica_behind: an empty replica catches up while producers write. What do they lose, does it arrive?

In turns, within one catch-up: a round of producers while the replica stands still (SIGSTOP), and some while
it catches up. On two cores these are shared by master, replica and producers.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.bench.frames import send_frame
from tests.bench.native import BenchError
from tests.bench.pair import Pair, pair
from tests.bench.report import Measurement, Results
from tests.bench.servers import Shape, load, per_cpu_second

BEHIND_BYTES = 512 << 20
NEAR_BYTES = 8 << 20
"""Nearer, it has caught up: the producers' last packets are always on their way."""
PRODUCERS = Shape(4, 16)
BODY_BYTES = 1_024
ROUND_MS = 1_500
WARM_UP_MS = 500
"""By then the master has seen that producers write, and gives the replica its pace."""
BESIDE_PER_ALONE = 3
"""Producers write in both, and it comes nearer in one kind only: half as fast as they write, at least."""
ROUNDS_MIN = 3
MINUTES_MAX = 10


@dataclass
class _Rounds:
    alone: list[dict[str, Any]] = field(default_factory=list)
    """Results of load.c while the replica stands still."""
    beside: list[dict[str, Any]] = field(default_factory=list)
    """While it catches up."""
    copied_bytes: int = 0
    written_bytes: int = 0
    copying_s: float = 0.0


def run(size_mib: int | None = None) -> Results:
    """size_mib: how far it is behind in the beginning; for a long run 2048 (needs three times the disk)."""
    behind_bytes = BEHIND_BYTES if size_mib is None else size_mib << 20
    with pair() as group:
        group.fill(behind_bytes)
        group.start_replica()
        while not group.offset(group.replica):
            time.sleep(0.01)
        rounds = _rounds(group)
    copied, written = (
        count / rounds.copying_s / 1e6 for count in (rounds.copied_bytes, rounds.written_bytes)
    )
    return {
        "producers_keep": _kept(rounds, "msg/s", lambda each: each["replies"] / each["wall_s"]),
        "producers_keep_cpu": _kept(rounds, "msg/CPU-s", per_cpu_second),
        "catch_up_vs_written": Measurement(copied, "MB/s", written, copied / written),
        "catch_up_s": Measurement(rounds.copying_s, "s", 0.0, 0.0),
    }


def _kept(rounds: _Rounds, unit: str, rate: Callable[[dict[str, Any]], float]) -> Measurement:
    """The CPU is the master's: usable on a crowded machine, and blind for what the replica takes of it."""
    beside, alone = (statistics.median(map(rate, each)) for each in (rounds.beside, rounds.alone))
    return Measurement(beside, unit, alone, beside / alone)


def _rounds(group: Pair) -> _Rounds:
    rounds, deadline = _Rounds(), time.monotonic() + 60 * MINUTES_MAX
    behind = NEAR_BYTES
    while behind >= NEAR_BYTES:
        group.pause_replica()
        rounds.alone.append(_round(group))
        group.resume_replica()
        for _ in range(BESIDE_PER_ALONE):
            behind = _beside(group, rounds)
            if behind < NEAR_BYTES:
                break
        if time.monotonic() > deadline:
            raise BenchError(f"the replica is {behind} bytes behind after {MINUTES_MAX} minutes")
    if len(rounds.beside) < ROUNDS_MIN:
        raise BenchError(f"it caught up within {len(rounds.beside)} rounds: ask for more by --size")
    return rounds


def _beside(group: Pair, rounds: _Rounds) -> int:
    """How far the replica is behind after the round; one in which it arrived does not count."""
    before, had, begin = group.offset(group.master), group.offset(group.replica), time.monotonic()
    result = _round(group)
    rounds.copying_s += time.monotonic() - begin
    master, replica = group.offset(group.master), group.offset(group.replica)
    rounds.copied_bytes += replica - had
    rounds.written_bytes += master - before
    if master - replica >= NEAR_BYTES:
        rounds.beside.append(result)
    return master - replica


def _round(group: Pair) -> dict[str, Any]:
    frame = send_frame(BODY_BYTES)
    return load(group.server(), PRODUCERS, frame=frame, warmup_ms=WARM_UP_MS, measure_ms=ROUND_MS)
