"""Which CommitLog files go, and whether messages are still taken: by their age, the hour, the disk and
the log's size.

Three levels of the disk's use: above used_ratio old files go at any hour; above forcibly_ratio the oldest go
whatever their age; above warning_ratio messages are refused, until it is at most forcibly_ratio again.
Source: RocketMQ 5.3.3 DefaultMessageStore.CleanCommitLogService.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

HELD_MS_MAX = 120_000
"""So long a file that must go is kept for a replica that still copies it."""


@dataclass(frozen=True, slots=True)
class RetentionRules:
    reserved_ms: int = 72 * 3_600_000
    hours: frozenset[int] = frozenset({4})
    force: bool = True
    used_ratio: float = 0.75
    forcibly_ratio: float = 0.85
    warning_ratio: float = 0.90
    bytes_max: int = 0
    """Of the log; 0: no limit."""


class OldFile(NamedTuple):
    """One CommitLog file: where it ends, and when it was last written to (wall ms)."""

    end_offset: int
    written_ms: int


class Verdict(NamedTuple):
    """files: so many files go, from the oldest on. must_go: of these, so many are not kept for anybody.
    is_full: messages are refused."""

    files: int
    must_go: bool
    is_full: bool


def is_full(rules: RetentionRules, used_ratio: float, *, was_full: bool) -> bool:
    return used_ratio > rules.warning_ratio or (was_full and used_ratio > rules.forcibly_ratio)


def judge(
    rules: RetentionRules,
    files: Sequence[OldFile],
    *,
    used_ratio: float,
    hour: int,
    now_ms: int,
    was_full: bool,
    asked: bool = False,
    log: tuple[int, int] = (0, 0),
) -> Verdict:
    """files: oldest first, those alone that may go at all. asked: an operator wants old files deleted now.
    log: where it begins and ends."""
    full = is_full(rules, used_ratio, was_full=was_full)
    is_forced = rules.force and (full or used_ratio > rules.forcibly_ratio)
    if is_forced:
        return Verdict(len(files), True, full)
    above = count = _above_limit(rules, files, *log)
    if not (asked or hour in rules.hours or used_ratio > rules.used_ratio):
        return Verdict(above, above > 0, full)
    while count < len(files) and files[count].written_ms + rules.reserved_ms <= now_ms:
        count += 1
    return Verdict(count, above > 0, full)


def _above_limit(rules: RetentionRules, files: Sequence[OldFile], begin: int, end: int) -> int:
    """So many of the oldest files make the log longer than it may be."""
    count = 0
    while rules.bytes_max and end - begin > rules.bytes_max and count < len(files):
        begin = files[count].end_offset
        count += 1
    return count
