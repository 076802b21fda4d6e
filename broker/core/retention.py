"""Which CommitLog files go, and whether messages are still taken: by their age, the hour and the disk.

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
) -> Verdict:
    """files: oldest first, those alone that may go at all. asked: an operator wants old files deleted now."""
    full = is_full(rules, used_ratio, was_full=was_full)
    is_forced = rules.force and (full or used_ratio > rules.forcibly_ratio)
    if is_forced:
        return Verdict(len(files), True, full)
    if not (asked or hour in rules.hours or used_ratio > rules.used_ratio):
        return Verdict(0, False, full)
    count = 0
    while count < len(files) and files[count].written_ms + rules.reserved_ms <= now_ms:
        count += 1
    return Verdict(count, False, full)
