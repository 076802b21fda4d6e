"""The garbage collector of a server. It looks for cycles, of which a server makes few."""

import contextlib
import gc
from collections.abc import Iterator

YOUNG_OBJECTS_MAX = 20_000
"""Net new objects after which the collector looks for cycles among them (Python's default: 700)."""


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """For the imports of a program, which make a hundred thousand objects and nearly no garbage: collections
    take a tenth of its start. What they made is never looked at."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settle_collector() -> None:
    """Excludes the objects of the start, which live until the end, from garbage collection. Also makes
    collections rarer: a server drops nearly all objects of a request at its end, and with thousands of open
    requests each collection visits all of them and frees nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])
