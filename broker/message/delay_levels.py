"""Delay levels: the delay of each level, and the delivery time of a delayed record.

A delayed message is a record of SCHEDULE_TOPIC_XXXX, in queue level - 1. Its ConsumeQueue unit has the
delivery time (ms) in place of the tag's hash. Pure. Source: RocketMQ 5.3.3 ScheduleMessageService.
"""

import re
from typing import Final

from broker.message.record import property_value

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
SCHEDULED_TOPICS: Final = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
"""Topics whose ConsumeQueue units have delivery times instead of tag hashes."""
OUT_MS: Final = b"TIMER_OUT_MS"
DELETE_KEY: Final = b"TIMER_DEL_UNIQKEY"
DEFAULT_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVELS_MAX: Final = 64
UNKNOWN_LEVEL_MS: Final = 1_000
_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
DELAY: Final = b"DELAY"


class DelayLevels:
    """The table of delays; levels are numbered from 1."""

    def __init__(self, text: str = DEFAULT_LEVELS) -> None:
        """text: messageDelayLevel. ValueError with the part that is no level."""
        self._delays_ms = [_delay_ms(part) for part in text.split()]
        if not 1 <= len(self._delays_ms) <= LEVELS_MAX:
            raise ValueError(f"{len(self._delays_ms)} levels; 1 to {LEVELS_MAX} are possible")

    @property
    def count(self) -> int:
        """Number of levels."""
        return len(self._delays_ms)

    def delay_ms(self, level: int) -> int:
        """The delay of the level in ms; one second for an unknown level, as in RocketMQ."""
        return self._delays_ms[level - 1] if 1 <= level <= self.count else UNKNOWN_LEVEL_MS

    def level_of(self, properties: bytes) -> int:
        """The level that the property DELAY names, at most the last one; 0 if the message is not delayed.
        ValueError: DELAY is no number."""
        text = property_value(properties, DELAY)
        if text is None:
            return 0
        if len(text) > 9 or not text.lstrip(b"-").isdigit():
            raise ValueError(f"property DELAY is not a delay level: {text[:20]!r}")
        return min(max(int(text), 0), self.count)

    def queue_code(self, topic: str, properties: bytes, store_timestamp: int) -> int:
        """The tags code of a record of a topic in SCHEDULED_TOPICS. store_timestamp: of the record, in ms."""
        return timer_code(properties) if topic == TIMER_TOPIC else self.due_at(properties, store_timestamp)

    def due_at(self, properties: bytes, store_timestamp: int) -> int:
        """The tags code of a record of SCHEDULE_TOPIC: its delivery time in ms; 0 if it has no level."""
        try:
            level = self.level_of(properties)
        except ValueError:
            return 0
        return store_timestamp + self.delay_ms(level) if level else 0


def timer_code(properties: bytes) -> int:
    """The tags code of a record of TIMER_TOPIC: its delivery time in ms, negative if it recalls another one.
    0: it has none."""
    text = property_value(properties, OUT_MS)
    if text is None or not text.isdigit() or len(text) > 18:
        return 0
    return -int(text) if property_value(properties, DELETE_KEY) is not None else int(text)


def _delay_ms(part: str) -> int:
    found = _LEVEL.fullmatch(part)
    if found is None:
        raise ValueError(f"{part!r} is not a delay level: give a number and s, m, h or d, like 10s")
    return int(found[1]) * _UNITS[found[2]]
