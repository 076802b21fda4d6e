"""The workload, the same each time: one producer's SEND_MESSAGE_V2 as a 5.x Java client sends it."""

import json
import struct

TOPIC = "BenchmarkTest"
OPAQUE = 100_000_000
"""Nine digits, so that a load generator can patch it in place."""

EXT_FIELDS = {
    "a": "benchmark_producer",
    "b": TOPIC,
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1795247382069",
    "h": "0",
    "i": "UNIQ_KEY\x017F0000010D2E1B6D0586512A6E6C0001\x02WAIT\x01true\x02"
    "TAGS\x01TagA\x02KEYS\x01order-000000042",
    "j": "0",
    "k": "false",
    "l": "16",
    "m": "false",
    "n": "broker-a",
}


BATCH_ITEMS = 32
_ITEM = struct.Struct(">iiiii")
TAGS = "\x02TAGS\x01TagA"
KEYS = "\x02KEYS\x01order-000000042"


def batch_body(body_bytes: int) -> bytes:
    """BATCH_ITEMS messages with a unique key each, as a producer's batch has them."""
    body, items = b"x" * body_bytes, []
    for number in range(BATCH_ITEMS):
        text = b"UNIQ_KEY\x017F0000010D2E1B6D0586512A6E6C%04X\x02WAIT\x01true\x02TAGS\x01TagA\x02" % number
        size = _ITEM.size + len(body) + 2 + len(text)
        items.append(_ITEM.pack(size, 0, 0, 0, len(body)) + body + len(text).to_bytes(2, "big") + text)
    return b"".join(items)


def send_header(*, wait: bool = True, keys: bool = True, batch: bool = False) -> bytes:
    """`wait`: the producer asks for the acknowledgement of the replicas (where the broker has any). `keys`: a
    key beside the unique one. `batch`: of a batch_body()."""
    properties = EXT_FIELDS["i"] if wait else EXT_FIELDS["i"].replace("WAIT\x01true", "WAIT\x01false")
    if not keys:
        properties = properties.replace(KEYS, "")
    if batch:  # tags and keys are its items'
        properties = properties.replace(KEYS, "").replace(TAGS, "")
    fields = EXT_FIELDS | {"i": properties} | ({"m": "true"} if batch else {})
    header = {
        "code": 320 if batch else 310,
        "extFields": fields,
        "flag": 0,
        "language": "JAVA",
        "opaque": OPAQUE,
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    }
    return json.dumps(header, separators=(",", ":")).encode()


def send_frame(body_bytes: int, *, wait: bool = True) -> bytes:
    header, body = send_header(wait=wait), b"x" * body_bytes
    length, header_length = 4 + len(header) + len(body), len(header)
    return length.to_bytes(4, "big") + header_length.to_bytes(4, "big") + header + body


def opaque_at(frame: bytes) -> int:
    return frame.index(str(OPAQUE).encode())
