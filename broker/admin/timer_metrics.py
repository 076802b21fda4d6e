"""Metrics of timer messages, with RocketMQ's names.

Each master counts its own operations, and only masters have gauges, so a sum over all brokers counts nothing
twice. Source: RocketMQ 5.3.3 DefaultStoreMetricsManager, TimerMessageStore.
"""

import asyncio
from bisect import bisect_left
from typing import Final

from broker.admin.group_metrics import SLICE_ROWS, has_topic
from broker.metadata.service import Metadata
from broker.timers.service import TimerService
from keelmq.remoting.servers.metrics import Metric, Scrape
from keelmq.runtime.slices import Slices

BOUNDS_S: Final = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
STEP: Final = 5_000
"""Delivery times that are read between two pauses for other work."""
STORAGE: Final = ("local", "disk")
STORAGE_LABELS: Final = ("storage_type", "storage_medium")

METRICS: Final = (
    Metric("rocketmq_timing_messages", "timers that are not delivered yet; of a master"),
    Metric(
        "rocketmq_timer_message_snapshot",
        "timers that are due within timer_bound_s seconds, and not within the bound before it; of a master",
        ("timer_bound_s",),
    ),
    Metric("rocketmq_timer_enqueue_total", "timers that were put into the wheel"),
    Metric(
        "rocketmq_timer_enqueue_lag",
        "timer messages that are not in the wheel yet; of a master",
        STORAGE_LABELS,
    ),
    Metric(
        "rocketmq_timer_enqueue_latency_milliseconds",
        "age of the oldest timer message that is not in the wheel yet, 0 without one; of a master",
        STORAGE_LABELS,
    ),
    Metric("rocketmq_timer_dequeue_total", "timers that were delivered", ("topic",)),
    Metric(
        "rocketmq_timer_dequeue_lag", "timers that are due and not delivered yet; of a master", STORAGE_LABELS
    ),
    Metric(
        "rocketmq_timer_dequeue_latency_milliseconds",
        "since the next timer has been due; of a master",
        STORAGE_LABELS,
    ),
    Metric(
        "rocketmq_delay_message_latency_seconds",
        "from the birth of a timer message to its delivery time, when it is stored: the delay that its "
        "producer asks for",
        ("topic",),
        is_histogram=True,
    ),
)


class TimerTimes:
    """The number of timers by due time. `within`: their number by BOUNDS_S, None on a slave. overdue: those
    that should be delivered by now. Both as of the last measure(). Owned by the event loop's thread."""

    def __init__(self, timers: TimerService) -> None:
        self._timers = timers
        self.within: list[int] | None = None
        self.overdue = 0

    async def measure(self) -> None:
        """Counts the timers of the wheel, in steps: one of millions of timers has many delivery times."""
        timers = self._timers
        if not timers.has_term:
            self.within, self.overdue = None, 0
            return
        wheel, now = timers.wheel, timers.due_ms
        overdue, within = 0, [0] * (len(BOUNDS_S) + 1)
        bounds_ms = [bound * 1_000 for bound in BOUNDS_S]
        times = wheel.times()
        for start in range(0, len(times), STEP):
            for out_ms in times[start : start + STEP]:
                left_ms = out_ms - now
                if left_ms <= 0:
                    overdue += wheel.count_at(out_ms)
                else:
                    within[bisect_left(bounds_ms, left_ms)] += wheel.count_at(out_ms)
            await asyncio.sleep(0)
        self.within, self.overdue = within[:-1], overdue


def add_timers(made: Scrape, timers: TimerService, times: TimerTimes, metadata: Metadata) -> Slices[None]:
    """Adds the values of METRICS."""
    if timers.has_term:
        made.add("rocketmq_timing_messages", len(timers.wheel))
        made.add("rocketmq_timer_enqueue_lag", timers.unread, *STORAGE)
        made.add("rocketmq_timer_enqueue_latency_milliseconds", timers.unread_ms, *STORAGE)
        made.add("rocketmq_timer_dequeue_latency_milliseconds", timers.late_ms, *STORAGE)
        if times.within is not None:
            made.add("rocketmq_timer_dequeue_lag", times.overdue, *STORAGE)
            for bound, count in zip(BOUNDS_S, times.within, strict=True):
                made.add("rocketmq_timer_message_snapshot", count, str(bound))
    made.add("rocketmq_timer_enqueue_total", timers.added)
    for number, (topic, count) in enumerate(list(timers.delivered_to.items())):
        if number % SLICE_ROWS == 0:
            yield
        if has_topic(metadata, topic):
            made.add("rocketmq_timer_dequeue_total", count, topic)
    for number, (topic, histogram) in enumerate(list(timers.delays.items())):
        if number % SLICE_ROWS == 0:
            yield
        if has_topic(metadata, topic):
            made.add_histogram("rocketmq_delay_message_latency_seconds", histogram, topic)
