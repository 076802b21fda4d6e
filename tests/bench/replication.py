"""Suite replication: an empty replica's catch-up against raw loopback, and what waiting for a replica costs.

One name server with controller and two brokers, all acknowledging (allAckInSyncStateSet). Asynchronous sends
are those of the same producer to the same master with the property WAIT=false: nothing else differs.

The catch-up fills new files, so its yardstick does, too (bulk_vs_loopback); a receiver into warm pages is
shown beside it (bulk_vs_warm_loopback). Where memory is dear to touch for the first time, as in many virtual
machines, the two differ by several times.
"""

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from cli.cluster import Cluster, ClusterError, Program
from client.admin import AdminClient, AdminError
from tests.bench.frames import send_frame
from tests.bench.native import BenchError, run_json
from tests.bench.report import Measurement, Results, alternate
from tests.bench.servers import Server, Shape, load

BULK_BYTES = 384 << 20
BULK_BODY_BYTES = 32 << 10
SAMPLE_S = 0.005
UP_SECONDS_MAX = 20.0
CATCH_UP_SECONDS_MAX = 60.0
RATED_FROM, RATED_TO = 0.1, 0.9
"""The part of the catch-up that is rated: not the handshake, not the last partial packets."""
SETTINGS = {
    "allAckInSyncStateSet": "true",
    "haTransferBatchSize": str(256 << 10),
    "mappedFileSizeCommitLog": str(1 << 30),
}


def run() -> Results:
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as name:
        directory = Path(name)
        cluster = Cluster(directory, name_servers=1, brokers=2, broker_settings=SETTINGS)
        try:
            with cluster, asyncio.Runner() as runner:
                return _measure(_Pair(cluster, runner), directory)
        except ClusterError as error:
            raise BenchError(str(error)) from error


class _Pair:
    """A master, and a replica that comes and goes."""

    def __init__(self, cluster: Cluster, runner: asyncio.Runner) -> None:
        self._cluster, self._runner = cluster, runner
        self.master, self.replica = cluster.brokers
        for program in (*cluster.name_servers, self.master):
            cluster.start_program(program)
        self.wait_for_set(1)

    def server(self) -> Server:
        assert self.master.pid is not None
        return Server("master", self.master.pid, int(self.master.address.rpartition(":")[2]))

    def wait_for_set(self, size: int) -> None:
        """Until the master is elected and the SyncStateSet has that size."""
        self._runner.run(self._wait_for_set(size))

    def offset(self, program: Program) -> int:
        """Bytes in the CommitLog; 0 while it does not answer."""
        return self._runner.run(self._offset(program))

    def replace_replica(self) -> float:
        """Start the replica with an empty disk; MB/s of its catch-up."""
        if self.replica.is_running:
            self._cluster.stop_program(self.replica)
            self.wait_for_set(1)
        shutil.rmtree(self.replica.settings["storePathRootDir"], ignore_errors=True)
        target = self.offset(self.master)
        self._cluster.start_program(self.replica)
        return self._runner.run(self._catch_up_rate(target))

    async def _wait_for_set(self, size: int) -> None:
        async with AdminClient() as admin:
            addresses = self._cluster.controller_addr

            async def reached() -> bool:
                try:
                    answer = await admin.sync_state_sets(addresses, [self._cluster.broker_name])
                except AdminError:
                    return False
                group = answer.replicas_info_table.get(self._cluster.broker_name)
                return group is not None and len(group.in_sync_replicas) == size

            await self._cluster.until(f"a SyncStateSet of {size}", reached, timeout_s=UP_SECONDS_MAX)

    async def _offset(self, program: Program) -> int:
        async with AdminClient() as admin:
            return await _ask_offset(admin, program)

    async def _catch_up_rate(self, target: int) -> float:
        samples: list[tuple[float, int]] = []
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        async with AdminClient() as admin:
            while time.monotonic() < deadline:
                asked = time.monotonic()
                offset = await _ask_offset(admin, self.replica)
                samples.append(((asked + time.monotonic()) / 2, offset))
                if offset >= target:
                    return _rate(samples, target)
                self._cluster.check()
                await asyncio.sleep(SAMPLE_S)
        raise BenchError(
            f"the replica has {samples[-1][1]} of {target} bytes after {CATCH_UP_SECONDS_MAX:g} s"
        )


async def _ask_offset(admin: AdminClient, program: Program) -> int:
    try:
        table = await admin.runtime_info(program.address, timeout_ms=1_000)
    except AdminError:
        return 0  # it is not up yet
    return int(table["commitLogMaxOffset"])


def _rate(samples: list[tuple[float, int]], target: int) -> float:
    """MB/s between RATED_FROM and RATED_TO of the target, between the samples that enclose it."""
    begin = max((each for each in samples if each[1] <= RATED_FROM * target), key=lambda each: each[0])
    end = min((each for each in samples if each[1] >= RATED_TO * target), key=lambda each: each[0])
    return (end[1] - begin[1]) / (end[0] - begin[0]) / 1e6


def _loopback(directory: Path, receiver: str) -> float:
    """MB/s of one stream in C. "fresh": into a new file, as the replica's; "warm": into pages in memory."""
    return float(run_json("loopback", directory, BULK_BYTES, receiver)["mb_per_s"])


def _measure(pair: _Pair, directory: Path) -> Results:
    bulk_frame = send_frame(BULK_BODY_BYTES)
    while pair.offset(pair.master) < BULK_BYTES:
        load(pair.server(), Shape(1, 16), frame=bulk_frame, warmup_ms=0, measure_ms=300)
    rate, fresh, warm = alternate(
        pair.replace_replica, lambda: _loopback(directory, "fresh"), lambda: _loopback(directory, "warm")
    )
    pair.wait_for_set(2)
    sync, no_wait = send_frame(128), send_frame(128, wait=False)
    sync_us, async_us = alternate(
        lambda: float(load(pair.server(), Shape(1, 1), frame=sync)["p50_us"]),
        lambda: float(load(pair.server(), Shape(1, 1), frame=no_wait)["p50_us"]),
    )
    return {
        "bulk_vs_loopback": Measurement(rate, "MB/s", fresh, rate / fresh),
        "bulk_vs_warm_loopback": Measurement(rate, "MB/s", warm, rate / warm),
        "sync_p50_vs_async": Measurement(sync_us, "us", async_us, sync_us / async_us),
    }
