"""Encodes batch bodies, and decides how many messages go into one.

One item: i32 size | i32 magic (0) | i32 crc (0) | i32 flag | i32 bytes, body | i16 bytes, properties. A
batch has one topic, one WAIT, no delay, no compression and no retry topic. Source: RocketMQ's
MessageDecoder.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

BATCH_BYTES_MAX: Final = 1_000_000
"""Bytes of one request. Brokers accept 4 MiB; smaller requests let those of other producers in between."""
BATCH_ITEMS_MAX: Final = 4_096
PROPERTIES_BYTES_MAX: Final = 32_767

_HEAD = struct.Struct(">iiiii")
_PROPERTIES = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Item:
    """One message of a batch. `properties`: encoded as on the wire."""

    body: bytes
    properties: str
    flag: int = 0

    def encode(self) -> bytes:
        """Returns the item's bytes. ValueError: the properties exceed PROPERTIES_BYTES_MAX."""
        properties = self.properties.encode()
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise ValueError(f"properties of {len(properties)} bytes exceed {PROPERTIES_BYTES_MAX}")
        size = _HEAD.size + len(self.body) + _PROPERTIES.size + len(properties)
        head = _HEAD.pack(size, 0, 0, self.flag, len(self.body))
        return head + self.body + _PROPERTIES.pack(len(properties)) + properties


def encode_batches(
    items: Iterable[Item], *, bytes_max: int = BATCH_BYTES_MAX, items_max: int = BATCH_ITEMS_MAX
) -> Iterator[tuple[int, bytes]]:
    """Yields (number of items, body), in order. An item above bytes_max is sent alone, and the broker decides
    whether it accepts it."""
    held: list[bytes] = []
    held_bytes = 0
    for item in items:
        raw = item.encode()
        if held and (held_bytes + len(raw) > bytes_max or len(held) >= items_max):
            yield len(held), b"".join(held)
            held, held_bytes = [], 0
        held.append(raw)
        held_bytes += len(raw)
    if held:
        yield len(held), b"".join(held)
