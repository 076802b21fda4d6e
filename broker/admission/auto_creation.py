"""AutoCreation: how many topics, or subscription groups, clients may create by using them.

Each is a row of a table that is registered, replicated and written to a file, so a client that keeps sending
to new names would exhaust the memory of brokers and name servers. Administrators are not limited, but their
rows count.
"""

import logging
import sys
from collections.abc import Callable
from typing import Final

from keelmq.runtime.clock import now_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.runtime.token_buckets import TokenBuckets

logger = logging.getLogger(__name__)

PER_MINUTE: Final = "autoCreatePerMinute"


class AutoCreation:
    """what: "topic" or "group", for texts. key: the configuration key of count_max, the rows of the table
    above which no row is created. per_minute: rate and burst of one remote address; 0: no limit. command:
    the administrator's command that creates one."""

    def __init__(
        self,
        what: str,
        key: str,
        command: str,
        *,
        count_max: int = sys.maxsize,
        per_minute: int = 0,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.count_max = count_max
        self.refused = 0
        """How many were not created because of a limit."""
        self._what, self._key, self._command = what, key, command
        self._per_minute, self._clock = per_minute, clock
        self._buckets = TokenBuckets[bytes](per_minute / 60, per_minute) if per_minute else None
        self._log = RateLimitedLogger(logger)

    def configure(self, *, count_max: int, per_minute: int) -> None:
        """Changes the limits. A new per_minute starts with a full bucket for every address."""
        self.count_max = count_max
        if per_minute != self._per_minute:
            self._per_minute = per_minute
            self._buckets = TokenBuckets[bytes](per_minute / 60, per_minute) if per_minute else None

    def refuse(self, name: str, count: int, network: bytes) -> str | None:
        """Returns why a client of this network (addresses.network_of) must not create it now; None: it may.
        count: rows of the table."""
        if count >= self.count_max:
            why = f"the broker has {count} {self._what}s, and {self._key} is {self.count_max}"
        elif self._buckets is not None and not self._buckets.take(network, self._clock()):
            why = f"its address has created {self._per_minute} {self._what}s within a minute ({PER_MINUTE})"
        else:
            return None
        self.refused += 1
        problem = f"{self._what} {name} is not created automatically: {why}; create it with {self._command}"
        self._log.tell(self._clock(), "%s", problem)
        return problem
