"""How many items an object holds: what a test of bounded memory asks, whatever the attributes are called."""

import gc
import tracemalloc
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

CONTAINERS = (list, set, deque)


def items_held(by: object) -> int:
    """The sum of the lengths of all lists, sets, deques and dicts in the object's attributes, and in
    those of the objects of ours in it. Shared ones count once."""
    return sum(len(each) for each in _containers(by, set()))


def _containers(value: object, seen: set[int]) -> Iterator[Any]:
    if id(value) in seen:
        return
    seen.add(id(value))
    inside: list[object] = []
    if isinstance(value, Mapping):
        yield value
        inside += [*value.keys(), *value.values()]
    elif isinstance(value, CONTAINERS):
        yield value
        inside += value
    elif type(value).__module__.partition(".")[0] in ("keelmq", "namesrv", "broker"):
        inside += getattr(value, "__dict__", {}).values()
        for owner in type(value).__mro__:
            slots = getattr(owner, "__slots__", ())
            names = (slots,) if isinstance(slots, str) else slots
            inside += [getattr(value, name) for name in names if hasattr(value, name)]
    for each in inside:
        yield from _containers(each, seen)


@contextmanager
def memory_grows_by(bytes_max: int) -> Iterator[None]:
    """Asserts that what is allocated in the block, and is there at its end, has at most this many bytes."""
    tracemalloc.start()
    try:
        yield
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] <= bytes_max
    finally:
        tracemalloc.stop()
