"""The monotonic and the wall clock. Only shells read them; core modules get `now_ms` as an argument."""

import time


def now_ms() -> int:
    """Returns monotonic milliseconds: for deadlines and ages, never sent to a peer."""
    return time.monotonic_ns() // 1_000_000


def now_us() -> int:
    """Returns monotonic microseconds, of the clock of now_ms()."""
    return time.monotonic_ns() // 1_000


def wall_ms() -> int:
    """Returns milliseconds since 1970: for timestamps that are stored or sent, never for deadlines."""
    return time.time_ns() // 1_000_000
