"""Around the event loop of a server: what it was started with, and what ends it. In processes of their own."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

SERVE = """
import asyncio, sys
from keelmq.runtime import program

async def serve():
    stop = program.stop_event()
    program.say_ready("test")
    await stop.wait()

with program.runner() as runner:
    runner.run(serve())
"""


@contextmanager
def started(redirections: str) -> Iterator[subprocess.Popen[str]]:
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-c", SERVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield server
        finally:
            server.kill()


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_a_closed_standard_stream_does_not_abort_the_end(closed: str) -> None:
    """libuv aborts the process when it closes a socket or an epoll with the number of one."""
    with started(closed) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready: test\n"
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
