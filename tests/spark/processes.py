"""A program with all the processes that it starts: what they take, and how one of them is killed."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
LOOK_S = 0.05
"""Between two looks at the processes: nobody tells when one ends that is not a child of ours."""


class FailedError(Exception):
    """A program ended with an exit code; with the end of its stderr."""


@dataclass(frozen=True)
class Took:
    """`peak_bytes`: the highest resident memory of all processes at one time; shared pages count in each.
    `said`: what was written to stderr."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    said: str


def start(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> subprocess.Popen[str]:
    """Starts a program as the leader of a session of processes. Its output is in the files stdout and stderr
    of `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as err:
        return subprocess.Popen(
            command, env=dict(environ), stdout=out, stderr=err, text=True, start_new_session=True
        )


def measure(
    command: Sequence[str], environ: Mapping[str, str], folder: Path, servers: Sequence[int] = ()
) -> Took:
    """Runs a program to its end, and looks at all its processes meanwhile. Raises FailedError. `servers`:
    pids that work for it as well."""
    began = time.monotonic()
    before_s = sum(map(_cpu_s, servers))
    process = start(command, environ, folder)
    cpu_s: dict[int, float] = {}
    peak = 0
    while process.poll() is None:
        alive = [process.pid, *descendants(process.pid), *servers]
        peak = max(peak, sum(map(_resident_bytes, alive)))
        cpu_s |= {pid: max(_cpu_s(pid), cpu_s.get(pid, 0.0)) for pid in alive}
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
    check(process, folder)
    return Took(
        time.monotonic() - began, sum(cpu_s.values()) - before_s, peak, (folder / "stderr").read_text()
    )


def check(process: subprocess.Popen[str], folder: Path) -> None:
    """Raises FailedError if the program that has ended did not end well."""
    if process.returncode:
        stderr = (folder / "stderr").read_text()[-2_000:]
        raise FailedError(f"{process.args!r} ended with {process.returncode}: {stderr}")


def descendants(pid: int) -> Iterator[int]:
    """Yields the processes below `pid`, without it."""
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from descendants(child)


def command_of(pid: int) -> str:
    """Returns the arguments of a process; "" if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def kill(pid: int) -> bool:
    """Kills a process with SIGKILL; returns whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def wait_for_all(process: subprocess.Popen[str], seconds: float) -> None:
    """Waits until the program and everything that it has started have ended. Raises TimeoutError, after it
    has killed what is left."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while left := _of_session(process.pid):
        if time.monotonic() > deadline:
            commands = [command_of(pid)[:200] for pid in left]
            for pid in left:
                kill(pid)
            raise TimeoutError(f"still running after {seconds} s: {commands}")
        pause.wait(LOOK_S)
    process.wait()


def _of_session(leader: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, session, *_ = path.read_text().rpartition(")")[2].split()
            if int(session) == leader and state not in "ZX":
                found.append(int(path.parent.name))
    return found


def _cpu_s(pid: int) -> float:
    """Returns the CPU seconds of a process, without its children."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / TICKS
    return 0.0


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    return 0
