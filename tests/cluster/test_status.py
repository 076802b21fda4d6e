"""keelmq status and top at a real cluster: nothing while it is healthy, then each fault with its command."""

import asyncio
import json
import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import encode_epochs
from cli.lab.cluster import Cluster, Launcher, Program
from cli.status.command import TIMEOUT_DEFAULT_MS, code_of
from keelmq.client import Message, Producer
from keelmq.health.reach import Reach
from keelmq.health.summary import take_status
from tests.support.harness import SAFE, START_TIMEOUT_S, Harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
KEELMQ = [sys.executable, "-m", "cli.keelmq"]
MQADMIN = [sys.executable, "-m", "cli.mqadmin.main"]
END_S = 30.0
DISK_BYTES = 128 << 20

Found = dict[str, Any]


async def status(cluster: Cluster) -> tuple[int, Found]:
    """Exit code and the answer, as the command gives them."""
    async with Reach(TIMEOUT_DEFAULT_MS) as reach:
        found = await take_status(reach, cluster.namesrv_addr.split(";"))
    return code_of(found), json.loads(found.model_dump_json(by_alias=True))


async def until(cluster: Cluster, check: str, words: str) -> Found:
    """Returns the problem when it is there."""

    async def look() -> Found | None:
        code, found = await status(cluster)
        hits = [each for each in found["problems"] if each["check"] == check and words in each["text"]]
        assert code == (1 if found["problems"] else 0)
        return hits[0] if hits else None

    return await cluster.until(f"{check}: {words}", look, timeout_s=START_TIMEOUT_S)


async def until_well(cluster: Cluster) -> Found:
    async def look() -> Found | None:
        code, found = await status(cluster)
        return found if code == 0 else None

    return await cluster.until("a healthy cluster", look, timeout_s=2 * START_TIMEOUT_S)


async def test_faults_of_real_processes(tmp_path: Path) -> None:
    async with Harness(tmp_path, http=True, broker_settings=SAFE) as running:
        cluster = running.cluster
        group = (await until_well(cluster))["groups"][0]
        assert group["verdict"] == "ok" and len(group["syncStateSet"]) == 3
        assert {each["lagBytes"] for each in group["replicas"]} == {0}
        assert group["lastElection"]["reason"] == "first election"
        await asyncio.to_thread(_watch_and_top, cluster.namesrv_addr)

        master = await running.master()
        slave = next(program for program in cluster.brokers if program is not master)
        change = shlex.split(f"updateBrokerConfig -b {slave.address} -k minInSyncReplicas -v 1")
        await _mqadmin(*change)
        problem = await until(cluster, "broker.settings", "minInSyncReplicas differs")
        await _mqadmin(*shlex.split(problem["command"])[1:])  # what status says mends it
        await until_well(cluster)

        await _mqadmin("wipeWritePerm", "-n", cluster.namesrv_addr, "-b", cluster.broker_name)
        problem = await until(cluster, "broker.writable", "no write permission")
        await _mqadmin(*shlex.split(problem["command"])[1:])
        await until_well(cluster)

        unclean = ("-k", "enableElectUncleanMaster", "-v", "true")
        await _mqadmin("updateControllerConfig", "-a", cluster.controller_addr, *unclean)
        problem = await until(cluster, "controller.settings", "lacks acknowledged messages")
        await _mqadmin(*shlex.split(problem["command"])[1:])
        await until_well(cluster)

        cluster.pause(slave)
        problem = await until(cluster, "broker.reachable", "no answer in")
        assert problem["command"].startswith("keelmq status -n ")
        cluster.resume(slave)
        await until_well(cluster)

        leader = await running.controller_leader()
        follower = next(program for program in cluster.name_servers if program is not leader)
        await cluster.kill_and_wait(slave)
        problem = await until(cluster, "group.in-sync", "is not alive")
        assert problem["command"] == "mqbroker -c FILE"
        await cluster.kill_and_wait(follower)
        problem = await until(cluster, "controller.reachable", "connection refused")
        assert problem["command"] == "mqnamesrv -c FILE"
        await until(cluster, "namesrv.reachable", "connection refused")
        third = next(each for each in cluster.name_servers if each not in (leader, follower))
        await cluster.kill_and_wait(third)
        problem = await until(cluster, "controller.leader", "1 of 3 answer")
        assert problem["command"] == "mqnamesrv -c FILE"

        for program in cluster.programs:
            if program.is_running:
                await cluster.kill_and_wait(program)
        code, found = await status(cluster)
        assert code == 3 and found["verdict"] == "failed" and found["groups"] == []


class SmallDisk(Launcher):
    """The store of broker-2 is on a disk of its own, which only it and its root directory in /proc show."""

    def command(self, program: Program) -> list[str]:
        """Returns the command line that mounts the disk and runs the program."""
        command = super().command(program)
        if program.name != "broker-2":
            return command
        store = Path(program.settings["storePathRootDir"])
        store.mkdir(exist_ok=True)
        mount = f'mount -t tmpfs -o size={DISK_BYTES} tmpfs "$0" && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, str(store), *command]


