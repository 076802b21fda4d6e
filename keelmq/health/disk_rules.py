"""Judges the disk of a broker's store: whether it takes writes, and how full it is. Pure."""

from collections.abc import Iterator

from keelmq.health import commands
from keelmq.health.findings import Finding, failed, ok, warning
from keelmq.health.snapshot import RunningBroker

DISK_USED_WARNING, DISK_USED_FAILED = 0.80, 0.95
WRITABLE_AGAIN = (
    "make its disk writable again and restart the broker; nothing can be repaired on a disk that takes no "
    "writes"
)


def sync_fault(broker: object) -> str:
    """Returns which sync of this broker's store has failed; empty: none is known. Such a broker stores and
    copies nothing until it is restarted, and sends no heartbeats."""
    return broker.info.get("syncFault", "") if isinstance(broker, RunningBroker) else ""


def disk_rules(address: str, broker: RunningBroker) -> Iterator[Finding]:
    """Yields the state of the disk; nothing if the broker does not tell."""
    if fault := sync_fault(broker):
        line = commands.broker_status(address)
        yield failed("broker.disk", address, f"the disk takes no writes: {fault}", WRITABLE_AGAIN, line)
        return
    used = _fraction(broker.info.get("commitLogDiskRatio", ""))
    if used is None:
        return
    text = f"disk of the store {used:.0%} full"
    if used >= DISK_USED_FAILED:
        step = "free space now: a full disk refuses every message"
        yield failed("broker.disk", address, text, step, commands.delete_expired(address))
    elif used >= DISK_USED_WARNING:
        step = "free space, or move the store to a larger disk"
        yield warning("broker.disk", address, text, step, commands.delete_expired(address))
    else:
        yield ok("broker.disk", address, text)


def _fraction(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
