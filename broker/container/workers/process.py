"""The worker's process as its supervisor sees it: spawned with one end of a socket pair, ended, described."""

import asyncio
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from keelmq.runtime import program
from keelmq.runtime.log_context import is_log_json

COMMAND: Final = (sys.executable, "-m", "broker.container.workers.worker")


class Process(Protocol):
    """Of asyncio.subprocess."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def kill(self) -> None: ...


class Spawn(Protocol):
    """See spawn()."""

    async def __call__(
        self, number: int, *, command: Sequence[str], environ: Mapping[str, str]
    ) -> tuple[Process, socket.socket]: ...


async def spawn(
    number: int, *, command: Sequence[str], environ: Mapping[str, str]
) -> tuple[Process, socket.socket]:
    """Starts a worker. Returns its process and the supervisor's end of the pair. Its command line contains no
    secrets, since users of the machine can read it; stderr is the supervisor's, so that there is one log.
    Raises OSError."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
            log = ("--log-level", level, "--log-format", program.JSON if is_log_json() else program.TEXT)
            process = await asyncio.create_subprocess_exec(
                *(*command, "--number", str(number), "--fd", str(theirs.fileno()), *log),
                stdin=DEVNULL,
                stdout=DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **environ},
            )
    except BaseException:
        ours.close()
        raise
    ours.setblocking(False)
    return process, ours


async def end(process: Process, patience_ms: int) -> bool:
    """Waits until the process has ended and is reaped: it is killed by SIGKILL after patience_ms. Returns
    whether it was killed. Waits as long as the system needs: a process that still exists holds its ports and
    files, so it could not be replaced."""
    is_killed = False
    try:
        async with asyncio.timeout(patience_ms / 1000):
            await process.wait()
    except TimeoutError:
        is_killed = True
    finally:
        if process.returncode is None:
            is_killed = True
            process.kill()
            await process.wait()
    return is_killed


def how_it_ended(return_code: int) -> str:
    """Returns "was killed by SIGKILL" or "exited with code 1"."""
    if return_code >= 0:
        return f"exited with code {return_code}"
    try:
        return f"was killed by {signal.Signals(-return_code).name}"
    except ValueError:
        return f"was killed by signal {-return_code}"
