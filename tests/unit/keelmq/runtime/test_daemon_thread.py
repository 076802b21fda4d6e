"""in_daemon_thread: results, exceptions, and ends that do not wait."""

import asyncio
import subprocess
import sys
import threading

import pytest

from keelmq.runtime.daemon_thread import in_daemon_thread


async def test_a_result_and_an_exception_reach_the_caller() -> None:
    assert await in_daemon_thread(lambda: threading.current_thread().name, name="asked") == "asked"
    with pytest.raises(ValueError, match="bad"):
        await in_daemon_thread(lambda: int("bad"), name="asked")


async def test_a_caller_that_was_cancelled_gets_nothing() -> None:
    go, done = threading.Event(), threading.Event()

    def call() -> None:
        go.wait(30)
        done.set()

    task = asyncio.create_task(in_daemon_thread(call, name="slow"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    assert await asyncio.to_thread(done.wait, 30)
    await asyncio.sleep(0)  # the thread's answer, which nobody takes


def test_neither_the_loop_nor_the_process_waits_for_it() -> None:
    """asyncio.to_thread would keep both until the call returns, which it does not."""
    program = """
import asyncio, threading
from keelmq.runtime.daemon_thread import in_daemon_thread

async def main():
    task = asyncio.create_task(in_daemon_thread(threading.Event().wait, name="hangs"))
    await asyncio.sleep(0)
    task.cancel()

asyncio.run(main())
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
