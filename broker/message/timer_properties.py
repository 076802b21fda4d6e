"""Properties of timer messages: the delivery time, the slot, and the recall of a message. Pure.

The ConsumeQueue unit of a timer message has the delivery time (TIMER_OUT_MS) in place of the tag's hash,
negative for a record that recalls another one. So a new master reads twenty bytes per timer, and no message.
Source: RocketMQ 5.3.3 HookUtils, TimerMessageStore.
"""

import base64
from typing import Final, NamedTuple

from broker.message.delay_levels import DELETE_KEY, OUT_MS
from broker.message.record import property_value

DELIVER_MS: Final = b"TIMER_DELIVER_MS"
DELAY_MS: Final = b"TIMER_DELAY_MS"
DELAY_SEC: Final = b"TIMER_DELAY_SEC"
ROLL_TIMES: Final = b"TIMER_ROLL_TIMES"
"""How often the timer was rewritten, so that retention does not delete it before it is due."""
TIMER_PROPERTIES: Final = (DELIVER_MS, DELAY_MS, DELAY_SEC)
LONG_MAX: Final = 2**63 - 1
LONG_DIGITS_MAX: Final = 40
"""More digits, zeros in front included, are not read."""
TEXT_BYTES_SHOWN: Final = 32
TAG_HASH_MAX: Final = 1 << 32
"""A tags code below it is a hash in a unit that RocketMQ wrote: no delivery time is so small."""


def deliver_at(properties: bytes, now_ms: int) -> int | None:
    """Returns the delivery time, wall clock in ms; None if it is no timer message. ValueError with the
    property that is no number."""
    for name, factor, base in ((DELAY_SEC, 1_000, now_ms), (DELAY_MS, 1, now_ms), (DELIVER_MS, 1, 0)):
        text = property_value(properties, name)
        if text is None:
            continue
        return base + _long(name, text) * factor
    return None


def _long(name: bytes, text: bytes) -> int:
    """Returns the number of a property. ValueError, with the property's name: not a number, or not one of 64
    bits. A negative delay has passed, as in RocketMQ."""
    shown = text[:TEXT_BYTES_SHOWN].decode("utf-8", "replace")
    shown = repr(f"{shown}..." if len(text) > TEXT_BYTES_SHOWN else shown)
    if not text.removeprefix(b"-").isdigit():
        raise ValueError(f"property {name.decode()} is {shown}, which is not a whole number")
    if len(text) > LONG_DIGITS_MAX or not -LONG_MAX <= int(text) <= LONG_MAX:
        raise ValueError(f"property {name.decode()} is {shown}, which is above {LONG_MAX} (64 bits)")
    return int(text)


def out_ms(deliver_ms: int, precision_ms: int) -> int:
    """Returns the slot (ms) of a delivery time. The message is delivered one precision later, so never before
    it is due."""
    return (deliver_ms - 1) // precision_ms * precision_ms


def recall_key(properties: bytes) -> bytes | None:
    """Returns topic+UNIQ_KEY of the message that this record recalls; None if it recalls none."""
    return property_value(properties, DELETE_KEY)


def key_of(topic: str, unique_key: bytes) -> bytes:
    """Returns topic+UNIQ_KEY, the key by which a message is recalled."""
    return topic.encode() + b"+" + unique_key


def recall_handle(topic: str, broker_name: str, out_ms: int, unique_key: str) -> str:
    """Returns the handle by which a producer recalls the message. out_ms: its slot; the handle has a time for
    which out_ms() gives the same slot."""
    text = f"v1 {topic} {broker_name} {out_ms + 1} {unique_key}"
    return base64.urlsafe_b64encode(text.encode()).decode()


class Handle(NamedTuple):
    """A recall handle; deliver_ms: wall clock."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str


def parse_handle(text: str) -> Handle:
    """Parses a recall handle. ValueError: it is not one."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (ValueError, UnicodeError):
        raise ValueError("the recall handle is not base64") from None
    version, _, rest = raw.partition(" ")
    parts = rest.split(" ")
    if (
        version != "v1"
        or len(parts) < 4
        or not all(parts[:4])
        or not parts[2].isdigit()
        or len(parts[2]) > 18
    ):
        raise ValueError("the recall handle has not the five parts of version v1")
    return Handle(parts[0], parts[1], int(parts[2]), parts[3])


def out_ms_of(properties: bytes) -> int | None:
    """Returns the property TIMER_OUT_MS; None if it is absent or no number."""
    text = property_value(properties, OUT_MS)
    return int(text) if text is not None and text.isdigit() and len(text) < 19 else None
