"""Generates UNIQ_KEY for messages that a client sent without one."""

import random
import socket
import time


class UniqueKeys:
    """A key is the host's address, 6 random bytes, the ms of the month and a counter, in upper-case hex."""

    def __init__(self) -> None:
        try:
            address = socket.inet_aton(socket.gethostbyname(socket.gethostname()))
        except OSError:
            address = b"\x7f\x00\x00\x01"
        self._head = address.hex().upper() + f"{random.getrandbits(48):012X}"
        self._count = 0

    def next(self) -> str:
        """Returns a new key of 32 digits."""
        self._count = (self._count + 1) & 0xFFFF
        milliseconds = int(time.time() * 1000) % (31 * 86_400_000)
        return f"{self._head}{milliseconds:08X}{self._count:04X}"
