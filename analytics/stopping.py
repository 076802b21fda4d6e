"""SIGTERM and SIGINT end a command that goes on until it is stopped."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def stopped_by_signal(stopped: threading.Event) -> Iterator[None]:
    """Sets `stopped` when one of them comes; puts the handlers back that were there. For the main thread."""
    before = {each: signal.signal(each, lambda *_: stopped.set()) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
