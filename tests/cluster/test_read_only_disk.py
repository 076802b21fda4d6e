"""A master whose disk becomes read-only, with real processes under traffic.

`mount` refuses to remount a disk read-only while files are open on it for writing (EBUSY). It becomes
read-only by an error of its file system, as here. Each broker has an ext4 of its own.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.lab.cluster import Program
from cli.lab.observer import Picture
from tests.bench.switch import Group, Load
from tests.cluster.test_full_disk import SETTINGS
from tests.cluster.test_hand_over import RATE, steady

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

DISK_BYTES = 96 << 20


@contextmanager
def own_disks(root: Path) -> Iterator[None]:
    mounted = []
    try:
        for folder in (root / f"broker-{number}" for number in range(3)):
            folder.mkdir()
            image = root / f"{folder.name}.ext4"
            with image.open("wb") as file:
                file.truncate(DISK_BYTES)
            for line in (
                ["mkfs.ext4", "-q", "-F", str(image)],
                ["mount", "-o", "loop,errors=remount-ro", str(image), str(folder)],
            ):
                try:
                    subprocess.run(line, check=True, capture_output=True)
                except (OSError, subprocess.CalledProcessError) as error:
                    pytest.skip(f"cannot mount an ext4: {error}")
            mounted.append(folder)
            (folder / "lost+found").rmdir()
        yield
    finally:
        for folder in mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def make_read_only(folder: Path) -> None:
    """As the kernel does after an error of the file system."""
    line = ["findmnt", "-n", "-o", "SOURCE", str(folder)]
    device = subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()
    (Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error").write_text("1")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts disks: root only")
async def test_a_master_hands_over_when_its_disk_is_read_only(tmp_path: Path) -> None:
    with own_disks(tmp_path):
        async with Group(tmp_path, SETTINGS) as group, Load(group.cluster.namesrv_addr, rate=RATE) as load:
            await steady(group, load, 200)
            before = await group.all_in_sync()
            make_read_only(tmp_path / before.master)

            async def other_master() -> Picture | None:
                picture = await group.look()
                return picture if picture.master and picture.master != before.master else None

            after = await group.cluster.until("a master that can write", other_master, timeout_s=20)
            await steady(group, load, 200)
            assert after.master_epoch == before.master_epoch + 1
            assert load.errors == [], load.errors[:3]
            old = next(each for each in group.cluster.brokers if each.name == before.master)
            log = old.log_path.read_text()
            assert "could not be synced: Read-only file system" in log and "hand-over to broker" in log
            assert "Make the disk writable" in log and "Traceback" not in log

            def disk_problem(status: dict[str, Any]) -> dict[str, Any] | None:
                found = [each for each in status["problems"] if each["check"] == "broker.disk"]
                return found[0] if found else None

            status = await group.cluster.until(
                "status names the disk", told(group, disk_problem), timeout_s=20
            )
            problem = disk_problem(status)
            assert problem is not None and problem["level"] == "failed"
            assert "the disk takes no writes" in problem["text"] and "writable again" in problem["nextStep"]
            advice = " ".join(f"{each['nextStep']} {each['command']}" for each in status["problems"])
            assert "keelmq repair" not in advice and "mqbroker -c" not in advice, "it runs, and cannot repair"
            assert old.process is not None and old.process.poll() is None
            refusal = await stop_and_start(group, old)
            assert f"cannot use {tmp_path / old.name}" in refusal and "Read-only file system" in refusal


async def stop_and_start(group: Group, broker: Program) -> str:
    """Returns what a start on the read-only disk says."""
    assert broker.process is not None
    broker.process.terminate()
    await asyncio.to_thread(broker.process.wait, 20)
    said = len(broker.log_path.read_text())
    group.cluster.start_program(broker)
    assert await asyncio.to_thread(broker.process.wait, 20) == 1
    broker.process = None  # it ended because we asked: nothing for cluster.check()
    return broker.log_path.read_text()[said:]


def told(
    group: Group, wanted: Callable[[dict[str, Any]], object]
) -> Callable[[], Awaitable[dict[str, Any] | None]]:
    """Returns a function that returns the status once `wanted` finds something in it; else None."""
    line = [sys.executable, "-m", "cli.keelmq", "status", "-n", group.cluster.namesrv_addr, "--json"]

    async def look() -> dict[str, Any] | None:
        done = await asyncio.to_thread(subprocess.run, line, check=False, capture_output=True, text=True)
        status: dict[str, Any] = json.loads(done.stdout)
        return status if wanted(status) else None

    return look
