"""The quota of a store: the space that it may use on the partitions of its files, and the space that it uses.

If commitlog is on a separate partition, each of the two has a quota, and only the store's files on it count
against it. The rules are in core/retention.py.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from broker.config.store_settings import StoreSettings
from broker.core.retention import QuotaUse, RetentionRules
from broker.store.disk_use import FileBytes, derived_bytes, log_bytes
from broker.store.message_store import MessageStore
from keelmq.runtime.disk_room import disk_room

logger = logging.getLogger(__name__)

GIB: Final = 1 << 30


class Partition(NamedTuple):
    """files: "all" of the store, or "log" and "queues" (with the index) where the log is on another
    partition."""

    files: str
    path: Path
    store_bytes: FileBytes


def on_one_partition(store: MessageStore) -> bool:
    """Returns whether the log is on the partition of all other files."""
    return store.commit_log.directory.stat().st_dev == store.root.stat().st_dev


def partition_bytes(path: Path) -> int:
    """Returns the size of the disk."""
    return disk_room(path).total


class DiskQuota:
    """Owned by the event loop's thread. size: partition_bytes."""

    def __init__(
        self, store: MessageStore, settings: StoreSettings, *, size: Callable[[Path], int] = partition_bytes
    ) -> None:
        self._store, self._settings, self._size = store, settings, size
        self._derived = FileBytes(0, 0)
        self._logged: tuple[object, ...] = (1, 1.0)
        self._can_be_met = True

    @property
    def used_bytes(self) -> int:
        """Sizes of the store's major files, counted now. Reads the size of each queue."""
        return log_bytes(self._store.commit_log).used + self._count_derived().used

    @property
    def quota_bytes(self) -> int:
        """Bytes that the store may use on all its partitions; 0: no quota."""
        return sum(use.quota_bytes for use in self.uses(recount=False))

    def uses(self, *, recount: bool = True) -> tuple[QuotaUse, ...]:
        """Returns a quota for each partition with files of the store; () without a quota. recount=False:
        queues and index are as counted last, and only the log is counted."""
        rules = self._settings.retention
        if not rules.has_quota:
            return ()
        if recount:
            self._count_derived()
        uses = tuple(self._use(rules, each) for each in self._partitions())
        self._tell_whether_it_can_be_met(rules, uses)
        return uses

    def partitions(self) -> tuple[tuple[Partition, int], ...]:
        """Returns each partition with its quota (0: none), counted now."""
        rules = self._settings.retention
        self._count_derived()
        return tuple(
            (each, self._use(rules, each).quota_bytes if rules.has_quota else 0)
            for each in self._partitions()
        )

    def _count_derived(self) -> FileBytes:
        self._derived = derived_bytes(self._store.queues, self._store.index)
        return self._derived

    def _partitions(self) -> tuple[Partition, ...]:
        log, root = self._store.commit_log, self._store.root
        of_log = log_bytes(log)
        if on_one_partition(self._store):
            return (Partition("all", log.directory, of_log.plus(self._derived)),)
        return Partition("log", log.directory, of_log), Partition("queues", root, self._derived)

    def _use(self, rules: RetentionRules, partition: Partition) -> QuotaUse:
        return QuotaUse(rules.quota_bytes(self._size(partition.path)), *partition.store_bytes)

    # -- logging -----------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Logs the quota once when it is new or has changed, before anything is deleted because of it."""
        settings = self._settings
        now = (settings.replicas_per_disk_partition, settings.quota_percent_for_disk_partition)
        if now == self._logged:
            return
        self._logged = now
        rules = settings.retention
        if not rules.has_quota:
            logger.info("the disk quota was removed")
            return
        self._count_derived()
        for partition in self._partitions():
            use = self._use(rules, partition)
            text = f"the quota on the disk of {partition.path} is {_size(use.quota_bytes)}, the store uses "
            text += f"{_size(use.used_bytes)}"
            if excess := use.excess_bytes(rules):
                logger.warning(
                    "%s: the oldest messages are deleted, about %s of files, whatever their age. To keep "
                    "them, set cleanFileForciblyEnable=false or another quota within %d ms",
                    text, _size(excess), settings.clean_resource_interval,
                )  # fmt: skip
            else:
                logger.info("%s: nothing has to be deleted now", text)

    def _tell_whether_it_can_be_met(self, rules: RetentionRules, uses: tuple[QuotaUse, ...]) -> None:
        beyond = [use for use in uses if not use.can_be_met(rules)]
        if beyond and self._can_be_met:
            logger.error(
                "the disk quota cannot be met: the files that are never deleted (the last one of the log, of "
                "each queue and of the index) use %s, more than the %s above which the oldest messages are "
                "deleted (logicalDiskSpaceCleanForciblyThreshold). So no message is deleted because of the "
                "quota: set a larger quota, use fewer queues, or use another disk",
                _size(beyond[0].kept_bytes), _size(rules.forced_bytes(beyond[0].quota_bytes)),
            )  # fmt: skip
        self._can_be_met = not beyond


def _size(count: int) -> str:
    return f"{count / GIB:.2f} GiB"
