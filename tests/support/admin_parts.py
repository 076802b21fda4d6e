"""What the tests of command lines share: commands run in this process, servers in a thread of their own (a
command owns the main thread's event loop)."""

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from typer.testing import CliRunner, Result

from cli.mqadmin.main import app

T = TypeVar("T")

DEAD = "127.0.0.1:1"
START_TIMEOUT_S = 20.0
FIXTURES = Path(__file__).parent.parent / "fixtures" / "mqadmin"


def mqadmin(*args: str) -> Result:
    result = CliRunner().invoke(app, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def captured(name: str) -> str:
    """What RocketMQ's own tool printed."""
    return (FIXTURES / f"{name}.txt").read_text().rstrip("\n")


@contextmanager
def hanging() -> Iterator[str]:
    """The system takes connections and bytes for it, and that is all: what a stopped program looks like."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


class InThread:
    """Servers behind `serving()`, alive while `running()`."""

    def serving(self) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError

    @contextmanager
    def running(self) -> Iterator[Self]:
        ready = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
        thread.start()
        try:
            assert ready.wait(START_TIMEOUT_S)
            yield self
        finally:
            if ready.is_set():
                self._loop.call_soon_threadsafe(self._over.set)
            thread.join(START_TIMEOUT_S)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it in the servers' thread, and returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_TIMEOUT_S)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with self.serving():
            ready.set()
            await self._over.wait()
