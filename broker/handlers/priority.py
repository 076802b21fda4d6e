"""The priority of a message, and the queue that follows from it. Pure.

A broker stores a message with a priority in the queue of that number, whatever the producer chose. POP reads
the queues of a topic with message.type=PRIORITY in the order of their priority. A message is of one type
only: one that is also transactional, delayed or ordered loses its priority. Source: RocketMQ 5.5
SendMessageProcessor, TopicMessageType (RIP-80).
"""

from typing import Final

from broker.message.properties import with_properties
from broker.message.record import is_half, property_value
from broker.message.timer_properties import TIMER_PROPERTIES

PRIORITY: Final = b"_SYS_MSG_PRIORITY_"
PRIORITY_MAX: Final = 2**31 - 1
_DIGITS_MAX: Final = 10
_TEXT_BYTES_SHOWN: Final = 32
_STRONGER_TYPES: Final = (b"DELAY", *TIMER_PROPERTIES, b"__SHARDINGKEY")
"""Properties of delayed and of ordered messages."""


def priority_of(properties: bytes) -> int | None:
    """Returns the priority; None: the message has none. Raises ValueError if it is no number from 0 to
    PRIORITY_MAX: RocketMQ ignores such a value."""
    text = property_value(properties, PRIORITY)
    if not text:
        return None
    if text.isdigit() and len(text) <= _DIGITS_MAX and int(text) <= PRIORITY_MAX:
        return int(text)
    shown = text[:_TEXT_BYTES_SHOWN].decode("utf-8", "replace")
    raise ValueError(
        f"property {PRIORITY.decode()} is {shown!r}: allowed is a number from 0 to {PRIORITY_MAX}"
    )


def with_queue(properties: bytes, queue_id: int, queues: int) -> tuple[bytes, int]:
    """Returns the properties and the queue of a message as they are stored. queue_id: the producer's choice.
    queues: the topic's write queues; higher priorities share the last queue."""
    priority = priority_of(properties)
    if priority is None:
        return properties, queue_id
    if is_half(properties) or any(property_value(properties, name) is not None for name in _STRONGER_TYPES):
        return with_properties(properties, {PRIORITY: None}), queue_id
    return properties, min(priority, max(queues, 1) - 1)
