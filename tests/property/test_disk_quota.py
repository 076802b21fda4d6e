"""Quotas of a disk: the decision against the order of RIP-31, its limits, and two brokers on one disk."""

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.core.retention import (
    Level,
    OldFile,
    QuotaUse,
    RetentionDecision,
    RetentionRules,
    decide_retention,
    level_of,
)

TOTAL = 10_000
NOW_MS = 1_000
FILES = [OldFile((number + 1) * 10, age) for number, age in enumerate((0, 100, 500, 999))]

ratios = st.floats(0, 1.2)
rules_of = st.builds(
    RetentionRules,
    reserved_ms=st.sampled_from([0, 400, 900, 10_000]),
    hours=st.just(frozenset({4})),
    force=st.booleans(),
    used_ratio=st.floats(0.1, 0.95),
    forcibly_ratio=st.floats(0.3, 0.85),
    warning_ratio=st.floats(0.35, 0.9),
    replicas=st.integers(1, 5),
    logical_forcibly_ratio=st.floats(0.05, 1),
)
hours = st.sampled_from([4, 12])
parts = st.integers(0, TOTAL)


def decide(
    rules: RetentionRules,
    *,
    used: float,
    hour: int = 12,
    quotas: tuple[QuotaUse, ...] = (),
    full: bool = False,
) -> RetentionDecision:
    return decide_retention(
        rules, FILES, used_ratio=used, hour=hour, now_ms=NOW_MS, was_full=full, quotas=quotas
    )  # fmt: skip


def quota_of(rules: RetentionRules, used_bytes: int, kept_bytes: int = 0) -> tuple[QuotaUse, ...]:
    if not rules.has_quota:
        return ()
    return (QuotaUse(rules.quota_bytes(TOTAL), used_bytes, kept_bytes),)


