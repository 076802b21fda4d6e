"""Processes on virtual time: an event loop that knows whose callback runs, and can hold a process back.

A process is a context variable: what a task of it starts, and what arrives for it, belongs to it. So each has
its own wall clock, disk and address, and SIGSTOP is a list of callbacks that wait. After kill -9 its code
goes on for some steps as a ghost: its directory is abandoned and its network is dead, so nobody can know.
"""

import asyncio
import contextvars
import gc
import heapq
import itertools
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import keelmq.remoting.client
import keelmq.remoting.connection
from broker.store.queue.consume_queue import ConsumeQueue
from keelmq.remoting.connection import Connection
from tests.sim.raft.virtual import VirtualLoop

WALL_S = 1_800_000_000
OURS = ("broker.", "namesrv.", "keelmq.")


class Process:
    """One run of one program. `host` is its address in the network; `skew_s` of its wall clock."""

    def __init__(self, loop: "MachineLoop", name: str, host: str) -> None:
        self.loop, self.name, self.host = loop, name, host
        self.alive = True
        self.skew_s = 0.0
        self.held: list[asyncio.Handle] | None = None
        self.on_disk: Callable[[str], None] | None = None
        self.disk: Any = None
        self.main: asyncio.Task[Any] | None = None
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def run(self, what: Callable[[], Awaitable[None]]) -> None:
        """Starts its main task."""

        async def main() -> None:
            await what()

        self.main = self.loop.create_task(main(), name=self.name, context=self.context)

    def pause(self) -> None:
        if self.held is None:
            self.held = []

    def resume(self) -> None:
        held, self.held = self.held or [], None
        self.loop.take_back(held)

    @property
    def is_paused(self) -> bool:
        return self.held is not None


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def _run(handle: asyncio.Handle) -> None:
    """Waits while its process is held back."""
    process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
    if process is None:
        asyncio.Handle._run(handle)
    elif process.held is not None:
        process.held.append(handle)
    else:
        process.loop.budget.run(handle, process)


class CallbackBudget:
    """The CPU time that one callback of a process may take, without garbage collection: a longer one would
    keep everybody else of a real process waiting. What a helper thread does is no callback."""

    LIMIT_S = 0.05
    LONG_S = 0.01
    """Longer ones are remembered, for those who look where time goes."""

    def __init__(self) -> None:
        self.exceeded: dict[str, float] = {}
        """By the names of callbacks: the CPU time of the longest above LIMIT_S."""
        self.longest: tuple[float, str] = (0.0, "")
        self._collected_s = self._began_s = 0.0

    def run(self, handle: asyncio.Handle, process: Process) -> None:
        collected_s, began_s = self._collected_s, CPU_S()
        asyncio.Handle._run(handle)
        used_s = CPU_S() - began_s - (self._collected_s - collected_s)
        if used_s <= self.LONG_S or is_of_helper_thread(handle) or not process.alive:
            return
        name = f"{process.name}: {name_of(handle)}"
        self.longest = max(self.longest, (used_s, name))
        if used_s > self.LIMIT_S:
            self.exceeded[name] = max(used_s, self.exceeded.get(name, 0.0))

    def collecting(self, phase: str, _info: dict[str, Any]) -> None:
        """For gc.callbacks."""
        if phase == "start":
            self._began_s = CPU_S()
        else:
            self._collected_s += CPU_S() - self._began_s


CPU_S = time.thread_time
"""The real one: the programs' clocks are virtual."""


def is_of_helper_thread(handle: asyncio.Handle) -> bool:
    """Whether the callback is what a helper thread would do."""
    callback = handle._callback  # type: ignore[attr-defined]
    return getattr(callback, "__qualname__", "") == HELPER


def name_of(handle: asyncio.Handle) -> str:
    """Returns the callback; of a task its name and where it waits now, innermost last."""
    callback = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return str(getattr(callback, "__qualname__", callback))
    awaits, coroutine = list[str](), task.get_coro()
    while coroutine is not None and (code := getattr(coroutine, "cr_code", None)) is not None:
        awaits.append(f"{code.co_qualname}:{coroutine.cr_frame.f_lineno if coroutine.cr_frame else 'ended'}")
        coroutine = coroutine.cr_await
    own = "" if task.get_name().startswith("Task-") else f"task {task.get_name()}, "  # those are counted
    return own + " > ".join(awaits)


