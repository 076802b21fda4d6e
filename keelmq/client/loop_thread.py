"""The thread whose event loop serves all blocking clients of a process (keelmq/blocking.py)."""

import asyncio
import logging
import os
import threading

from keelmq.runtime.tasks import cancel_all

logger = logging.getLogger(__name__)


class LoopThread:
    """Reference-counted: the loop runs while a client holds it. A forked child has no such thread, and does
    not close the parent's loop, whose descriptors belong to the parent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._inherited: asyncio.AbstractEventLoop | None = None

    def hold(self) -> asyncio.AbstractEventLoop:
        """Returns the loop, and starts the thread for the first holder."""
        with self._lock:
            self._holders += 1
            if self._loop is None:
                self._loop, self._stopped = asyncio.new_event_loop(), threading.Event()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop, self._stopped), name="keelmq clients", daemon=True
                )
                self._thread.start()
            return self._loop

    def is_current(self) -> bool:
        """Returns whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    def forked(self) -> None:
        """Resets this object in a forked child, before anything else runs there."""
        self._inherited = self._loop  # kept referenced, so that nothing of it is closed here
        self._lock, self._holders = threading.Lock(), 0
        self._loop = self._thread = None

    def release(self) -> None:
        """Ends one holder's use; stops the thread after the last."""
        with self._lock:
            self._holders -= 1
            if self._holders or self._loop is None or self._thread is None:
                return
            self._loop.call_soon_threadsafe(_stop, self._loop, self._stopped)
            self._thread.join()
            self._loop = self._thread = None


def _stop(loop: asyncio.AbstractEventLoop, stopped: threading.Event) -> None:
    stopped.set()
    loop.stop()


def _run_loop(loop: asyncio.AbstractEventLoop, stopped: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    try:
        while not stopped.is_set():
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):  # asyncio lets these two of a task or a hook end the loop
                logger.exception("this does not end the thread of the clients, which others use")
        loop.run_until_complete(cancel_all(asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


clients_thread = LoopThread()
os.register_at_fork(after_in_child=clients_thread.forked)
