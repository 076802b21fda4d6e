"""Judges the disk of a broker's store: whether it accepts writes, and how full it is. Pure."""

from collections.abc import Iterator, Mapping

from keelmq.health import commands
from keelmq.health.findings import Finding, failed, ok, warning
from keelmq.health.numbers import whole
from keelmq.health.snapshot import RunningBroker
from keelmq.remoting.booleans import is_true

DISK_USED_FAILED = 0.95
ABOVE_MAX_USED = 0.05
"""A broker whose disk is this far above its diskMaxUsedSpaceRatio cannot free enough by deleting expired
files."""
MAX_USED_PERCENT, FORCED_PERCENT = 75, 85
"""RocketMQ's defaults of diskMaxUsedSpaceRatio and diskSpaceCleanForciblyRatio."""
OTHER_FILES = "delete files on it that do not belong to the store"
WRITABLE_AGAIN = (
    "make its disk writable again and restart the broker; nothing can be repaired on a disk that takes no "
    "writes"
)


def sync_fault(broker: object) -> str:
    """Returns which sync of this broker's store has failed; empty: none is known. Such a broker stores and
    copies nothing until it is restarted, and sends no heartbeats."""
    return broker.info.get("syncFault", "") if isinstance(broker, RunningBroker) else ""


def disk_rules(address: str, broker: RunningBroker) -> Iterator[Finding]:
    """Yields the state of the disk; nothing if the broker does not report it."""
    if fault := sync_fault(broker):
        line = commands.broker_status(address)
        yield failed("broker.disk", address, f"the disk takes no writes: {fault}", WRITABLE_AGAIN, line)
        return
    used = _fraction(broker.info.get("commitLogDiskRatio", ""))
    if used is None:
        return
    text = f"disk of the store {used:.0%} full"
    too_much = _ratio(broker.settings, "diskMaxUsedSpaceRatio", MAX_USED_PERCENT) + ABOVE_MAX_USED
    if used < min(too_much, DISK_USED_FAILED):
        yield ok("broker.disk", address, text)
        return
    more, line = _shorter_retention(address, broker.settings, used)
    if used >= DISK_USED_FAILED:
        step = f"free space now, a full disk refuses every message: {OTHER_FILES}, {more}"
        yield failed("broker.disk", address, text, step, line)
    else:
        yield warning("broker.disk", address, text, f"free space: {OTHER_FILES}, {more}", line)


def _shorter_retention(address: str, settings: Mapping[str, str], used: float) -> tuple[str, str]:
    """Returns what else frees space, and its command. Above diskMaxUsedSpaceRatio a broker deletes expired
    files at once, so requesting that (deleteExpiredCommitLog) frees nothing; above
    diskSpaceCleanForciblyRatio it may delete others as well (cleanFileForciblyEnable)."""
    hours = whole(settings.get("fileReservedTime"))
    forced_from = _ratio(settings, "diskSpaceCleanForciblyRatio", FORCED_PERCENT)
    forced = is_true(settings.get("cleanFileForciblyEnable", "true")) and used > forced_from
    if hours is None or hours < 2 or forced:
        return "or move the store to a larger disk", commands.broker_status(address)
    shorter = hours // 2
    more = (
        "move the store to a larger disk, or keep messages for a shorter time, as this command does: files "
        f"of the log that are older than {shorter} h (now {hours} h) are deleted, consumed or not"
    )
    return more, commands.update_broker(address, "fileReservedTime", str(shorter))


def _ratio(settings: Mapping[str, str], key: str, default: int) -> float:
    percent = whole(settings.get(key))
    return (default if percent is None else percent) / 100


def _fraction(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
