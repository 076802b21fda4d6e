"""Temporary changes of this process: variables of its environment, its main module."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment(values: Mapping[str, str], without: Iterable[str] = ()) -> Iterator[None]:
    """Sets `values`, and removes those named `without`; restores all of them at the end."""
    before = {name: os.environ.get(name) for name in (*values, *without)}
    for name in without:
        os.environ.pop(name, None)
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def named_main() -> Iterator[None]:
    """Gives the main module a file, if it has none, as in `python -c` and in workers of pytest-xdist.

    When PySpark's client is imported, it mistakes such a process for a run of PySpark's doctests, and ends it
    if Spark itself is not installed.
    """
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None or hasattr(main, "__file__"):
        yield
        return
    main.__file__ = "-c"
    try:
        yield
    finally:
        del main.__file__
