import os
from pathlib import Path

import pytest

from keelmq.runtime.disk_room import DiskRoom, disk_ratio, disk_room


def test_blocks_reserved_for_root_are_neither_used_nor_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 blocks of 4 KiB: 40 used, 10 available, 50 reserved. df says 80 %."""
    found = os.statvfs_result((512, 4_096, 100, 60, 10, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: found)
    room = disk_room(tmp_path)
    assert room == DiskRoom(total=409_600, used=163_840, available=40_960)
    assert room.free == 245_760  # File.getFreeSpace: with the blocks that are reserved for root
    assert room.used_ratio == disk_ratio(tmp_path) == pytest.approx(0.8)


def test_room_is_left_up_to_a_ratio() -> None:
    room = DiskRoom(total=1_000, used=400, available=100)
    assert room.available_up_to(0.9) == 50
    assert room.available_up_to(0.8) == 0
    assert room.available_up_to(0.6) == -100, "more is used already"


def test_a_disk_without_blocks_is_empty() -> None:
    """As some virtual file systems report."""
    assert DiskRoom(0, 0, 0).used_ratio == 0
