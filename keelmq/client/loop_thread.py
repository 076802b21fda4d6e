"""The thread whose event loop serves all clients of a process that has none (client/blocking.py)."""

import asyncio
import threading


class LoopThread:
    """Counted: the loop runs while somebody holds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def hold(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            self._holders += 1
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="keelmq clients", daemon=True
                )
                self._thread.start()
            return self._loop

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders or self._loop is None or self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop = self._thread = None


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


clients_thread = LoopThread()
