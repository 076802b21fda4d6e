"""Counters, their windows and rates: on virtual time, and against a broker's own handlers."""

from pathlib import Path
from typing import Any

import pytest

from broker.core.read_counters import PAIRS_MAX, ReadCounters
from broker.stats.core import stats_items as stats_items_module
from broker.stats.core.stats_items import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SAMPLE_MS,
    Rates,
    Reading,
    StatsItemSet,
    StatsSnapshot,
)
from broker.stats.service import FOUND, GOT, PUT, BrokerStats
from tests.support.handler_parts import Broker


def grown(series: StatsItemSet, key: str, value: int, now_ms: int) -> list[int]:
    reading = Reading(key, value, value)
    return [series.snapshot(reading, window, now_ms).sum for window in (MINUTE_MS, HOUR_MS, DAY_MS)]


def test_windows_end_now_and_begin_where_they_say() -> None:
    """One message a second for two days."""
    series = StatsItemSet()
    for now_ms in range(0, 2 * DAY_MS, SAMPLE_MS):
        series.sample([Reading("T", now_ms // 1000, now_ms // 1000)], now_ms)
    minute, hour, day = grown(series, "T", 2 * DAY_MS // 1000, 2 * DAY_MS)
    assert 60 <= minute <= 70
    assert 3600 <= hour <= 3600 + 600
    assert 86_400 <= day <= 86_400 + 3600
    snapshot = series.snapshot(Reading("T", 2 * DAY_MS // 1000, 2 * DAY_MS // 1000), HOUR_MS, 2 * DAY_MS)
    assert snapshot.tps == 1.0 and snapshot.per_time == 1.0


def test_a_young_counter_has_the_time_that_there_is() -> None:
    series = StatsItemSet()
    assert series.snapshot(Reading("T", 5, 5), MINUTE_MS, 0) == StatsSnapshot()
    series.sample([], 0)
    assert series.snapshot(Reading("T", 30, 10), MINUTE_MS, 10_000) == StatsSnapshot(30, 3.0, 3.0)


def test_what_is_deleted_leaves_no_past_to_its_transfer_target() -> None:
    series = StatsItemSet()
    series.sample([Reading("old", 1_000, 1_000)], 0)
    series.sample([], SAMPLE_MS)
    series.sample([Reading("new", 3, 3)], 2 * SAMPLE_MS)
    assert grown(series, "new", 5, 3 * SAMPLE_MS) == [5, 5, 5]


def test_a_counter_that_went_back_has_not_grown() -> None:
    """A replica whose log was cut."""
    series = StatsItemSet()
    series.sample([Reading("T", 100, 100)], 0)
    assert grown(series, "T", 40, 1_000) == [0, 0, 0]


def test_what_is_too_many_has_no_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_items_module, "KEYS_MAX", 2)
    series = StatsItemSet()
    series.sample([Reading(f"T{number}", 5, 5) for number in range(3)], 0)
    assert [grown(series, f"T{number}", 8, 1_000)[0] for number in range(3)] == [3, 3, 0]


def test_after_the_start_one_kind_is_sampled_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, now = Broker(tmp_path), [0]
    stats = BrokerStats(
        broker.store, broker.context.reads, "c", timer_counts=lambda: (0, 0), clock=lambda: now[0]
    )
    sample, counts = StatsItemSet.sample, [0] * 30

    def counted(items: StatsItemSet, readings: Any, now_ms: int) -> None:
        counts[now_ms // 1_000] += 1
        sample(items, readings, now_ms)

    monkeypatch.setattr(StatsItemSet, "sample", counted)
    for second in range(30):
        now[0] = second * 1_000
        stats.tick()
    assert counts[0] == len(stats.names) and max(counts[1:]) == 1
    assert sum(counts[10:20]) == sum(counts[20:30]) == len(stats.names)
    broker.store.close()


def test_rates_over_the_seconds_that_there_are() -> None:
    rates = Rates()
    assert rates.per_second(0, 10) == 0.0
    for second in range(1_000):
        rates.sample((second * 5, 0), second * 1_000)
    assert [rates.per_second(0, seconds) for seconds in (10, 60, 600)] == [5.0, 5.0, 5.0]
    assert rates.per_second(1, 60) == 0.0


def test_counters_of_pairs_are_bounded_and_forgotten() -> None:
    reads = ReadCounters()
    for number in range(PAIRS_MAX + 2):
        reads.count_read("T", f"g{number}", 0, 1, 1, 10)
        reads.count_sent_back("T", f"g{number}")
    assert len(reads.groups) == len(reads.sent_back) == PAIRS_MAX
    reads.forget(group="g1")
    assert ("T", "g1") not in reads.groups and ("T", "g1") not in reads.sent_back
    reads.forget(topic="T")
    assert not reads.groups and not reads.sent_back


def test_sends_and_pulls_are_counted(tmp_path: Path) -> None:
    broker, now, day = Broker(tmp_path), [0], [(2026, 1, 1)]
    stats = BrokerStats(
        broker.store,
        broker.context.reads,
        "c",
        timer_counts=lambda: (0, 0),
        clock=lambda: now[0],
        today=lambda: day[0],
    )
    stats.tick()
    for _ in range(20):
        broker.send(b"x" * 100)
    broker.tick()
    for offset in (0, 10, 20):  # 10: the test store's queue files end there
        broker.pull(offset)
    now[0] += 10_000
    stats.tick()
    found = {name: stats.snapshot(name, "TopicA") for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")}
    assert [each and each[0].sum for each in found.values()] == [20, broker.store.put_bytes]
    groups = stats.snapshot("GROUP_GET_NUMS", "TopicA@g")
    assert groups is not None and groups[0] == StatsSnapshot(20, 2.0, 10.0)
    assert stats.tps("BROKER_PUT_NUMS", "c") == 2.0
    assert stats.snapshot("TOPIC_PUT_NUMS", "nobody") is None
    assert stats.snapshot("NO_SUCH_COUNTER", "TopicA") is None
    assert stats.rates.per_second(PUT, 10) == stats.rates.per_second(GOT, 10) == 2.0
    assert stats.rates.per_second(FOUND, 10) == 0.2
    assert (broker.context.reads.found, broker.context.reads.missed) == (2, 1)
    day[0] = (2026, 1, 2)
    stats.tick()
    assert (stats.put.yesterday, stats.put.today) == (0, 20)
    broker.store.close()
