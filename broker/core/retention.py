"""Retention: which CommitLog files are deleted, and whether messages are refused, by age, hour, disk use and
log size.

Three levels of disk use: above used_ratio, old files are deleted at any hour; above forcibly_ratio, the
oldest are deleted whatever their age; above warning_ratio, messages are refused until the use is at most
forcibly_ratio again. Source: RocketMQ 5.3.3 DefaultMessageStore.CleanCommitLogService. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

HELD_MS_MAX = 120_000
"""A file that must be deleted is kept so long for a replica that still copies it."""


@dataclass(frozen=True, slots=True)
class RetentionRules:
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
    asked: bool = False,
    log: tuple[int, int] = (0, 0),
) -> RetentionDecision:
    """Decides for `files`: those that may be deleted at all, the oldest first. asked: an operator wants old
    files deleted now. log: the log's min and max offset."""
    full = is_full(rules, used_ratio, was_full=was_full)
    is_forced = rules.force and (full or used_ratio > rules.forcibly_ratio)
    if is_forced:
        return RetentionDecision(len(files), True, full)
    above = count = _above_limit(rules, files, *log)
    if not (asked or hour in rules.hours or used_ratio > rules.used_ratio):
        return RetentionDecision(above, above > 0, full)
    while count < len(files) and files[count].written_ms + rules.reserved_ms <= now_ms:
        count += 1
    return RetentionDecision(count, above > 0, full)


def _above_limit(rules: RetentionRules, files: Sequence[OldFile], begin: int, end: int) -> int:
    """Returns how many of the oldest files exceed the limit of the log's size."""
    count = 0
    while rules.bytes_max and end - begin > rules.bytes_max and count < len(files):
        begin = files[count].end_offset
        count += 1
    return count
