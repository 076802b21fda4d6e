"""in_daemon_thread and DaemonThreads: results, exceptions, and ends that do not wait."""

import asyncio
import subprocess
import sys
import threading

import pytest

from keelmq.runtime.daemon_threads import DaemonThreads, in_daemon_thread


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
from keelmq.runtime.daemon_threads import in_daemon_thread

async def main():
    task = asyncio.create_task(in_daemon_thread(threading.Event().wait, name="hangs"))
    await asyncio.sleep(0)
    task.cancel()

asyncio.run(main())
print("ended")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_a_pool() -> None:
    pool = DaemonThreads(2, "pool")
    gate, seen = threading.Event(), threading.Barrier(3)
    held = [pool.submit(lambda: (seen.wait(20), gate.wait(20))) for _ in range(2)]
    seen.wait(20)  # two run at once
    third, fourth = pool.submit(lambda a, b=0: a + b, 1, b=2), pool.submit(int, "x")
    assert not third.done() and third.cancel()
    gate.set()
    with pytest.raises(ValueError, match="invalid literal"):
        fourth.result(20)
    assert [each.result(20)[1] for each in held] == [True, True]
    assert pool.submit(threading.current_thread).result(20).name in ("pool_0", "pool_1")
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(int)


def test_what_has_not_begun_is_cancelled_at_the_end() -> None:
    pool, gate, begun = DaemonThreads(1, "pool"), threading.Event(), threading.Event()
    pool.submit(lambda: (begun.set(), gate.wait(20)))
    begun.wait(20)
    waits = pool.submit(int)
    pool.shutdown(wait=False, cancel_futures=True)
    assert waits.cancelled()
    gate.set()
    pool.shutdown()
