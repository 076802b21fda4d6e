"""A process ends although a thread hangs, and says so. In processes of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

from keelmq.runtime.bounded_exit import EXIT_HUNG

HANG = """
import asyncio, sys, threading
from keelmq.runtime import bounded_exit
bounded_exit.EXIT_S_MAX = 0.2

async def work():
    loop = asyncio.get_running_loop()
    if "hang" in sys.argv:
        loop.run_in_executor(None, threading.Event().wait)
    if "raise" in sys.argv:
        raise RuntimeError("c1_b_0 hangs")

with bounded_exit.bounded_end(asyncio.Runner()) as runner:
    runner.run(work())
over = threading.Event()
if "later" in sys.argv:
    bounded_exit.exit_within(0.2)
    threading.Thread(target=over.wait).start()
print("ended")
"""


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HANG, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("hang",), "a thread hangs;"), (("hang", "raise"), "a thread hangs after: c1_b_0 hangs;")],
)
def test_a_thread_that_hangs_does_not_keep_the_process(arguments: tuple[str, ...], said: str) -> None:
    process = ended(*arguments)
    assert process.returncode == EXIT_HUNG
    assert said in process.stderr and f"exit code {EXIT_HUNG}" in process.stderr
    assert "threading.py" in process.stderr and "wait" in process.stderr, "the stack of the thread"


def test_a_thread_that_is_not_of_the_loop() -> None:
    process = ended("later")
    assert (process.returncode, process.stdout) == (EXIT_HUNG, "ended\n")


def test_an_end_without_hanging_threads_is_as_before(tmp_path: Path) -> None:
    process = ended()
    assert (process.returncode, process.stdout, process.stderr) == (0, "ended\n", "")
    raised = ended("raise")
    assert raised.returncode == 1 and "a thread hangs" not in raised.stderr
