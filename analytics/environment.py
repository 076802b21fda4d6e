"""Variables of the process environment that are set for a while: programs that start meanwhile inherit
them."""

import os
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
