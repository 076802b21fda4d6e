"""Statistics of a broker: samples of its counters, and the answers that are made from them.

Messages per topic are differences of queue offsets, so a message counts when consumers may read it, on slaves
as well. Source: RocketMQ 5.3.3 BrokerStatsManager, StoreStatsService, BrokerStats.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec

from broker.core.read_counters import ReadCounters
from broker.stats.core.put_times import PutTimes
from broker.stats.core.shared_counters import SharedCounters
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
from broker.stats.creation_times import CreationTimes
from broker.stats.messages_in import MessagesIn
from broker.store.message_store import MessageStore
from broker.store.queue.consume_queue import ConsumeQueue
from keelmq.runtime.clock import now_ms
from keelmq.runtime.slices import in_slices

K = TypeVar("K")
V = TypeVar("V")

SECOND_MS: Final = 1_000
PUT, GOT, FOUND, MISSED, TIMERS_IN, TIMERS_OUT = range(6)
"""Indexes of the totals in `rates`: messages stored, messages returned, pulls with and without messages,
timers that were added and that were delivered."""


class Totals(msgspec.Struct):
    """The number of messages since the start, at the last two midnights (local time)."""

    yesterday: int = 0
    today: int = 0


class BrokerStats:
    """The statistics of one broker. Owned by the event loop's thread."""

    def __init__(
        self,
        store: MessageStore,
        reads: ReadCounters,
        cluster_name: str,
        put_times: PutTimes | None = None,
        *,
        timer_counts: Callable[[], tuple[int, int]],
        clock: Callable[[], int] = now_ms,
        today: Callable[[], tuple[int, ...]] = lambda: time.localtime()[:3],
    ) -> None:
        """timer_counts: TIMERS_IN and TIMERS_OUT, since the start."""
        self._store, self.reads, self._clock, self._today = store, reads, clock, today
        self._cluster_name = cluster_name
        self.put_times = put_times or PutTimes()
        self.messages_in = MessagesIn(store.queues)
        self.creations = CreationTimes()
        self.shared = defaultdict[str, SharedCounters](SharedCounters)
        """By metric: the sum of its series beyond the limit. For the holder of `scraping`."""
        self.scraping = asyncio.Lock()
        """Held while metrics are read, during several turns of the event loop."""
        self.loop_lag_ms = 0
        """The delay of the event loop at the last sample: a request may have waited that long."""
        self.dispatch_behind_max = 0
        """The largest lag of the dispatch at a sample, in bytes."""
        self._sources: dict[str, Callable[[str | None], Iterator[Reading]]] = {
            "TOPIC_PUT_NUMS": self._topic_messages,
            "TOPIC_PUT_SIZE": self._topic_bytes,
            "GROUP_GET_NUMS": self._group_messages,
            "GROUP_GET_SIZE": self._group_bytes,
            "SNDBCK_PUT_NUMS": self._sent_back,
            "BROKER_PUT_NUMS": self._broker_put,
            "BROKER_GET_NUMS": self._broker_get,
        }
        """All counters of a kind, or only that of the key."""
        self._item_sets = {name: StatsItemSet() for name in self._sources}
        self.rates = Rates()
        self._timer_counts = timer_counts
        self.put, self.got = Totals(), Totals()
        self._day = today()
        self._is_new = True
        self._next_ms = dict.fromkeys(self._sources, 0)

    @property
    def names(self) -> list[str]:
        """The names of the counters (RocketMQ's statsName)."""
        return sorted(self._sources)

    async def run(self) -> None:
        """Samples once a second. Never returns."""
        while True:
            self.tick()
            await in_slices(self.messages_in.add_ended())
            due_s = time.monotonic() + SECOND_MS / 1000
            await asyncio.sleep(SECOND_MS / 1000)
            self.loop_lag_ms = max(int((time.monotonic() - due_s) * 1_000), 0)

    def tick(self) -> None:
        """Takes the due samples. Called once a second."""
        now, store, reads = self._clock(), self._store, self.reads
        counts = (store.put_messages, store.got_messages, reads.found, reads.missed)
        self.put_times.rotate(now)
        self.dispatch_behind_max = max(self.dispatch_behind_max, store.confirm_offset - store.dispatch_offset)
        self.rates.sample((*counts, *self._timer_counts()), now)
        for name in self._due(now):
            self._item_sets[name].sample(self._sources[name](None), now)
        if self._today() != self._day:
            self._day = self._today()
            for totals, count in ((self.put, store.put_messages), (self.got, store.got_messages)):
                totals.yesterday, totals.today = totals.today, count

    def _due(self, now: int) -> list[str]:
        """All counters at first, then one a second: with thousands of topics each takes milliseconds."""
        due = [name for name, at_ms in self._next_ms.items() if now >= at_ms]
        due = due if self._is_new else due[:1]
        for number, name in enumerate(due):
            self._next_ms[name] = now + SAMPLE_MS + (number * SECOND_MS if self._is_new else 0)
        self._is_new = False
        return due

    def snapshot(self, name: str, key: str) -> tuple[StatsSnapshot, StatsSnapshot, StatsSnapshot] | None:
        """Returns the growth within the last minute, hour and day; None: there is no such counter."""
        if name not in self._sources:
            return None
        reading = next((each for each in self._sources[name](key) if each.key == key), None)
        if reading is None:
            return None
        item_set, now = self._item_sets[name], self._clock()
        minute, hour, day = (item_set.snapshot(reading, each, now) for each in (MINUTE_MS, HOUR_MS, DAY_MS))
        return minute, hour, day

    def tps(self, name: str, key: str) -> float:
        """Returns the rate per second in the last minute; 0 for an unknown counter."""
        found = self.snapshot(name, key)
        return 0.0 if found is None else found[0].tps

    # -- sources -----------------------------------------------------------------------------------------

    def _topics(self, key: str | None) -> Iterable[tuple[str, Mapping[int, ConsumeQueue]]]:
        if key is None:
            return self._store.queues.topics()
        queues = self._store.queues.of_topic(key)
        return [(key, queues)] if queues else []

    def _topic_messages(self, key: str | None) -> Iterator[Reading]:
        for topic, queues in self._topics(key):
            count = sum(queue.max_offset for queue in queues.values())
            yield Reading(topic, count, count)

    def _topic_bytes(self, key: str | None) -> Iterator[Reading]:
        for topic, queues in self._topics(key):
            each = queues.values()
            yield Reading(topic, sum(q.put_bytes for q in each), sum(q.max_offset for q in each))

    def _group_messages(self, key: str | None) -> Iterator[Reading]:
        for (topic, group), reads in _some(self.reads.groups, _pair(key)):
            yield Reading(f"{topic}@{group}", reads.messages, reads.times)

    def _group_bytes(self, key: str | None) -> Iterator[Reading]:
        for (topic, group), reads in _some(self.reads.groups, _pair(key)):
            yield Reading(f"{topic}@{group}", reads.bytes, reads.times)

    def _sent_back(self, key: str | None) -> Iterator[Reading]:
        for (topic, group), count in _some(self.reads.sent_back, _pair(key)):
            yield Reading(f"{topic}@{group}", count, count)

    def _broker_put(self, key: str | None) -> Iterator[Reading]:
        yield Reading(self._cluster_name, self._store.put_messages, self._store.put_messages)

    def _broker_get(self, key: str | None) -> Iterator[Reading]:
        yield Reading(self._cluster_name, self._store.got_messages, self.reads.found)


def _some(table: Mapping[K, V], key: K | None) -> Iterable[tuple[K, V]]:
    """Returns all items, or with a key only that one, if it exists."""
    if key is None:
        return table.items()
    return [(key, table[key])] if key in table else []


def _pair(key: str | None) -> tuple[str, str] | None:
    """Splits topic@group."""
    if key is None:
        return None
    topic, _, group = key.partition("@")
    return topic, group
