"""The monotonic and the wall clock. Only shells read them; cores get `now_ms` as an argument."""

import time


def now_ms() -> int:
    """Monotonic milliseconds: for deadlines and ages, never shown to a peer."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Milliseconds since 1970: for timestamps that are stored or sent, never for deadlines."""
    return time.time_ns() // 1_000_000
