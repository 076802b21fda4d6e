"""Suite pull: 32 messages of 1 KiB to a reply, against the sender of one raw TCP stream.

Bytes per second of the broker's CPU, and of the raw sender's. Adjacent: all records of the log's piece are
one queue's. Scattered: eight queues in turn. Consumers go through some thousand messages again and again, one
request in flight on each of four connections.
"""

import json
import socket
import struct
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.bench.frames import EXT_FIELDS, OPAQUE
from tests.bench.native import BenchError, run_json
from tests.bench.report import Measurement, Results, alternate
from tests.bench.servers import Server, Shape, load, lone_broker

MESSAGES = 9_032
"""To a queue: as far as load.c asks."""
BODY_BYTES = 1_024
QUEUES = {"adjacent": 1, "scattered": 8}
AT_ONCE = 64
LOOPBACK_BYTES = 512 << 20
_SHAPE = Shape(4, 1)
_FIRST_OFFSET = "1000"


def run() -> Results:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keelmq-bench-")))
        broker = stack.enter_context(lone_broker(directory))
        for name, queues in QUEUES.items():
            fill_queues(broker.port, name, queues)
        adjacent, scattered, raw = alternate(
            lambda: pull_rate(broker, "adjacent"),
            lambda: pull_rate(broker, "scattered"),
            lambda: _loopback(directory),
        )
    return {
        "pull_adjacent": Measurement(adjacent, "MB/CPU-s", raw, adjacent / raw),
        "pull_scattered": Measurement(scattered, "MB/CPU-s", raw, scattered / raw),
    }


def _frame(code: int, ext: dict[str, str], body: bytes = b"") -> bytes:
    header = json.dumps(
        {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": OPAQUE, "version": 479},
        separators=(",", ":"),
    ).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def fill_queues(port: int, topic: str, queues: int) -> None:
    """MESSAGES for each queue, in turn."""
    body = b"x" * BODY_BYTES
    frames = [
        _frame(310, EXT_FIELDS | {"b": topic, "d": "8", "e": str(queue)}, body) for queue in range(queues)
    ]
    left = MESSAGES * queues
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rb") as replies:
        while left:
            count = min(AT_ONCE, left)
            connection.sendall(b"".join(frames[number % queues] for number in range(count)))
            for _ in range(count):
                reply = replies.read(int.from_bytes(replies.read(4), "big"))
                if b'"code":0' not in reply:
                    raise BenchError(f"the broker refuses a message: {reply[4:200]!r}")
            left -= count


def pull_rate(broker: Server, topic: str) -> float:
    frame = _frame(
        11,
        {
            "consumerGroup": "benchmark_consumer", "topic": topic, "queueId": "0",
            "queueOffset": _FIRST_OFFSET,
            "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        },
    )  # fmt: skip
    mark = b'"queueOffset":"'
    at = frame.index(mark) + len(mark)
    result = load(broker, _SHAPE, frame=frame, queue_offset_at=at, awake=True)
    if result["bytes"] < 32 * BODY_BYTES * result["replies"]:
        raise BenchError(f"{result['bytes'] // result['replies']} bytes to a reply: not 32 messages")
    return float(result["bytes"] / result["server_cpu_s"] / 1e6)


def _loopback(directory: Path) -> float:
    result = run_json("loopback", directory, LOOPBACK_BYTES, "warm")
    return float(result["bytes"] / result["sender_cpu_s"] / 1e6)