def can_mount() -> bool:
    """Whether a process here may have a disk of its own."""
    line = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /mnt"]
    return shutil.which("unshare") is not None and subprocess.run(line, capture_output=True).returncode == 0


async def test_the_worst_faults_of_real_processes(tmp_path: Path) -> None:
    """A full disk (where one can be mounted), a replica with the epochs of another log that does not know
    all controllers either, a master below minInSyncReplicas, and no replica that may be elected."""
    has_disk = can_mount()
    launcher = SmallDisk() if has_disk else None
    async with Harness(tmp_path, broker_settings=SAFE, launcher=launcher) as running:
        cluster = running.cluster
        await until_well(cluster)
        if has_disk:  # before a message: the files that one makes would take the room that is to be filled
            await _fill_the_disk(cluster, cluster.brokers[2])
        async with Producer(cluster.namesrv_addr) as producer:
            await producer.send(Message("orders", b"an empty log has no other history"))

        master = await running.master()
        broken, other = (program for program in cluster.brokers if program is not master)
        if broken is cluster.brokers[2]:
            broken, other = other, broken  # its disk ends with the process
        await asyncio.to_thread(cluster.stop_program, broken)
        another = encode_epochs(Epochs.of([(0, 0)]))
        (Path(broken.settings["storePathRootDir"]) / "epochFileCheckpoint").write_bytes(another)
        broken.settings["controllerAddr"] = cluster.controller_addr.rpartition(";")[0]
        broken.write()
        cluster.start_program(broken)
        problem = await until(cluster, "group.epochs", f"at {broken.address} copies nothing")
        assert problem["command"].startswith("keelmq verify -n ") and problem["level"] == "failed"
        assert "keelmq repair --store DIR shows what that removes" in problem["nextStep"]
        problem = await until(cluster, "broker.settings", "controllerAddr of this broker lacks")
        assert problem["subject"] == broken.address
        *flags, addresses = shlex.split(problem["command"])
        assert flags == ["mqbroker", "-c", "FILE", "--set"]
        known = addresses.removeprefix("controllerAddr=").split(";")
        assert sorted(known) == sorted(cluster.controller_addr.split(";"))

        await cluster.kill_and_wait(other)
        problem = await until(cluster, "group.in-sync", "1 of 3 replicas in sync, 2 needed")
        assert (problem["command"], problem["level"]) == ("mqbroker -c FILE", "failed")
        problem = await until(cluster, "broker.writable", "in-sync replicas not enough")
        assert problem["subject"] == master.address
        assert problem["command"].endswith(f"--group {cluster.broker_name} --watch 2")

        await cluster.kill_and_wait(master)
        problem = await until(cluster, "group.master", f"at {master.address} is dead")
        assert f"({master.address})" in problem["nextStep"], "the only one that has every message"
        assert problem["command"].startswith("mqadmin electMaster -a ")
        assert problem["command"].endswith("--dry-run")


async def _fill_the_disk(cluster: Cluster, broker: Program) -> None:
    store = Path(f"/proc/{broker.pid}/root{broker.settings['storePathRootDir']}")
    disk, filler = os.statvfs(store), store / "filler"
    free = disk.f_bavail * disk.f_frsize
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free - disk.f_blocks * disk.f_frsize // 50)
    problem = await until(cluster, "broker.disk", "98% full")
    assert (problem["subject"], problem["level"]) == (broker.address, "failed")
    assert problem["command"] == f"mqadmin brokerStatus -b {broker.address}"
    filler.unlink()
    await until_well(cluster)


async def _mqadmin(*args: str) -> None:
    command = [*MQADMIN, *args]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def _watch_and_top(namesrv_addr: str) -> None:
    for command in (
        [*KEELMQ, "status", "-n", namesrv_addr, "--watch", "1", "--json"],
        [
            sys.executable,
            "-m",
            "cli.mqadmin.main",
            "clusterList",
            "-n",
            namesrv_addr,
            "--watch",
            "1",
            "--json",
        ],
    ):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert [type(json.loads(process.stdout.readline())) for _ in range(2)]
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=END_S)
        assert (process.returncode, errors) == (130, "")
    piped = subprocess.run([*KEELMQ, "top", "-n", namesrv_addr], capture_output=True, text=True, timeout=60)
    assert piped.returncode == 2 and "status --watch 2 --json" in piped.stderr
    assert _top(namesrv_addr, "sbsrgq") == 0


def _top(namesrv_addr: str, pressed: str) -> int:
    """Runs keelmq top in a terminal, presses keys when it shows the group, returns its exit code."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    command = [*KEELMQ, "top", "-n", namesrv_addr]
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    shown, deadline = b"", time.monotonic() + END_S
    try:
        while b"3/3" not in shown and process.poll() is None and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                with suppress(OSError):  # it has closed its side
                    shown += os.read(ours, 65_536)
        assert b"IN SYNC" in shown and b"3/3" in shown, shown
        os.write(ours, pressed.encode())
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                with suppress(OSError):  # it has closed its side
                    shown += os.read(ours, 65_536)
        assert b"\x1b[?1049l" in shown  # the screen that was there before is back
        return process.wait(END_S)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
