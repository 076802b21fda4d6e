"""The load of a master by its producers: the bytes that they write, and whether the event loop is busy.

It limits the rate at which a replica that is far behind is served (MasterLink). The numbers are measured on
the event loop's thread; no counter runs per message.
"""

from pathlib import Path

from broker.ha.core.master_link import MasterLog
from broker.ha.core.progress import RateMeter

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Linux: ns that this thread ran, ns that it waited for a core, and the number of its time slices."""
BUSY_US = 700_000
"""CPU demand in µs per second. A loop that runs or waits for a core for longer has no CPU to spare."""


def demand_us() -> int:
    """Returns the CPU time in µs that this thread has used or waited for, since its start.

    0 on systems that do not report it: the thread then counts as idle.
    """
    try:
        ran_ns, waited_ns, _ = SCHEDSTAT.read_bytes().split()
    except (OSError, ValueError):
        return 0
    return (int(ran_ns) + int(waited_ns)) // 1_000


class ProducerLoad:
    """The load of one master. Owned by the event loop's thread, which is the thread it measures."""

    def __init__(self) -> None:
        self._append_rate, self._cpu_rate = RateMeter(), RateMeter()

    def measure(self, log: MasterLog, *, max_offset: int, has_far_replica: bool, now_ms: int) -> None:
        """Writes `append_rate` and, if a replica is far behind, `is_busy` to the MasterLog of the links."""
        log.append_rate = self._append_rate.read(now_ms, max_offset)
        if has_far_replica:
            log.is_busy = self._cpu_rate.read(now_ms, demand_us()) >= BUSY_US
