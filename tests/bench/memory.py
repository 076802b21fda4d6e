"""Suite memory: what a broker has in its own memory while far more messages pass through it than it retains.

Messages are sent, pulled and deleted again, with small files and retention as short as it can be, so that
everything that belongs to a message comes and goes many times. Without the pages of mapped files. 10 million
messages: `--size 3500`.
"""

import json
import socket
import struct
import tempfile
import threading
from pathlib import Path
from typing import Any

from tests.bench.frames import TOPIC, send_frame
from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results
from tests.bench.resident import own_kib
from tests.bench.servers import Server, Shape, load, lone_broker

SIZE_MIB = 700
"""Of the log, in all: about 2 million messages."""
BODY_BYTES = 128
FILE_BYTES = 32 << 20
QUEUE_FILE_BYTES = 2_000_000
SETTINGS = {
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "mappedFileSizeConsumeQueue": str(QUEUE_FILE_BYTES),
    "maxHashSlotNum": "100000",
    "maxIndexNum": "400000",
    "fileReservedTime": "0",
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "cleanResourceInterval": "1000",
}
GOAL_MIB = 300.0
ROUND_MS = 1_000
WARM_ROUNDS = 3
RECORD_BYTES_MIN = 300


def run(size_mib: int = SIZE_MIB) -> Results:
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as place:
        with lone_broker(Path(place) / "broker", SETTINGS) as broker, _Puller(broker) as puller:
            sent, samples = _pass_through(broker, size_mib << 20)
            files = list((Path(place) / "broker" / "store" / "commitlog").iterdir())
        kept_mib = sum(file.stat().st_size for file in files if file.is_file()) / (1 << 20)
    first, last = samples[min(WARM_ROUNDS, len(samples) - 1)], samples[-1]
    return {
        "own_memory_most": Measurement(max(samples) / 1024, "MiB", GOAL_MIB, max(samples) / 1024 / GOAL_MIB),
        "own_memory_growth": Measurement((last - first) / 1024, "MiB", first / 1024, last / first),
        "messages_sent": Measurement(sent, "messages", puller.pulled, sent / max(puller.pulled, 1)),
        "log_kept": Measurement(kept_mib, "MiB", size_mib, kept_mib / size_mib),
    }


def _pass_through(broker: Server, log_bytes: int) -> tuple[int, list[float]]:
    """Messages, and the broker's own memory in KiB after each round."""
    sent, samples, frame = 0, list[float](), send_frame(BODY_BYTES)
    while sent * RECORD_BYTES_MIN < log_bytes:
        result = load(broker, Shape(4, 64), frame=frame, warmup_ms=0, measure_ms=ROUND_MS)
        sent += int(result["replies"])
        samples.append(own_kib(broker.pid))
    return sent, samples


class _Puller:
    """A consumer that reads what comes, from another thread; what was deleted before it came by, it skips."""

    def __init__(self, broker: Server) -> None:
        self.pulled = 0
        self._connection = socket.create_connection(("127.0.0.1", broker.port))
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._problem: Exception | None = None

    def __enter__(self) -> "_Puller":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        self._thread.join()
        self._connection.close()
        if self._problem is not None:
            raise BenchError(f"the consumer gave up: {self._problem}")

    def _run(self) -> None:
        offset = 0
        try:
            while not self._stops.is_set():
                header = self._pull(offset)
                next_offset = int(header["extFields"]["nextBeginOffset"])
                if header["code"] == 0:
                    self.pulled += next_offset - offset
                offset = next_offset
        except (OSError, ValueError, KeyError) as error:
            self._problem = error

    def _pull(self, offset: int) -> dict[str, Any]:
        fields = {
            "consumerGroup": "g", "topic": TOPIC, "queueId": "0", "queueOffset": str(offset),
            "maxMsgNums": "1024", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "100",
            "subVersion": "0", "subscription": "*",
        }  # fmt: skip
        header = {"code": 11, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 1, "version": 479}
        raw = json.dumps(header, separators=(",", ":")).encode()
        self._connection.sendall(struct.pack(">II", 4 + len(raw), len(raw)) + raw)
        size, header_bytes = struct.unpack(">II", self._read(8))
        answer: dict[str, Any] = json.loads(self._read(header_bytes))
        self._read(size - 4 - header_bytes)
        return answer

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._connection.recv(size - len(data))
            if not part:
                raise OSError("the broker closed the connection")
            data += part
        return bytes(data)
