"""Threads that the end of the process does not wait for: one call, and a pool of them.

The threads of concurrent.futures.ThreadPoolExecutor, and of asyncio.to_thread, are joined when the
interpreter ends: a function that hangs, such as an application's listener, would keep the process alive.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from keelmq.runtime.log_context import in_context

P = ParamSpec("P")
T = TypeVar("T")


async def in_daemon_thread(call: Callable[[], T], *, name: str) -> T:
    """Returns the result of `call`, or raises its exception, like asyncio.to_thread. For a call that cannot
    be cancelled, may take long, and leaves nothing to save: neither the event loop nor the interpreter waits
    for it at the end, as they do for the threads of an executor."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return  # the caller was cancelled
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, problem = None, None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised where the caller waits
            problem = error
        with suppress(RuntimeError):  # the loop is closed: no caller is left
            loop.call_soon_threadsafe(settle, result, problem)

    threading.Thread(target=in_context(run), daemon=True, name=name).start()
    return await future


class DaemonThreads(Executor):
    """An Executor of at most `threads_max` daemon threads, which start when they are needed."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max, self._name = threads_max, name
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._shut = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Runs the function in a thread, in the present context. RuntimeError: after shutdown()."""
        future: Future[T] = Future()
        with self._lock:
            if self._shut:
                raise RuntimeError(f"the threads of {self._name} were shut down")
            self._jobs.put((future, in_context(partial(function, *args, **kwargs))))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._threads_max:
                name = f"{self._name}_{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads after the functions that were submitted; cancel_futures: after those that run."""
        with self._lock:
            self._shut = True
            while cancel_futures and not self._jobs.empty():
                job = self._jobs.get()
                if job is not None:
                    job[0].cancel()
            for _ in self._threads:
                self._jobs.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function = job
            if future.set_running_or_notify_cancel():
                try:
                    result = function()
                except BaseException as error:  # noqa: BLE001 - the future's owner gets it
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del job, future, function  # an idle thread keeps no message alive
            self._idle.release()
