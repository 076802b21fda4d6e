"""A master whose disk is full, with real processes under traffic: each broker has a small disk of its own."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.lab.cluster import Program
from cli.lab.observer import Picture
from tests.bench.switch import Group, Load
from tests.cluster.test_hand_over import RATE, steady

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

DISK_BYTES = 64 << 20
SETTINGS = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 1_000),
    "messageIndexEnable": "false",
    "timerWheelEnable": "false",
    "cleanFileForciblyEnable": "false",
    "cleanResourceInterval": "100",
}


@contextmanager
def small_disks(root: Path) -> Iterator[None]:
    folders = [root / f"broker-{number}" for number in range(3)]
    mounted = []
    try:
        for folder in folders:
            folder.mkdir()
            line = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "keel", str(folder)]
            if subprocess.run(line, check=False, capture_output=True).returncode != 0:
                pytest.skip("cannot mount a small disk")
            mounted.append(folder)
        yield
    finally:
        for folder in mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path, ratio: float = 0.93) -> None:
    room = os.statvfs(folder)
    used = (room.f_blocks - room.f_bfree) * room.f_frsize
    (folder / "ballast").write_bytes(bytes(int(room.f_blocks * room.f_frsize * ratio) - used))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts small disks: root only")
async def test_a_full_master_hands_over_to_a_replica_with_room(tmp_path: Path) -> None:
    with small_disks(tmp_path):
        async with Group(tmp_path, SETTINGS) as group, Load(group.cluster.namesrv_addr, rate=RATE) as load:
            await steady(group, load, 200)
            before = await group.all_in_sync()
            full = {before.master}
            fill(tmp_path / before.master)

            async def other_master() -> Picture | None:
                picture = await group.look()
                return picture if picture.all_in_sync(3) and picture.master not in full else None

            after = await group.cluster.until("a master with room", other_master, timeout_s=20)
            await steady(group, load, 200)
            assert after.master_epoch == before.master_epoch + 1
            assert load.errors == [], load.errors[:3]

            for number in range(3):
                if f"broker-{number}" != before.master:
                    fill(tmp_path / f"broker-{number}")

            async def staying() -> Program | None:
                said = "this broker stays master"
                return next(
                    (each for each in group.cluster.brokers if said in each.log_path.read_text()), None
                )

            master = await group.cluster.until("all disks are full", staying, timeout_s=20)
            picture = await group.all_in_sync()
            assert picture.master == master.name
            assert picture.master_epoch <= after.master_epoch + 1, "one in vain: a heartbeat was 1 s old"
            (tmp_path / master.name / "ballast").unlink()
            load.errors.clear()
            await steady(group, load, 200)
            assert (await group.all_in_sync()).master_epoch == picture.master_epoch, "no ping-pong"
            logs = {each.name: each.log_path.read_text() for each in group.cluster.brokers}
            assert logs[master.name].count("this broker stays master") == 1
            assert "Traceback" not in "".join(logs.values())
