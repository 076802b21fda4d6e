"""UNIQ_KEY values in RocketMQ's layout: RocketMQ's tools look a message up by the time in its id.

4 address bytes | u16 process id | u32 class loader | u32 ms since the month began (local time) | u16 counter

as 32 upper-case hex digits. A Python process has no class loader: 32 random bits replace its hash, so that
processes with equal addresses and ids (containers, in which the process id is often 1) have different keys.
Source: RocketMQ 5.3.3 MessageClientIDSetter.
"""

import itertools
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Final

_HEAD: Final = struct.Struct(">4sHI")
_TAIL: Final = struct.Struct(">IH")
_random = random.SystemRandom()  # not the shared one, which an application may have seeded


def month_ms(at_ms: int, *, months: int = 0) -> int:
    """Returns when the month of `at_ms`, or one that many months later, begins in local time; both in ms
    since 1970."""
    at = time.localtime(at_ms / 1_000)
    return int(time.mktime((at.tm_year, at.tm_mon + months, 1, 0, 0, 0, 0, 0, -1))) * 1_000


class UniqueKeys:
    """Yields the keys of one process, from any thread. `address`: 4 bytes; None: of the interface to other
    machines. `wall_ms`: the wall clock, ms since 1970."""

    def __init__(self, wall_ms: Callable[[], int] | None = None, address: bytes | None = None) -> None:
        self._wall_ms, self._address = wall_ms or _wall_ms, address
        self._lock = threading.Lock()
        self._begin_ms = self._end_ms = self._last_ms = 0
        self.forked()

    def forked(self) -> None:
        """Begins anew in a forked child, whose keys must differ from the parent's."""
        self._lock = threading.Lock()
        self._head, self._counts = self._new_head(), itertools.count()

    def _new_head(self) -> str:
        address = own_address() if self._address is None else self._address
        return _HEAD.pack(address, os.getpid() & 0xFFFF, _random.getrandbits(32)).hex().upper()

    def __iter__(self) -> "UniqueKeys":
        return self

    def __next__(self) -> str:
        """Returns a new key of 32 digits."""
        with self._lock:
            count = next(self._counts)
            now = self._wall_ms()
            if now < self._last_ms:  # the clock was set back: an earlier key may have this time and counter
                self._head = self._new_head()
            self._last_ms = now
            if not self._begin_ms <= now < self._end_ms:
                self._begin_ms, self._end_ms = month_ms(now), month_ms(now, months=1)
            return self._head + _TAIL.pack(now - self._begin_ms, count & 0xFFFF).hex().upper()

    next = __next__


def own_address() -> bytes:
    """Returns the IPv4 address of the interface to other machines, 4 random bytes if there is none, as
    RocketMQ does. A UDP connect sends nothing; it only asks the routing table."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return socket.inet_aton(probe.getsockname()[0])
        except OSError:
            return _random.getrandbits(32).to_bytes(4, "big")


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


of_process: Final = UniqueKeys()
"""The keys of this process. All its clients share them, so that two of them never have equal keys."""
os.register_at_fork(after_in_child=of_process.forked)