def order_of_the_rip(rules: RetentionRules, physical: float, used_bytes: int) -> Level:
    """Step by step as RIP-31 says it; with cleanFileForciblyEnable."""
    if physical > rules.warning_ratio:
        return Level.FORCED
    if physical > rules.forcibly_ratio:
        return Level.FORCED
    if rules.replicas <= 1:
        return Level.ANY_HOUR if physical > rules.used_ratio else Level.AT_HOURS
    logical = used_bytes / (TOTAL // rules.replicas)
    if logical > rules.logical_forcibly_ratio:
        return Level.FORCED
    return Level.ANY_HOUR if logical > rules.used_ratio else Level.AT_HOURS


@given(rules=rules_of, physical=ratios, used_bytes=parts)
def test_the_order_of_the_decision(rules: RetentionRules, physical: float, used_bytes: int) -> None:
    rules = replace(rules, force=True)
    if rules.has_quota:  # whole bytes: the threshold is rounded down
        quota = rules.quota_bytes(TOTAL)
        rules = replace(rules, logical_forcibly_ratio=rules.forced_bytes(quota) / quota)
    full = physical > rules.warning_ratio
    level = level_of(rules, physical, quota_of(rules, used_bytes), full=full)
    assert level is order_of_the_rip(rules, physical, used_bytes)


@given(rules=rules_of, used=ratios, hour=hours, full=st.booleans(), share=parts)
def test_without_a_quota_it_is_as_before(
    rules: RetentionRules, used: float, hour: int, full: bool, share: int
) -> None:
    """The decision before there were quotas, written out."""
    rules = replace(rules, replicas=1)
    is_full = used > rules.warning_ratio or (full and used > rules.forcibly_ratio)
    old = 0
    while old < len(FILES) and FILES[old].written_ms + rules.reserved_ms <= NOW_MS:
        old += 1
    if rules.force and (is_full or used > rules.forcibly_ratio):
        wanted = RetentionDecision(len(FILES), True, is_full)
    elif hour in rules.hours or used > rules.used_ratio:
        wanted = RetentionDecision(old, False, is_full)
    else:
        wanted = RetentionDecision(0, False, is_full)
    assert decide(rules, used=used, hour=hour, full=full, quotas=quota_of(rules, share)) == wanted


@given(rules=rules_of, used=ratios, more=ratios, hour=hours, first=parts, second=parts, kept=parts)
def test_more_bytes_never_delete_less(
    rules: RetentionRules, used: float, more: float, hour: int, first: int, second: int, kept: int
) -> None:
    low, high = sorted((used, more))
    few, many = sorted((first, second))
    before = decide(rules, used=low, hour=hour, quotas=quota_of(rules, few, kept))
    after = decide(rules, used=high, hour=hour, quotas=quota_of(rules, many, kept))
    assert after.files >= before.files
    assert after.must_go >= before.must_go
    assert after.is_full >= before.is_full


@given(rules=rules_of, used=ratios, hour=hours, used_bytes=parts)
def test_a_smaller_quota_never_deletes_less(
    rules: RetentionRules, used: float, hour: int, used_bytes: int
) -> None:
    rules = replace(rules, replicas=rules.replicas + 1)
    smaller = replace(rules, replicas=rules.replicas + 1)
    before = decide(rules, used=used, hour=hour, quotas=quota_of(rules, used_bytes))
    assert decide(smaller, used=used, hour=hour, quotas=quota_of(smaller, used_bytes)).files >= before.files


@given(rules=rules_of, used=ratios, hour=hours, used_bytes=parts, kept=parts)
def test_nothing_is_deleted_without_a_reason(
    rules: RetentionRules, used: float, hour: int, used_bytes: int, kept: int
) -> None:
    found = decide(rules, used=used, hour=hour, quotas=quota_of(rules, used_bytes, kept))
    quota = rules.quota_bytes(TOTAL)
    physical = used > min(rules.forcibly_ratio, rules.warning_ratio)
    forced = rules.has_quota and kept <= rules.forced_bytes(quota) < used_bytes
    if found.must_go:
        assert rules.force and (physical or forced)
    if found.files:
        lowest = min(rules.used_ratio, rules.logical_forcibly_ratio)
        of_quota = rules.has_quota and used_bytes > quota * lowest
        of_disk = not rules.has_quota and used > rules.used_ratio
        assert hour in rules.hours or physical or of_quota or of_disk
        assert found.must_go or FILES[found.files - 1].written_ms + rules.reserved_ms <= NOW_MS


@given(share=st.floats(0.01, 1), replicas=st.integers(1, 50), partition=st.integers(1 << 20, 1 << 50))
def test_the_quota_is_a_part_of_the_partition(share: float, replicas: int, partition: int) -> None:
    assert RetentionRules(replicas=replicas).quota_bytes(partition) == partition // replicas
    assert RetentionRules(quota_percent=share).quota_bytes(partition) == int(partition * share)
    assert RetentionRules(replicas=replicas).has_quota is (replicas > 1)
    assert RetentionRules(quota_percent=share).has_quota is (share < 1)


def test_the_examples_of_the_rip() -> None:
    rules, terabyte = RetentionRules(replicas=2), 1 << 40
    quota = rules.quota_bytes(terabyte)
    assert quota == 512 << 30
    for more, level in ((0, Level.ANY_HOUR), (1, Level.FORCED)):
        use = QuotaUse(quota, int(0.8 * quota) + more)
        assert level_of(rules, 0.5, [use], full=False) is level
    assert RetentionRules().forced_bytes(500) == 400


def test_a_quota_that_deleting_cannot_meet_deletes_nothing_by_force() -> None:
    """10,000 queues with a file each, and a small quota: every message would go, and free too little."""
    rules = RetentionRules(replicas=2)
    assert level_of(rules, 0.2, [QuotaUse(1_000, 5_000, 801)], full=False) is Level.ANY_HOUR
    assert level_of(rules, 0.2, [QuotaUse(1_000, 5_000, 800)], full=False) is Level.FORCED
    assert level_of(rules, 0.86, [QuotaUse(1_000, 5_000, 801)], full=False) is Level.FORCED, (
        "the disk is short"
    )


# -- two brokers on one disk -------------------------------------------------------------------------------

FILE = 10


@dataclass
class Store:
    files: list[OldFile]

    @property
    def used_bytes(self) -> int:
        return len(self.files) * FILE


def after_long(random: Random, rules: RetentionRules, other: float) -> tuple[int, int]:
    """Two stores that write at different rates for long, the second one later, and delete a few files at a
    time. other: part of the disk with other files. Returns the bytes of both."""
    stores = (Store([]), Store([]))
    rates = random.randint(1, 5), random.randint(1, 5)
    head_start = random.randint(0, 700)
    for round_ in range(1_500):
        for number, store in enumerate(stores):
            if number == 0 or round_ >= head_start:
                store.files += [OldFile(round_, NOW_MS)] * rates[number]
        for store in random.sample(stores, 2):
            for _ in range(10):
                used = other + sum(each.used_bytes for each in stores) / TOTAL
                quotas = (QuotaUse(rules.quota_bytes(TOTAL), store.used_bytes, FILE),)
                verdict = decide_retention(
                    rules, store.files[:-1], used_ratio=used, hour=12, now_ms=NOW_MS, was_full=False,
                    quotas=quotas,
                )  # fmt: skip
                if not verdict.files:
                    break
                store.files.pop(0)
    return stores[0].used_bytes, stores[1].used_bytes


@pytest.mark.parametrize("seed", range(8))
def test_two_brokers_end_with_equal_parts(seed: int) -> None:
    """RIP-31: if the logical threshold and the part of other files are not above the forced level."""
    random = Random(seed)
    rules = RetentionRules(replicas=2, logical_forcibly_ratio=random.uniform(0.4, 0.8))
    other = random.uniform(0, rules.forcibly_ratio - rules.logical_forcibly_ratio)
    one, two = after_long(random, rules, other)
    assert abs(one - two) <= FILE
    assert abs(one - rules.forced_bytes(rules.quota_bytes(TOTAL))) <= FILE


@pytest.mark.parametrize("seed", range(8))
def test_beyond_that_their_difference_has_a_limit(seed: int) -> None:
    random = Random(seed)
    rules = RetentionRules(replicas=2, logical_forcibly_ratio=0.8)
    other = random.uniform(0.06, 0.3)
    one, two = after_long(random, rules, other)
    limit = (rules.logical_forcibly_ratio - rules.forcibly_ratio + other) * TOTAL
    assert abs(one - two) <= limit + 10 * FILE
    assert max(one, two) <= rules.forced_bytes(rules.quota_bytes(TOTAL)) + FILE
