"""How long the event loop of a server keeps its clients waiting.

A timer measures how late it is: the time that callbacks, garbage collections and other users of the machine's
CPUs have kept the loop from its next turn. This is always on, with uvloop and with asyncio, and costs a
thousandth of a CPU.

With LOOP_BUDGET in the environment (tests, `keelmq chaos`) a thread looks at the stack of the loop's thread
when the loop has not turned for long, and the log gets a line if that thread used more CPU time than the
budget. Only CPU time counts: a busy machine or a stopped process is no fault of a callback.
"""

import asyncio
import gc
import logging
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from types import FrameType
from typing import Any, Final, NamedTuple

from keelmq.runtime.config import LOOP_BUDGET
from keelmq.runtime.histogram import Histogram

logger = logging.getLogger(__name__)

PERIOD_S: Final = 0.02
WATCHED_PERIOD_S: Final = 0.005
"""Period with a budget."""
WINDOW_S: Final = 10.0
WINDOWS: Final = 6
"""longest_s is that of the last WINDOWS windows of WINDOW_S: a scrape a minute misses nothing."""
FRAMES_MAX: Final = 12
SLOW_TURN: Final = "slow turn of the event loop"
"""Begins the line in the log: SLOW_TURN: cpu_ms=81 wall_ms=93 gc_ms=0 at=FUNCTION (FILE:LINE) stack=..."""
_LINE = re.compile(SLOW_TURN + r": cpu_ms=(\d+) .*?\bat=(.*)$")


class SlowTurn(NamedTuple):
    """A turn of the loop above the budget. at: the function and its line, then its callers."""

    cpu_ms: int
    at: str


def slow_turn_of(line: str) -> SlowTurn | None:
    """Parses a line of a log; None: it is another line."""
    found = _LINE.search(line)
    return None if found is None else SlowTurn(int(found[1]), found[2])


class LoopWatch:
    """Owned by the event loop's thread; the watching thread only reads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, budget_ms: float | None = None) -> None:
        self.lateness = Histogram()
        """Seconds that the timer was late, every PERIOD_S."""
        self._loop, self._budget_s = loop, None if budget_ms is None else budget_ms / 1000
        self._period_s = PERIOD_S if budget_ms is None else WATCHED_PERIOD_S
        self._due_s, self._window_ends_s = 0.0, 0.0
        self._longest: deque[float] = deque(maxlen=WINDOWS)
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: _Watcher | None = None

    @property
    def longest_s(self) -> float:
        """The longest lateness of the last minute, in seconds."""
        return max(self._longest, default=0.0)

    def start(self) -> None:
        """Begins to measure. To be called in the loop's thread."""
        if self._budget_s is not None:
            self._watcher = _Watcher(self._budget_s, self._period_s)
            self._watcher.start()
        self._next(time.monotonic())

    def close(self) -> None:
        """Ends the measurement."""
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.end()

    def _next(self, now_s: float) -> None:
        self._due_s = now_s + self._period_s
        self._timer = self._loop.call_later(self._period_s, self._turned)
        if self._watcher is not None:
            self._watcher.turned(now_s)

    def _turned(self) -> None:
        now_s = time.monotonic()
        late_s = max(now_s - self._due_s, 0.0)
        self.lateness.observe(late_s)
        if now_s >= self._window_ends_s:
            self._window_ends_s = now_s + WINDOW_S
            self._longest.append(late_s)
        elif late_s > self._longest[-1]:
            self._longest[-1] = late_s
        self._next(now_s)


class _Watcher:
    """The thread that looks at the stack of the loop's thread, which creates it."""

    def __init__(self, budget_s: float, period_s: float) -> None:
        self._budget_s, self._period_s = budget_s, period_s
        self._loop_thread = threading.get_ident()
        self._cpu_clock = time.pthread_getcpuclockid(self._loop_thread)
        self._turn = (0, time.monotonic(), 0.0, 0.0)
        self._gc_s = self._gc_began_s = 0.0
        self._seen: tuple[int, str] = (-1, "")  # the turn, and its stack
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop watch", daemon=True)

    def start(self) -> None:
        gc.callbacks.append(self._collecting)
        self._thread.start()

    def end(self) -> None:
        gc.callbacks.remove(self._collecting)
        self._ended.set()
        self._thread.join()

    def _collecting(self, phase: str, _info: dict[str, Any]) -> None:
        if threading.get_ident() != self._loop_thread:
            return
        if phase == "start":
            self._gc_began_s = time.perf_counter()
        else:
            self._gc_s += time.perf_counter() - self._gc_began_s

    def turned(self, now_s: float) -> None:
        """Called by the loop's thread at each turn."""
        cpu_s = time.clock_gettime(self._cpu_clock)
        number, began_s, cpu_began_s, gc_began_s = self._turn
        if number and cpu_s - cpu_began_s > self._budget_s:
            seen, stack = self._seen
            at = stack if seen == number else "at=unknown: over before anybody looked"
            logger.error(
                "%s: cpu_ms=%d wall_ms=%d gc_ms=%d %s",
                SLOW_TURN, (cpu_s - cpu_began_s) * 1000, (now_s - began_s) * 1000,
                (self._gc_s - gc_began_s) * 1000, at,
            )  # fmt: skip
            cpu_s = time.clock_gettime(self._cpu_clock)  # without the line
        self._turn = (number + 1, now_s, cpu_s, self._gc_s)

    def _watch(self) -> None:
        while not self._ended.wait(self._period_s):
            number, began_s, *_ = self._turn
            if time.monotonic() - began_s <= self._budget_s / 2:
                continue
            frame = sys._current_frames().get(self._loop_thread)
            if self._turn[0] == number and frame is not None and not _waits(frame):
                self._seen = (number, stack_text(frame))


def _waits(frame: FrameType) -> bool:
    """Whether the loop itself is what runs: it polls, or is between two callbacks."""
    return frame.f_code.co_filename.endswith(("asyncio/base_events.py", "selectors.py", "asyncio/runners.py"))


def stack_text(frame: FrameType | None) -> str:
    """Returns "at=FUNCTION (FILE:LINE) stack=FUNCTION:LINE < ..." of a frame, innermost first, without the
    frames of the loop."""
    calls: list[str] = []
    at = ""
    while frame is not None and len(calls) < FRAMES_MAX:
        code = frame.f_code
        if (code.co_filename.endswith("asyncio/events.py") and code.co_name == "_run") or _waits(frame):
            break
        if not calls:
            at = f"{code.co_qualname} ({'/'.join(code.co_filename.split('/')[-3:])}:{frame.f_lineno})"
        calls.append(f"{code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return f"at={at} stack={' < '.join(calls)}"


_running: LoopWatch | None = None


def running() -> LoopWatch | None:
    """Returns the watch of this process; None: none was started, as in a user's test."""
    return _running


def start(environ: Mapping[str, str] = os.environ) -> LoopWatch:
    """Starts the watch of this process, for the running loop. The previous one ends."""
    global _running
    if _running is not None:
        _running.close()
    _running = LoopWatch(asyncio.get_running_loop(), budget_ms=budget_of(environ))
    _running.start()
    return _running


def budget_of(environ: Mapping[str, str]) -> float | None:
    """Returns the budget in ms; None without one. ValueError: it is not a number above 0."""
    text = environ.get(LOOP_BUDGET, "")
    if not text:
        return None
    budget_ms = float(text)
    if not 0 < budget_ms < float("inf"):
        raise ValueError(f"{LOOP_BUDGET}={text} is not a number of milliseconds above 0")
    return budget_ms
