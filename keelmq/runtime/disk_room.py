"""How full a disk is, in the figures of df: blocks reserved for root are neither used nor available."""

import os
from pathlib import Path
from typing import NamedTuple


class DiskRoom(NamedTuple):
    """Bytes: total: of the disk, reserved blocks included. used. available: to this process."""

    total: int
    used: int
    available: int

    @property
    def free(self) -> int:
        """Bytes without data, reserved ones included: what Java's File.getFreeSpace returns."""
        return self.total - self.used

    @property
    def used_ratio(self) -> float:
        """The used part of what can be used: 0 to 1. RocketMQ's ratios of a disk are compared with it."""
        return self.used / max(self.used + self.available, 1)

    def available_up_to(self, used_ratio: float) -> int:
        """Returns the bytes that can still be written before this much is used; negative: more is used."""
        return int((self.used + self.available) * used_ratio) - self.used


def disk_room(path: Path) -> DiskRoom:
    """Returns the room on the disk of a file or directory. Raises OSError."""
    found = os.statvfs(path)
    unit = found.f_frsize
    return DiskRoom(found.f_blocks * unit, (found.f_blocks - found.f_bfree) * unit, found.f_bavail * unit)


def disk_ratio(path: Path) -> float:
    """Returns the used part of the disk: 0 to 1. Raises OSError."""
    return disk_room(path).used_ratio
