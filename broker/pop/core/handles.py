"""Receipt handles, and the fields of a pop's response. Pure.

A handle (extraInfo, also the property POP_CK) identifies a popped message in its acknowledgement:
`ckQueueOffset popTime invisibleTime reviveQid retryFlag brokerName queueId msgQueueOffset commitLogOffset`.
Java's gRPC proxy adds the last field. As RocketMQ's brokers do, parse_handle() needs the first six (the
request names queue and message), and ignores what follows msgQueueOffset. Source: RocketMQ 5.3.3
ExtraInfoUtil, ReceiptHandle, KeyBuilder.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from broker.metadata.core.topic_names import RETRY_PREFIX, retry_topics

ORDER_REVIVE_QUEUE: Final = 999
"""The reviveQid of messages that were popped in order; they have no checkpoint in a revive queue."""
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
FIELDS_MIN: Final = 6
NUMBER_CHARS_MAX: Final = 19
BITS_MAX: Final = 4_096
"""Messages that one batch acknowledgement can name: far more than one pop returns."""


class BadHandle(ValueError):
    """Not a receipt handle."""


class Handle(NamedTuple):
    """start_offset: of the checkpoint, in the popped queue. retry: RETRY_V1, RETRY_V2; NORMAL and anything
    else: the subscribed topic. queue_id -1: the handle names none."""

    start_offset: int
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    retry: str
    broker_name: str
    queue_id: int
    offset: int | None = None

    @property
    def is_ordered(self) -> bool:
        """Whether the message was popped in order."""
        return self.revive_queue == ORDER_REVIVE_QUEUE

    def text(self) -> str:
        """Returns the handle as clients send it: its fields, joined by spaces."""
        fields = self if self.offset is not None else self[:-1]
        return " ".join(str(value) for value in fields)


def parse_handle(text: str) -> Handle:
    """Parses a handle. Raises BadHandle."""
    fields = text.rstrip(" ").split(" ")
    if len(fields) < FIELDS_MIN:
        raise BadHandle(
            f"a receipt handle has {FIELDS_MIN} fields or more, not {len(fields)}: {text[:255]!r}"
        )
    start, pop, invisible, queue, retry, broker_name, *rest = fields
    queue_id, offset, *_ = (*map(_number, rest[:2]), None, None)
    return Handle(
        _number(start), _number(pop), _number(invisible), _number(queue), retry, broker_name,
        -1 if queue_id is None else queue_id, offset,
    )  # fmt: skip


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_CHARS_MAX):
        raise BadHandle(f"not a number in a receipt handle: {text[:255]!r}")
    return int(text)


# -- topics ----------------------------------------------------------------------------------------------


def retry_flag(name: str, group: str) -> str:
    """Returns NORMAL, RETRY_V1 or RETRY_V2 for the topic that a message was popped from."""
    if name.startswith(f"{RETRY_PREFIX}{group}+"):
        return RETRY_V2
    return RETRY_V1 if name.startswith(RETRY_PREFIX) else NORMAL


def topic_of(flag: str, group: str, topic: str) -> str:
    """Returns the popped topic; `topic`: the subscribed one, which the request names."""
    return retry_topics(group, topic)[flag == RETRY_V2] if flag in (RETRY_V1, RETRY_V2) else topic


# -- fields of a pop's response --------------------------------------------------------------------------


def join_infos(entries: Iterable[str]) -> str:
    """Joins the entries of a response field."""
    return ";".join(entries)


def start_offset_info(flag: str, queue_id: int, offset: int) -> str:
    """Returns an entry of startOffsetInfo."""
    return f"{flag} {queue_id} {offset}"


def msg_offset_info(flag: str, queue_id: int, offsets: Iterable[int]) -> str:
    """Returns an entry of msgOffsetInfo."""
    return f"{flag} {queue_id} {','.join(map(str, offsets))}"


def order_count_infos(flag: str, queue_id: int, counts: dict[int, int], messages: int) -> Iterator[str]:
    """Yields the entries of orderCountInfo. counts: earlier deliveries, by offset. The last entry is the
    number per queue that old clients read."""
    for offset, count in sorted(counts.items()):
        yield f"{flag} qo{queue_id}%{offset} {count}"
    least = min(counts.values()) if counts and len(counts) == messages else 0
    yield f"{flag} {queue_id} {least}"


def bits_of(text: str) -> list[int]:
    """Returns the indexes of the set bits of a batch acknowledgement (base64, lowest bit first). Raises
    BadHandle."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadHandle(f"not a base64 bit set: {text[:64]!r}") from None
    if len(raw) * 8 > BITS_MAX:
        raise BadHandle(f"a bit set of {len(raw) * 8} bits; {BITS_MAX} is the limit")
    return [8 * at + bit for at, byte in enumerate(raw) for bit in range(8) if byte >> bit & 1]


def bits_text(indexes: Iterable[int]) -> str:
    """Returns the bit set that bits_of() reads. indexes: below BITS_MAX."""
    bits = 0
    for index in indexes:
        bits |= 1 << index
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()
