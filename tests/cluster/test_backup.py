"""A rehearsal of the worst day: controllers and a store are saved under traffic, all directories are
destroyed, and what was acknowledged before the backup is there again, under masters with higher epochs."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.lab.cluster import Cluster, Program
from keelmq import Message, Producer
from keelmq.client import PullConsumer, PullStatus
from keelmq.client.admin import AdminClient
from namesrv.plugins.controller.core.restored import RAISE_EPOCHS, RAISE_IDS
from tests.support.harness import SAFE, Harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
TOPIC, COUNT = "kept", 200


async def keelmq(*args: object, code: int = 0) -> Any:
    """The JSON that a command prints, in a process of its own."""
    command = [sys.executable, "-m", "cli.keelmq", *map(str, args), "--json"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout) if done.stdout else done.stderr


async def send(cluster: Cluster, bodies: list[bytes]) -> None:
    async with Producer(cluster.namesrv_addr, "rehearsal") as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body))


async def read(cluster: Cluster) -> list[bytes]:
    found = list[bytes]()
    async with PullConsumer(cluster.namesrv_addr, "rehearsal-reader") as consumer:
        for queue in await consumer.fetch_queues(TOPIC):
            position, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while position < end:
                result = await consumer.pull(queue, position, 32)
                found += [message.body for message in result.messages]
                assert result.status is not PullStatus.NO_NEW_MSG
                position = result.next_begin_offset
    return found


async def master_epoch(cluster: Cluster) -> int:
    async with AdminClient() as admin:
        sets = await admin.controllers.sync_state_sets(cluster.controller_addr, [cluster.broker_name])
        return sets.replicas_info_table[cluster.broker_name].master_epoch


def destroy(program: Program) -> None:
    for key in ("storePathRootDir", "controllerStorePath"):
        if key in program.settings:
            shutil.rmtree(program.settings[key])


async def test_everything_is_destroyed_and_restored(tmp_path: Path) -> None:
    settings = SAFE | {"backupPath": str(tmp_path / "backups")}
    async with Harness(tmp_path / "cluster", broker_settings=settings) as running:
        cluster, saved = running.cluster, tmp_path / "controllers.backup"
        running.produce()
        kept = [b"kept %d" % number for number in range(COUNT)]
        await send(cluster, kept)
        master = await running.master()
        epoch = await master_epoch(cluster)

        told = await keelmq("backup", "controllers", "-n", cluster.namesrv_addr, saved)
        assert told["brokers"] == 3 and saved.stat().st_mode & 0o777 == 0o600
        backup = await keelmq("backup", "store", "-b", master.address, "rehearsal", "--rate", "0")
        assert backup["state"] == "done"
        await running.acked(200)  # the broker has served all the time
        await send(cluster, [b"behind the backup"])
        after = await running.compare()
        assert after.ok, after

        for program in cluster.programs:
            await cluster.kill_and_wait(program)
        for program in cluster.programs:
            destroy(program)

        conf = [part for each in cluster.name_servers for part in ("-c", each.config_path)]
        assert "is not empty" not in await keelmq("restore", "controllers", saved, *conf)
        store = master.settings["storePathRootDir"]
        restored = await keelmq("restore", "store", backup["path"], store, "--with-identity")
        assert restored["endOffset"] == backup["endOffset"]

        cluster.start()
        await running.all_in_sync()
        assert (await running.master()).name == master.name, "the only one that has the messages"
        assert await master_epoch(cluster) > epoch + RAISE_EPOCHS
        found = await read(cluster)
        assert sorted(set(found) - {b"behind the backup"}) == sorted(kept)
        async with AdminClient() as admin:
            sets = await admin.controllers.sync_state_sets(cluster.controller_addr, [cluster.broker_name])
            members = sets.replicas_info_table[cluster.broker_name].in_sync_replicas
        assert sum(each.broker_id > RAISE_IDS for each in members) == 2, "lost disks have got new ids"
        await send(cluster, [b"goes on"])
        assert (await read(cluster)).count(b"goes on") == 1


def flip(store: Path, position: int) -> None:
    with (store / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(position)
        byte = log.read(1)
        log.seek(position)
        log.write(bytes([byte[0] ^ 1]))


async def test_verify_finds_a_flipped_byte(tmp_path: Path) -> None:
    """In the files of a stopped replica, and in those of a running one, where nobody reads it again."""
    async with Harness(tmp_path) as running:
        cluster = running.cluster
        running.produce()
        await running.acked(2_000)
        equal = await keelmq("verify", "-n", cluster.namesrv_addr, "--rate", "0")
        (group,) = equal["groups"]
        assert len(group["compared"]) == 3 and group["differences"] == [] and group["notCompared"] == {}
        assert group["entries"] > 1_500 and group["log"]["endOffset"] > 100_000

        master = await running.master()
        slave = next(program for program in cluster.brokers if program is not master)
        await asyncio.to_thread(cluster.stop_program, slave)
        store = Path(slave.settings["storePathRootDir"])
        assert (await keelmq("verify", "--from-dir", store))["faults"] == []
        position = 50_000
        flip(store, position)
        offline = await keelmq("verify", "--from-dir", store, code=1)
        assert position - 5_000 < offline["firstBadOffset"] <= position, "the record that has the byte"
        flip(store, position)  # a start would find it
        slave.settings["scrubBytesPerSecond"] = "0"
        cluster.start_program(slave)
        await running.all_in_sync()
        flip(store, position)

        found = await keelmq("verify", "-n", cluster.namesrv_addr, "--group", cluster.broker_name, code=1)
        (difference,) = found["groups"][0]["differences"]
        assert difference["kind"] == "log" and difference["brokers"] == [slave.address]
        assert difference["offset"] == offline["firstBadOffset"], "the record that has the byte"
        assert (await running.compare()).ok