class _Handle(asyncio.Handle):
    __slots__ = ()
    _run = _run


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ()
    _run = _run


class _Numbered:
    """Sets of these loop in an order that does not depend on where they lie in memory."""

    _numbers = itertools.count()
    _number: int

    def __hash__(self) -> int:
        return self._number


class _Task(_Numbered, asyncio.Task[Any]):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._number = next(_Numbered._numbers)
        super().__init__(*arguments, **named)


class _Future(_Numbered, asyncio.Future[Any]):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._number = next(_Numbered._numbers)
        super().__init__(*arguments, **named)


class MachineLoop(VirtualLoop):
    """`executor_s`: how long a call in a helper thread takes; rolled for each."""

    def __init__(self, dice: Random) -> None:
        super().__init__()
        _Numbered._numbers = itertools.count()
        self.set_task_factory(lambda _loop, what, **more: _Task(what, loop=self, **more))
        self.dice = dice
        self.executor_s: tuple[float, float] = (0.0002, 0.004)
        self.problems: list[str] = []
        self.budget = CallbackBudget()
        self.set_exception_handler(self._problem)

    def _problem(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        process = PROCESS.get()
        if process is None or process.alive:
            self.problems.append(f"{process.name if process else '?'}: {context}")

    def create_future(self) -> Any:
        return _Future(loop=self)

    def take_back(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def _call_soon(self, callback: Any, args: Any, context: Any) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Some time later, at once: what a helper thread does is one step here."""
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - the caller's
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():  # the process was killed in the middle of it
                    future.set_result(result)

        self.call_later(self.dice.uniform(*self.executor_s), work)
        return future


HELPER = f"{MachineLoop.run_in_executor.__qualname__}.<locals>.work"


@contextmanager
def virtual_machines(loop: MachineLoop, seed: int) -> Iterator[None]:
    """Inside, the programs read no clock, die or counter but those of this world."""

    def monotonic_ns() -> int:
        return int(loop.time() * 1e9)

    def time_ns() -> int:
        process = PROCESS.get()
        return monotonic_ns() + int((WALL_S + (process.skew_s if process else 0.0)) * 1e9)

    def wall_s() -> float:
        return time_ns() / 1e9

    fake = {
        "monotonic_ns": monotonic_ns,
        "monotonic": lambda: monotonic_ns() / 1e9,
        "perf_counter": lambda: monotonic_ns() / 1e9,
        "time_ns": time_ns,
        "time": wall_s,
        "localtime": lambda seconds=None: time.gmtime(wall_s() if seconds is None else seconds),
        "strftime": lambda text, when=None: time.strftime(text, when or time.gmtime(wall_s())),
    }
    clock = SimpleNamespace(**(vars(time) | fake))
    state = random.getstate()
    random.seed(seed)
    with ExitStack() as stack:
        for name, module in sorted(sys.modules.items()):
            if name.startswith(OURS) and vars(module).get("time") is time:
                stack.enter_context(mock.patch.object(module, "time", clock))
        stack.enter_context(mock.patch.object(os, "urandom", Random(f"urandom {seed}").randbytes))
        stack.enter_context(mock.patch.object(keelmq.remoting.client, "_opaques", itertools.count(1)))
        stack.enter_context(mock.patch.object(keelmq.remoting.connection, "_ids", itertools.count(1)))
        for kind, number in (
            (Connection, lambda each: each.connection_id),
            (ConsumeQueue, lambda each: hash((each.topic, each.queue_id))),
        ):
            stack.enter_context(mock.patch.object(kind, "__hash__", number))
        gc.callbacks.append(loop.budget.collecting)
        try:
            yield
        finally:
            gc.callbacks.remove(loop.budget.collecting)
            random.setstate(state)
