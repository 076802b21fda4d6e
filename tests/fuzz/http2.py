"""Connections that speak no gRPC, or stop in the middle of it: bytes that a broken or hostile client sends.

The frames of HTTP/2 are written here, byte by byte, since no library would write them. Source: RFC 9113.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from proxy.wire import messaging_pb2 as pb

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4
SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"
READ_S: Final = 0.02
INITIAL_WINDOW_SIZE: Final = 4


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    """Returns a frame. Its length is right."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    """Returns a SETTINGS frame."""
    return frame(SETTINGS, payload=b"".join(struct.pack(">HI", *pair) for pair in pairs))


def header(name: bytes, value: bytes) -> bytes:
    """Returns a literal header field without indexing, without Huffman's code (RFC 7541, 6.2.2)."""
    return b"\x00" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)])
    rest, found = len(text) - 127, bytearray([127])
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest])


def headers_of(method: str, *more: tuple[bytes, bytes]) -> bytes:
    """Returns the header block of a call."""
    fields = [
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", (SERVICE + method).encode()),
        (b":authority", b"fuzz"), (b"te", b"trailers"), (b"content-type", b"application/grpc"),
        (b"x-mq-client-id", b"raw"), *more,
    ]  # fmt: skip
    return b"".join(header(name, value) for name, value in fields)


def message(body: bytes, *, length: int | None = None, compressed: int = 0) -> bytes:
    """Returns gRPC's prefix and the body. length: that it says."""
    return struct.pack(">BI", compressed, len(body) if length is None else length) + body


START: Final = PREFACE + settings()
HEARTBEAT: Final = message(pb.HeartbeatRequest(client_type=pb.PRODUCER).SerializeToString())


def _call(method: str, data: bytes, *more: tuple[bytes, bytes], stream: int = 1) -> bytes:
    block = headers_of(method, *more)
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, data)


def _garbage(random: Random) -> bytes:
    return random.randbytes(random.choice((1, 9, 300, 20_000)))


def _other_protocols(random: Random) -> bytes:
    return random.choice((
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x00\x00\x10\x00\x00\x00\x08{\"code\":105}",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n", b"\r\n" * 50,
    ))  # fmt: skip


def _half_a_start(random: Random) -> bytes:
    whole = START + _call("Heartbeat", HEARTBEAT)
    return whole[: random.randrange(len(whole))]


def _slow_headers(random: Random) -> bytes:
    """A header block whose end never comes."""
    block = headers_of("Heartbeat")
    cut = random.randrange(len(block))
    more = frame(CONTINUATION, 0, 1, b"") * random.choice((0, 1, 50))
    return START + frame(HEADERS, 0, 1, block[:cut]) + more


def _large_headers(random: Random) -> bytes:
    fields = [(b"x-%d" % each, b"v" * 4_000) for each in range(random.choice((4, 40)))]
    block = headers_of("Heartbeat", *fields)
    pieces = [block[at : at + 16_000] for at in range(0, len(block), 16_000)]
    frames = [frame(CONTINUATION, 0, 1, piece) for piece in pieces[1:]]
    return START + frame(HEADERS, 0, 1, pieces[0]) + b"".join(frames) + frame(CONTINUATION, END_HEADERS, 1)


def _strange_headers(random: Random) -> bytes:
    value = random.choice((b"\xff\xfe", b"a\x00b", b"\xc3\xa9", b"a\r\nb: c", b"x" * 9_000))
    name = random.choice((b"x-mq-client-id", b"x-mq-namespace", b"x-bin", b"grpc-timeout", b"X-Upper", b""))
    return START + _call("Heartbeat", HEARTBEAT, (name, value))


def _strange_paths(random: Random) -> bytes:
    """grpcio's own server ends when a path is no UTF-8."""
    block = headers_of("Heartbeat").replace(
        b"/apache", random.choice((b"/apach\xb5", b"\xff\xfe/apac", b"//pache"))
    )
    return START + frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, HEARTBEAT)


def _wrong_lengths(random: Random) -> bytes:
    length = random.choice((0, 1, 2**31, 2**32 - 1, 65_537))
    data = message(b"\x10\x01", length=length, compressed=random.choice((0, 1, 7)))
    return START + _call(random.choice(("Heartbeat", "SendMessage", "Telemetry")), data)


def _no_reader(random: Random) -> bytes:
    """Settings that are answered into a window of no bytes."""
    publishing = pb.Publishing(topics=[pb.Resource(name="T0")])
    command = pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER, publishing=publishing))
    data = message(command.SerializeToString()) * random.choice((1, 100, 600))
    frames = [frame(DATA, 0, 1, data[at : at + 16_000]) for at in range(0, len(data), 16_000)]
    begin = PREFACE + settings((INITIAL_WINDOW_SIZE, 0))
    return begin + frame(HEADERS, END_HEADERS, 1, headers_of("Telemetry")) + b"".join(frames)


def _resets(random: Random) -> bytes:
    """Calls that are reset at once ("rapid reset")."""
    calls = [
        _call("Heartbeat", HEARTBEAT, stream=stream) + frame(RESET, 0, stream, b"\x00\x00\x00\x08")
        for stream in range(1, 2 * random.choice((5, 200)), 2)
    ]
    return START + b"".join(calls)


def _floods(random: Random) -> bytes:
    piece = random.choice((
        frame(PING, payload=b"12345678"), settings(), frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff"),
        frame(DATA, 0, 1, b""), frame(GO_AWAY, payload=bytes(8)), frame(255, 255, 1, b"x"),
    ))  # fmt: skip
    return START + piece * random.choice((1, 100, 2_000))


def _half_a_message(random: Random) -> bytes:
    """The call is open, and its message never ends."""
    method = random.choice(("SendMessage", "ReceiveMessage", "Telemetry", "AckMessage"))
    data = message(bytes(100), length=60_000)
    return START + frame(HEADERS, END_HEADERS, 1, headers_of(method)) + frame(DATA, 0, 1, data)


def _damaged(random: Random) -> bytes:
    found = bytearray(START + _call("Heartbeat", HEARTBEAT) + _call("Heartbeat", HEARTBEAT, stream=3))
    for _ in range(random.choice((1, 2, 8))):
        found[random.randrange(len(PREFACE), len(found))] = random.randrange(256)
    return bytes(found)


VISITS: Final[Sequence[Callable[[Random], bytes]]] = (
    _garbage, _other_protocols, _half_a_start, _slow_headers, _large_headers, _strange_headers,
    _strange_paths, _wrong_lengths, _no_reader, _resets, _floods, _half_a_message, _damaged,
)  # fmt: skip


async def visit(address: tuple[str, int], random: Random) -> None:
    """Connects, sends what no client sends, reads a little or nothing, and is gone."""
    data = random.choice(VISITS)(random)
    try:
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(data)
            if random.random() < 0.5:
                await asyncio.wait_for(reader.read(100_000), READ_S)
            if random.random() < 0.3:
                writer.write_eof()
        finally:
            writer.transport.abort()
    except (OSError, TimeoutError):
        pass
