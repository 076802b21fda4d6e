"""SIGTERM, and the SIGHUP of a terminal that is closed, end a run as Ctrl-C does: every program is ended, and
temporary files are deleted."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ends_like_ctrl_c() -> Iterator[None]:
    """For the main thread; also a decorator. Only the first SIGHUP counts, because a terminal sends several;
    none does where it is ignored (nohup)."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if number is signal.SIGTERM or handler is not signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ctrl_c = signal.getsignal(signal.SIGINT)  # in an event loop asyncio's, which cancels the main task
    if not callable(ctrl_c):
        raise KeyboardInterrupt
    ctrl_c(signal.SIGINT, frame)
