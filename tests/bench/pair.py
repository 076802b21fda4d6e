"""A master, and a replica that comes and goes, with a name server and controller: for replication suites."""

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from cli.lab.cluster import Cluster, ClusterError, Program
from keelmq.client.admin import AdminClient, AdminError
from tests.bench.frames import send_frame
from tests.bench.native import BenchError
from tests.bench.servers import Server, Shape, load

BULK_BODY_BYTES = 32 << 10
FILL_MS = 300
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


class Pair:
    """The master runs; the replica does not yet."""

    def __init__(self, directory: Path, cluster: Cluster, runner: asyncio.Runner) -> None:
        self.directory = directory
        self._cluster, self._runner = cluster, runner
        self.master, self.replica = cluster.brokers
        for program in (*cluster.name_servers, self.master):
            cluster.start_program(program)
        self.wait_for_set(1)

    def server(self) -> Server:
        assert self.master.pid is not None
        return Server("master", self.master.pid, int(self.master.address.rpartition(":")[2]))

    def fill(self, log_bytes: int) -> None:
        """Until the master's log is that long."""
        frame = send_frame(BULK_BODY_BYTES)
        while self.offset(self.master) < log_bytes:
            load(self.server(), Shape(1, 16), frame=frame, warmup_ms=0, measure_ms=FILL_MS)

    def wait_for_set(self, size: int) -> None:
        """Until the master is elected and the SyncStateSet has that size."""
        self._runner.run(self._wait_for_set(size))

    def offset(self, program: Program) -> int:
        """Bytes in the CommitLog; 0 while it does not answer."""
        return self._runner.run(self._offset(program))

    def start_replica(self) -> None:
        """With an empty disk."""
        if self.replica.is_running:
            self._cluster.stop_program(self.replica)
            self.wait_for_set(1)
        shutil.rmtree(self.replica.settings["storePathRootDir"], ignore_errors=True)
        self._cluster.start_program(self.replica)

    def pause_replica(self) -> None:
        self._cluster.pause(self.replica)

    def resume_replica(self) -> None:
        self._cluster.resume(self.replica)

    def catch_up_rate(self) -> float:
        """MB/s of an empty replica's catch-up."""
        target = self.offset(self.master)
        self.start_replica()
        return self._runner.run(self._catch_up_rate(target))

    async def _wait_for_set(self, size: int) -> None:
        async with AdminClient() as admin:
            addresses = self._cluster.controller_addr

            async def reached() -> bool:
                try:
                    answer = await admin.controllers.sync_state_sets(addresses, [self._cluster.broker_name])
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


@contextlib.contextmanager
def pair(more: Mapping[str, str] | None = None) -> Iterator[Pair]:
    """more: settings of both brokers. All files are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as name:
        directory = Path(name)
        settings = SETTINGS | dict(more or {})
        cluster = Cluster(directory, name_servers=1, brokers=2, broker_settings=settings)
        try:
            with cluster, asyncio.Runner() as runner:
                yield Pair(directory, cluster, runner)
        except ClusterError as error:
            raise BenchError(str(error)) from error


async def _ask_offset(admin: AdminClient, program: Program) -> int:
    try:
        table = await admin.brokers.runtime_info(program.address, timeout_ms=1_000)
    except AdminError:
        return 0  # it is not up yet
    return int(table["commitLogMaxOffset"])


def _rate(samples: list[tuple[float, int]], target: int) -> float:
    """MB/s between RATED_FROM and RATED_TO of the target, between the samples that enclose it."""
    begin = max((each for each in samples if each[1] <= RATED_FROM * target), key=lambda each: each[0])
    end = min((each for each in samples if each[1] >= RATED_TO * target), key=lambda each: each[0])
    return (end[1] - begin[1]) / (end[0] - begin[0]) / 1e6
