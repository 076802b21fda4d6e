"""The workload, the same each time: one producer's SEND_MESSAGE_V2 as a 5.x Java client sends it."""

import json

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


def send_header(*, wait: bool = True) -> bytes:
    """`wait`: the producer asks for the acknowledgement of the replicas (where the broker has any)."""
    properties = EXT_FIELDS["i"] if wait else EXT_FIELDS["i"].replace("WAIT\x01true", "WAIT\x01false")
    header = {
        "code": 310,
        "extFields": EXT_FIELDS | {"i": properties},
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
