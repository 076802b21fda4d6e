"""Client batches: written item by item, and read as the broker's store has them."""

import struct

from broker.message.batch_records import Batch, middle_of_header, records_of
from broker.message.record import decode, topic_bytes
from tests.support.store_parts import BORN_HOST


def item(body: bytes, properties: bytes = b"", flag: int = 0) -> bytes:
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


def as_stored(batch: bytes) -> list[tuple[int, bytes, bytes]]:
    """(flag, body, properties) of each record. ValueError, struct.error: it is none."""
    middle = middle_of_header(0, 7, BORN_HOST, 5_000, BORN_HOST, 0)
    raw = records_of(Batch(batch, topic_bytes("TopicA"), 0, 0, middle, b"", None, 0), 0).raw
    found, at = [], 0
    while at < len(raw):
        record = decode(raw, at)
        found.append((record.flag, record.body, record.properties))
        at += record.size
    return found
