"""Suite replication: an empty replica's catch-up against raw loopback, and what waiting for a replica costs.

All replicas acknowledge (allAckInSyncStateSet). Asynchronous sends are those of the same producer to the same
master with the property WAIT=false: nothing else differs, the replica copies them as well.

The catch-up fills new files, so its yardstick does, too (.._vs_loopback); a receiver into warm pages is shown
beside it (.._vs_warm_loopback). Where memory is dear to touch for the first time, as in virtual machines,
the two differ by several times. "bulk" is sent by threads, the default; "loop" by the event loop alone.
"""

from pathlib import Path

from tests.bench.frames import send_frame
from tests.bench.native import run_json
from tests.bench.pair import Pair, pair
from tests.bench.report import Measurement, Results, alternate
from tests.bench.servers import Shape, load, per_cpu_second

BULK_BYTES = 384 << 20
ROUNDS = 7
"""Short ones: what else runs on the machine meets both subjects."""
ROUND_MS = 400
IN_FLIGHT = (16, 64)


def run() -> Results:
    with pair({"haCatchUpThreads": "0"}) as group:
        results = _bulk(group, "loop")
    with pair() as group:
        return results | _bulk(group, "bulk") | _sync(group)


def _bulk(group: Pair, name: str) -> Results:
    group.fill(BULK_BYTES)
    directory = group.directory
    rate, fresh, warm = alternate(
        group.catch_up_rate, lambda: _loopback(directory, "fresh"), lambda: _loopback(directory, "warm")
    )
    return {
        f"{name}_vs_loopback": Measurement(rate, "MB/s", fresh, rate / fresh),
        f"{name}_vs_warm_loopback": Measurement(rate, "MB/s", warm, rate / warm),
    }


def _loopback(directory: Path, receiver: str) -> float:
    """MB/s of one stream in C. "fresh": into a new file, as the replica's; "warm": into pages in memory."""
    return float(run_json("loopback", directory, BULK_BYTES, receiver)["mb_per_s"])


def _sync(group: Pair) -> Results:
    """The replica of the last catch-up joins, and messages wait for it."""
    group.wait_for_set(2)
    sync_us, async_us = alternate(
        lambda: _round(group, 1, wait=True)["p50_us"],
        lambda: _round(group, 1, wait=False)["p50_us"],
        rounds=ROUNDS,
    )
    results = {"sync_p50_vs_async": Measurement(sync_us, "us", async_us, sync_us / async_us)}
    for in_flight in IN_FLIGHT:
        results |= _throughput(group, in_flight)
    return results


def _throughput(group: Pair, in_flight: int) -> Results:
    """Of both the wall rate, and the rate per second of the master's CPU."""
    rates: dict[bool, list[float]] = {True: [], False: []}

    def one(wait: bool) -> float:
        result = _round(group, in_flight, wait=wait)
        rates[wait].append(result["replies"] / result["wall_s"])
        return per_cpu_second(result)

    sync, no_wait = alternate(lambda: one(True), lambda: one(False), rounds=ROUNDS)
    sync_wall, no_wait_wall = (sorted(rates[wait])[ROUNDS // 2] for wait in (True, False))
    return {
        f"sync_x{in_flight}_vs_async": Measurement(sync, "msg/CPU-s", no_wait, sync / no_wait),
        f"sync_x{in_flight}_wall": Measurement(sync_wall, "msg/s", no_wait_wall, sync_wall / no_wait_wall),
    }


def _round(group: Pair, in_flight: int, *, wait: bool) -> dict[str, float]:
    frame = send_frame(128, wait=wait)
    return load(group.server(), Shape(1, in_flight), frame=frame, warmup_ms=100, measure_ms=ROUND_MS)
