"""Runs a program whose wall clock and disk can be changed.

python -m cli.lab.chaos.fault_shim FILE MODULE ARGS.

FILE is 16 bytes of shared memory: the offset of the wall clock, and how much longer a flush to disk takes.
Both are read at every call, so a change takes effect at once. The program is not changed: functions of time
and os are replaced before its first line runs. Timers and deadlines are monotonic and not affected.
"""

import mmap
import os
import runpy
import struct
import sys
import time
from pathlib import Path

_WORDS = struct.Struct("<qq")  # clock offset in ns; ms that a flush takes longer


class FaultShim:
    """The nemesis' side: writes the two numbers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._clock_ms = self._flush_ms = 0
        self._write()

    def set_clock(self, offset_ms: int) -> None:
        """Sets how far the program's wall clock is ahead (ms; negative: behind)."""
        self._clock_ms = offset_ms
        self._write()

    def set_flush(self, longer_ms: int) -> None:
        """Sets how much longer each flush to disk takes (ms)."""
        self._flush_ms = longer_ms
        self._write()

    def _write(self) -> None:
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.write(_WORDS.pack(self._clock_ms * 1_000_000, self._flush_ms))


def install(path: Path) -> None:
    """Replaces the wall clock and the flushes of this process by ones that read the file's two numbers."""
    with path.open("rb") as file:
        words = mmap.mmap(file.fileno(), _WORDS.size, access=mmap.ACCESS_READ)
    time_ns, fsync, fdatasync, sleep = time.time_ns, os.fsync, os.fdatasync, time.sleep

    def changed_time_ns() -> int:
        offset_ns: int = _WORDS.unpack_from(words)[0]
        return time_ns() + offset_ns

    def changed_time() -> float:
        return changed_time_ns() / 1e9

    def wait() -> None:
        longer_ms = _WORDS.unpack_from(words)[1]
        if longer_ms > 0:
            sleep(longer_ms / 1_000)

    def slow_fsync(fd: int) -> None:
        wait()
        fsync(fd)

    def slow_fdatasync(fd: int) -> None:
        wait()
        fdatasync(fd)

    vars(time).update(time_ns=changed_time_ns, time=changed_time)
    vars(os).update(fsync=slow_fsync, fdatasync=slow_fdatasync)


def main() -> None:
    """Installs the shim, then runs the module of the command line as `__main__`."""
    path, module = Path(sys.argv[1]), sys.argv[2]
    install(path)
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
