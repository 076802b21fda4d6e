"""What makes the start of a server quick, and the garbage collector that suits it afterwards."""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
YOUNG_OBJECTS_MAX = 20_000
"""Net new objects after which the collector looks for cycles among them (Python's default: 700)."""


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """For the imports of a program. They make a hundred thousand objects and nearly no garbage: collections
    would take a tenth of its start, and what was made is never looked at. Nor does pydantic look for plugins
    in the metadata of all installed packages. Ctrl-C ends the program without a traceback."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    gc.disable()
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
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
