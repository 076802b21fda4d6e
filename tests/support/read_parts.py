"""A real Connection in front of a test's handlers: what one read brings is served as in a broker."""

import asyncio
import json

from keelmq.remoting.command import RemotingCommand, decode
from keelmq.remoting.connection import SCRATCH_BYTES, Connection
from keelmq.remoting.dispatch import Dispatcher
from keelmq.remoting.frame import whole_frames

SEND_FIELDS = {
    "a": "group", "b": "TopicA", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
    "i": "TAGS\x01TagA\x02UNIQ_KEY\x01AC11", "j": "0", "k": "false", "m": "false",
}  # fmt: skip

V1_FIELDS = {
    "producerGroup": "group", "topic": "TopicA", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "UNIQ_KEY\x01AC12",
}  # fmt: skip
"""Of code 10."""


def request_frame(
    code: int, opaque: int, fields: dict[str, str], body: bytes = b"", *, flag: int = 0
) -> bytes:
    command = {"code": code, "extFields": fields, "flag": flag, "opaque": opaque}
    header = json.dumps(command, separators=(",", ":")).encode()
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


def send_frame(opaque: int, body: bytes = b"body", *, flag: int = 0, **changed: str) -> bytes:
    return request_frame(310, opaque, SEND_FIELDS | changed, body, flag=flag)


class FakeTransport(asyncio.Transport):
    """Keeps what is written, one item per write."""

    def __init__(self, extra: dict[str, object]) -> None:
        super().__init__(extra)
        self.writes: list[bytes] = []
        self.closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class Reader:
    """Needs a running loop."""

    def __init__(self, dispatcher: Dispatcher, host: str = "10.0.0.1") -> None:
        self.transport = FakeTransport({"peername": (host, 4660)})
        self.connection = Connection(
            dispatcher,
            memoryview(bytearray(SCRATCH_BYTES)),
            on_made=lambda _: None,
            on_lost=lambda _: None,
        )
        self.connection.connection_made(self.transport)

    def read(self, data: bytes) -> None:
        """As one read."""
        buffer = self.connection.get_buffer(-1)
        buffer[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def answers(self) -> list[RemotingCommand]:
        """All that was written; forgets it."""
        raw = b"".join(self.transport.writes)
        self.transport.writes.clear()
        frames = whole_frames(raw)
        assert not frames or frames[-1][3] == len(raw), "a cut frame"
        return [decode(raw[end - 4 - len(header) - len(body) : end]) for _, header, body, end in frames]
