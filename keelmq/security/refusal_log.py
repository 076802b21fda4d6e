"""Logs that other members refuse requests of this program, and what to do: in a cluster whose credentials or
clocks differ, everything else that the program logs is a consequence."""

import logging
from collections.abc import Callable
from typing import Final

from keelmq.runtime.clock import now_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.security.core.access import NO_USERNAME, WRONG_SIGNATURE

logger = logging.getLogger(__name__)

PERIOD_MS: Final = 10_000
_MUST_BE_EQUAL: Final = (
    "(innerClientAuthenticationCredentials, or the file, must be equal at all members of the cluster)"
)
_DIFFERENT: Final = (NO_USERNAME, WRONG_SIGNATURE, "User:", "is for members of this cluster only")
"""Parts of remarks of servers that know no such member. The other remarks contain the remedy."""


class RefusalLog:
    """RemotingClient's on_refused. `clock`: monotonic ms."""

    def __init__(self, *, clock: Callable[[], int] = now_ms) -> None:
        self._clock = clock
        self._of: dict[str, RateLimitedLogger] = {}

    def refused(self, address: str, operation: str, remark: str) -> None:
        """Logs a line, at most one in PERIOD_MS for each server."""
        found = self._of.get(address)
        if found is None:
            found = self._of[address] = RateLimitedLogger(logger, period_ms=PERIOD_MS)
        is_different = any(part in remark for part in _DIFFERENT)
        text = f"{remark} {_MUST_BE_EQUAL}" if is_different else remark
        found.tell(self._clock(), "%s refuses %s of this program: %s", address, operation, text)
