"""One flipped byte in real processes: healed from the other replica; and if all replicas have lost a record,
an operator's mark on one of them reaches the others, and consumers pass it."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cli.lab.cluster import Cluster, Program
from keelmq import Message, Producer
from keelmq.client import PullConsumer, PullStatus
from keelmq.client.admin import AdminClient
from keelmq.remoting.operations.store_copies import ReplicaDigest
from tests.support.harness import Harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
TOPIC, COUNT = "healed", 60
SETTINGS = {"allAckInSyncStateSet": "true", "mappedFileSizeCommitLog": "1048576"}
HEALED_WITHIN_S = 60.0


def keelmq(*args: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "cli.keelmq", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


async def send(cluster: Cluster) -> None:
    async with Producer(cluster.namesrv_addr, "producer") as producer:
        for number in range(COUNT):
            await producer.send(Message(TOPIC, b"healed %03d " % number + b"x" * 200))


async def read(cluster: Cluster) -> list[int]:
    found = list[int]()
    async with PullConsumer(cluster.namesrv_addr, "reader") as consumer:
        for queue in await consumer.fetch_queues(TOPIC):
            position, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while position < end:
                result = await consumer.pull(queue, position, 32)
                found += [int(message.body[7:10]) for message in result.messages]
                assert result.status is not PullStatus.NO_NEW_MSG
                position = result.next_begin_offset
    return sorted(found)


def log_of(program: Program) -> Path:
    return Path(program.settings["storePathRootDir"]) / "commitlog" / f"{0:020}"


def flip(program: Program, number: int) -> int:
    """Flips a byte of the body of a message. Returns its offset."""
    raw = log_of(program).read_bytes()
    at = raw.index(b"healed %03d " % number) + 50
    with log_of(program).open("r+b") as log:
        log.seek(at)
        log.write(bytes([raw[at] ^ 1]))
    return at


async def digest(admin: AdminClient, program: Program) -> ReplicaDigest:
    return await admin.store_copies.replica_digest(program.address)


async def find(admin: AdminClient, cluster: Cluster, program: Program) -> None:
    """Has the broker read all of its log; what is damaged is named then."""
    at, end = 0, (await digest(admin, program)).confirm_offset
    while at < end:
        at = (await admin.store_copies.check_log(program.address, cluster.broker_name, at, end)).end_offset


async def until_whole(admin: AdminClient, cluster: Cluster, program: Program) -> None:
    async def look() -> bool:
        return not (await digest(admin, program)).damaged

    await cluster.until("a whole log", look, timeout_s=HEALED_WITHIN_S)


async def until_told(cluster: Cluster, program: Program) -> None:
    async def look() -> bool:
        return "is healed" in program.log_path.read_text()

    await cluster.until("a line in the log", look, timeout_s=HEALED_WITHIN_S)


@asynccontextmanager
async def damaged_slave(
    tmp_path: Path,
) -> AsyncIterator[tuple[Harness, AdminClient, Program, Program, int]]:
    """Yields the group with messages, master, slave, and the place of a flipped byte in the slave's log."""
    async with (
        Harness(tmp_path, name_servers=1, brokers=2, broker_settings=SETTINGS) as running,
        AdminClient() as admin,
    ):
        await send(running.cluster)
        master = await running.master()
        slave = next(program for program in running.cluster.brokers if program is not master)
        await asyncio.to_thread(running.cluster.stop_program, slave)
        yield running, admin, master, slave, flip(slave, 7)


async def test_a_flipped_byte_is_healed(tmp_path: Path) -> None:
    async with damaged_slave(tmp_path) as (running, admin, master, slave, at):
        cluster = running.cluster
        cluster.start_program(slave)
        await running.all_in_sync()
        for damaged, other in ((slave, master), (master, slave)):
            if damaged is master:  # while it runs
                assert flip(master, 7) == at
            await find(admin, cluster, damaged)
            await until_whole(admin, cluster, damaged)
            assert log_of(damaged).read_bytes() == log_of(other).read_bytes()
            await until_told(cluster, damaged)
        code, told = await asyncio.to_thread(keelmq, "verify", "-n", cluster.namesrv_addr, "--rate", "0")
        assert code == 0 and "are equal" in told, told
        assert await read(cluster) == list(range(COUNT))


async def test_a_record_that_all_have_lost(tmp_path: Path) -> None:
    async with damaged_slave(tmp_path) as (running, admin, master, slave, at):
        cluster = running.cluster
        store = slave.settings["storePathRootDir"]

        def repair(*more: str) -> tuple[int, str]:
            return keelmq("repair", "--store", store, "--mark-lost", "all", *more)

        code, told = await asyncio.to_thread(repair, "-a", cluster.controller_addr, "--yes")
        assert code == 1 and "has a sound copy" in told, told
        assert flip(master, 7) == at
        code, told = await asyncio.to_thread(repair, "-a", cluster.controller_addr)
        assert code == 0 and "1 message would be lost" in told and TOPIC in told, told
        code, told = await asyncio.to_thread(repair, "-a", cluster.controller_addr, "--yes")
        assert code == 0 and "is marked as lost" in told, told

        cluster.start_program(slave)
        await running.all_in_sync()
        await until_whole(admin, cluster, master)
        assert log_of(master).read_bytes() == log_of(slave).read_bytes()
        code, told = await asyncio.to_thread(keelmq, "verify", "-n", cluster.namesrv_addr, "--rate", "0")
        assert code == 0 and "are equal" in told, told
        assert await read(cluster) == [number for number in range(COUNT) if number != 7]
