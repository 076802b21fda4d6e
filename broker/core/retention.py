"""Retention: which CommitLog files are deleted, and whether messages are refused, by age, hour, disk use, log
size and quota.

Three levels of disk use: above used_ratio, old files are deleted at any hour; above forcibly_ratio, the
oldest are deleted at any age; above warning_ratio, messages are refused until the use is at most
forcibly_ratio again.

Brokers that share a partition may each have a quota of it. Then the first level applies to the quota: old
files are deleted at any hour when the store's files exceed used_ratio of the quota, and the oldest at any age
above logical_forcibly_ratio of it. The levels of the whole partition apply as before. Two brokers with half
of a partition each end with equal parts if logical_forcibly_ratio + x <= forcibly_ratio, where x is the part
of other files. Otherwise the partition's level may come first, and their parts may differ by
(logical_forcibly_ratio + x - forcibly_ratio) of it.

Source: RocketMQ 5.3.3 DefaultMessageStore.CleanCommitLogService, RIP-31. Pure.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec

HELD_MS_MAX = 120_000
"""How long a file that must be deleted is kept for a replica that still copies it."""


class RetentionRules(msgspec.Struct, frozen=True):
    """The settings: reserved_ms is the age from which files are old (fileReservedTime), hours the hours of
    the day in which they are deleted (deleteWhen)."""

    reserved_ms: int = 72 * 3_600_000
    hours: frozenset[int] = frozenset({4})
    force: bool = True
    used_ratio: float = 0.75
    forcibly_ratio: float = 0.85
    warning_ratio: float = 0.90
    bytes_max: int = 0
    """Limit of the log's size; 0: no limit."""
    replicas: int = 1
    """Stores that share a partition in equal parts (replicasPerDiskPartition); 1: no quota."""
    quota_percent: float = 1.0
    """The part of a partition that this store may use (quotaPercentForDiskPartition); 1: no quota."""
    logical_forcibly_ratio: float = 0.80

    @property
    def has_quota(self) -> bool:
        """Whether the store may use only a part of a partition."""
        return self.replicas > 1 or self.quota_percent < 1

    def quota_bytes(self, partition_bytes: int) -> int:
        """Returns the bytes that the store may use of a partition of this size. Only with has_quota."""
        if self.replicas > 1:
            return partition_bytes // self.replicas
        return int(partition_bytes * self.quota_percent)

    def forced_bytes(self, quota_bytes: int) -> int:
        """Returns the bytes of files above which the oldest are deleted at any age."""
        return int(quota_bytes * self.logical_forcibly_ratio)


class QuotaUse(NamedTuple):
    """A partition of which a store may use quota_bytes. used_bytes: sizes of the store's files there.
    kept_bytes: of these, files that retention never deletes: the last one of the log, of each queue and of
    the index."""

    quota_bytes: int
    used_bytes: int
    kept_bytes: int = 0

    def can_be_met(self, rules: RetentionRules) -> bool:
        """Returns whether deleting files can end the forced level. If not, no file is deleted for it: that
        would delete every message and free too little."""
        return self.kept_bytes <= rules.forced_bytes(self.quota_bytes)

    def excess_bytes(self, rules: RetentionRules) -> int:
        """Returns how much of used_bytes is deleted at once, at any age."""
        excess = self.used_bytes - rules.forced_bytes(self.quota_bytes)
        return max(excess, 0) if rules.force and self.can_be_met(rules) else 0


class Level(IntEnum):
    """Which files the disk use allows to delete: old ones at the hours of deleteWhen, old ones at any hour,
    the oldest at any age."""

    AT_HOURS = 0
    ANY_HOUR = 1
    FORCED = 2


class OldFile(NamedTuple):
    """One CommitLog file: its end offset, and when it was last written (wall-clock ms)."""

    end_offset: int
    written_ms: int


class RetentionDecision(NamedTuple):
    """files: how many files to delete, from the oldest on. must_go: they are deleted even if a replica still
    copies them. is_full: messages are refused."""

    files: int
    must_go: bool
    is_full: bool


def is_full(rules: RetentionRules, used_ratio: float, *, was_full: bool) -> bool:
    """Returns whether messages are refused, with hysteresis: was_full is the last decision."""
    return used_ratio > rules.warning_ratio or (was_full and used_ratio > rules.forcibly_ratio)


def decide_retention(
    rules: RetentionRules,
    files: Sequence[OldFile],
    *,
    used_ratio: float,
    hour: int,
    now_ms: int,
    was_full: bool,
    requested: bool = False,
    log: tuple[int, int] = (0, 0),
    quotas: Sequence[QuotaUse] = (),
) -> RetentionDecision:
    """Decides for `files`: those that may be deleted at all, the oldest first. requested: an operator wants
    old files deleted now. log: the log's min and max offset. quotas: one for each partition with files of the
    store; none without a quota."""
    full = is_full(rules, used_ratio, was_full=was_full)
    level = level_of(rules, used_ratio, quotas, full=full)
    if level is Level.FORCED:
        return RetentionDecision(len(files), True, full)
    above = count = _above_limit(rules, files, *log)
    if not (requested or hour in rules.hours or level is Level.ANY_HOUR):
        return RetentionDecision(above, above > 0, full)
    while count < len(files) and files[count].written_ms + rules.reserved_ms <= now_ms:
        count += 1
    return RetentionDecision(count, above > 0, full)


def level_of(rules: RetentionRules, used_ratio: float, quotas: Sequence[QuotaUse], *, full: bool) -> Level:
    """Returns the highest level that the partitions (used_ratio) or their quotas require. full: messages are
    refused."""
    is_short = full or used_ratio > rules.forcibly_ratio
    if is_short and rules.force:
        return Level.FORCED
    if not quotas:
        return Level.ANY_HOUR if used_ratio > rules.used_ratio else Level.AT_HOURS
    if any(quota.excess_bytes(rules) for quota in quotas):
        return Level.FORCED
    lowest = min(rules.used_ratio, rules.logical_forcibly_ratio)
    is_above = any(quota.used_bytes > quota.quota_bytes * lowest for quota in quotas)
    return Level.ANY_HOUR if is_short or is_above else Level.AT_HOURS


def _above_limit(rules: RetentionRules, files: Sequence[OldFile], begin: int, end: int) -> int:
    """Returns how many of the oldest files exceed the limit of the log's size."""
    count = 0
    while rules.bytes_max and end - begin > rules.bytes_max and count < len(files):
        begin = files[count].end_offset
        count += 1
    return count
