"""Ends a process although one of its threads hangs. Python waits for all threads at its end, for ever: a
thread that waits for a dead disk would keep a stopped server, and its ports and files, until it is killed.
"""

import asyncio
import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

logger = logging.getLogger(__name__)

EXIT_HUNG: Final = 75
"""Exit code of a process that a thread would not let end. 70 to 74 are those of the raft log."""
EXIT_S_MAX: Final = 4.0
"""Time from the end of the stop to the end of the process, which needs milliseconds. Below the 5 s after
which a supervisor of worker processes kills them, so that the log has the stacks."""


def exit_within(seconds: float, reason: str = "") -> threading.Event:
    """Ends this process with EXIT_HUNG after `seconds`, with the reason and the stacks of all threads on
    stderr, unless it has ended by then or the returned event is set."""
    is_over = threading.Event()

    def end() -> None:
        if is_over.wait(seconds):
            return
        what = f" after: {reason}" if reason else ""
        logger.critical("a thread hangs%s; the process ends with exit code %d", what, EXIT_HUNG)
        logging.shutdown()
        faulthandler.dump_traceback(sys.__stderr__ or 2)
        os._exit(EXIT_HUNG)

    threading.Thread(target=end, daemon=True, name="bounded exit").start()
    return is_over


def end_with(status: int) -> NoReturn:
    """Exits with this status, or within EXIT_S_MAX: Python waits for all threads."""
    exit_within(EXIT_S_MAX)
    sys.exit(status)


@contextmanager
def bounded_end(runner: asyncio.Runner) -> Iterator[asyncio.Runner]:
    """Closes the runner after the block, as `with runner` does, and ends the process if that takes longer
    than EXIT_S_MAX: a task or thread hangs then. An error of the block is part of the log line."""
    is_over: threading.Event | None = None
    try:
        with runner:
            try:
                yield runner
            except BaseException as error:
                is_over = exit_within(EXIT_S_MAX, str(error))
                raise
            is_over = exit_within(EXIT_S_MAX)
    finally:
        if is_over is not None:
            is_over.set()
