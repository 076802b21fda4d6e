"""When a timer message is to be delivered, by its properties; and what its unit in the timer queue says.

A unit has the delivery time (TIMER_OUT_MS) where others have the tag's hash, negative for a record that
recalls another one: so a new master reads twenty bytes per timer, and no message. Source: RocketMQ 5.3.3
HookUtils, TimerMessageStore.
"""

import base64
from typing import Final, NamedTuple

from broker.delay.levels import DELETE_KEY, OUT_MS
from broker.store.record import property_value

DELIVER_MS: Final = b"TIMER_DELIVER_MS"
DELAY_MS: Final = b"TIMER_DELAY_MS"
DELAY_SEC: Final = b"TIMER_DELAY_SEC"
TIMER_PROPERTIES: Final = (DELIVER_MS, DELAY_MS, DELAY_SEC)
TAG_HASH_MAX: Final = 1 << 32
"""A unit that RocketMQ wrote has a hash: no time is so small."""


def deliver_at(properties: bytes, now_ms: int) -> int | None:
    """Wall clock ms; None: it is no timer message. ValueError says which property is no number."""
    for name, factor, base in ((DELAY_SEC, 1_000, now_ms), (DELAY_MS, 1, now_ms), (DELIVER_MS, 1, 0)):
        text = property_value(properties, name)
        if text is None:
            continue
        if len(text) > 18 or not text.lstrip(b"-").isdigit():
            raise ValueError(f"property {name.decode()} is no number: {text[:20]!r}")
        return base + int(text) * factor
    return None


def out_ms(deliver_ms: int, precision_ms: int) -> int:
    """The slot: it goes out one precision later, never before it is due."""
    return (deliver_ms - 1) // precision_ms * precision_ms


def recall_key(properties: bytes) -> bytes | None:
    """topic+UNIQ_KEY of the message that this record recalls."""
    return property_value(properties, DELETE_KEY)


def key_of(topic: str, unique_key: bytes) -> bytes:
    return topic.encode() + b"+" + unique_key


def recall_handle(topic: str, broker_name: str, out_ms: int, unique_key: str) -> str:
    """By which a producer takes the message back: the time is one that out_ms() makes the same slot of."""
    text = f"v1 {topic} {broker_name} {out_ms + 1} {unique_key}"
    return base64.urlsafe_b64encode(text.encode()).decode()


class Handle(NamedTuple):
    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str


def parse_handle(text: str) -> Handle:
    """ValueError: it is none."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (ValueError, UnicodeError):
        raise ValueError("the recall handle is not base64") from None
    version, _, rest = raw.partition(" ")
    parts = rest.split(" ")
    if version != "v1" or len(parts) != 4 or not all(parts) or not parts[2].isdigit() or len(parts[2]) > 18:
        raise ValueError("the recall handle has not the five parts of version v1")
    return Handle(parts[0], parts[1], int(parts[2]), parts[3])


def out_ms_of(properties: bytes) -> int | None:
    text = property_value(properties, OUT_MS)
    return int(text) if text is not None and text.isdigit() and len(text) < 19 else None
