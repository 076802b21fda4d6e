"""A blocking call in a thread that the end of the process does not wait for."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from keelmq.runtime.log_context import in_context

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
