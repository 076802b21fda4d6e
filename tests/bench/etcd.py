"""The yardstick of the control plane: three etcd members with their own defaults, one put after the other.

The client speaks gRPC itself, over one connection to the leader: HTTP/2 frames made beforehand on a blocking
socket. So nothing stands between etcd and its client: no JSON gateway, no gRPC library in Python.
"""

import contextlib
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.native import BenchError
from tests.support.ports import free_port

HOST = "127.0.0.1"
MEMBERS = 3
START_SECONDS_MAX = 30
REPLY_SECONDS_MAX = 10
INSTALL = "install it to measure against etcd: apt-get install etcd-server"

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
WINDOW_BYTES = 2**31 - 1 - 65_535
VARINT, BYTES = 0, 2


def is_installed() -> bool:
    return shutil.which("etcd") is not None


def version() -> str:
    done = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0] if done.stdout else "etcd"


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    client_port: int
    peer_port: int


@contextlib.contextmanager
def cluster(directory: Path, *, encrypts: bool = False) -> Iterator[list[Member]]:
    """Ends them all. Their data lies in `directory`. encrypts: they talk to each other over TLS, with
    certificates that they make themselves."""
    members = [Member(f"e{each}", free_port(), free_port()) for each in range(MEMBERS)]
    with contextlib.ExitStack() as stack:
        for member in members:
            stack.enter_context(_running(member, members, directory, encrypts=encrypts))
        yield members


@contextlib.contextmanager
def _running(member: Member, members: list[Member], directory: Path, *, encrypts: bool) -> Iterator[None]:
    scheme = "https" if encrypts else "http"
    clients, peers = f"http://{HOST}:{member.client_port}", f"{scheme}://{HOST}:{member.peer_port}"
    initial = ",".join(f"{each.name}={scheme}://{HOST}:{each.peer_port}" for each in members)
    options = {
        "name": member.name,
        "data-dir": str(directory / member.name),
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": initial,
        "initial-cluster-state": "new",
    }
    command = ["etcd", *(f"--{key}={value}" for key, value in options.items())]
    if encrypts:
        command.append("--peer-auto-tls")
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()


class Client:
    """One connection, one call after the other."""

    def __init__(self, port: int) -> None:
        self._authority = f"{HOST}:{port}".encode()
        self._socket = socket.create_connection((HOST, port), timeout=REPLY_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._stream = -1
        window = _frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW_BYTES))
        self._socket.sendall(PREFACE + _frame(SETTINGS, 0, 0) + window)

    def close(self) -> None:
        self._socket.close()

    def put(self, key: bytes, value: bytes) -> None:
        self.call(b"/etcdserverpb.KV/Put", _field(1, key) + _field(2, value))

    def get(self, key: bytes) -> bytes:
        """The value; b"" if there is none."""
        answer = _fields(self.call(b"/etcdserverpb.KV/Range", _field(1, key)))
        pair = answer.get(2, b"")
        assert isinstance(pair, bytes)
        value = _fields(pair).get(5, b"")
        assert isinstance(value, bytes)
        return value

    def leads(self) -> bool | None:
        """None: nobody does, yet."""
        answer = _fields(self.call(b"/etcdserverpb.Maintenance/Status", b""))
        header, leader = answer[1], answer.get(4, 0)
        assert isinstance(header, bytes)
        return None if not leader else _fields(header)[2] == leader

    def call(self, path: bytes, message: bytes) -> bytes:
        """The answer's message. BenchError: refused."""
        self._stream += 2
        headers = _frame(HEADERS, END_HEADERS, self._stream, self._headers(path))
        data = _frame(DATA, END_STREAM, self._stream, b"\0" + struct.pack(">I", len(message)) + message)
        self._socket.sendall(headers + data)
        answer = bytearray()
        while True:
            kind, flags, stream, payload = self._next_frame()
            if kind == DATA and stream == self._stream:
                answer += payload
            if kind in (RST_STREAM, GOAWAY):
                raise BenchError(f"etcd ended the call: {payload[-100:]!r}")
            if kind in (DATA, HEADERS) and stream == self._stream and flags & END_STREAM:
                break
        if len(answer) < 5:  # only trailers: the status is an error
            raise BenchError(f"etcd refused {path.decode()}: {payload[-200:]!r}")
        return bytes(answer[5:])

    def _headers(self, path: bytes) -> bytes:
        """HPACK, literals without indexing: the same bytes each time."""
        named = [(4, path), (1, self._authority)]  # :path, :authority of the static table
        text = b"\x83\x86"  # :method POST, :scheme http
        text += b"".join(bytes([index, len(value)]) + value for index, value in named)
        for name, value in ((b"content-type", b"application/grpc"), (b"te", b"trailers")):
            text += b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
        return text

    def _next_frame(self) -> tuple[int, int, int, bytes]:
        while True:
            received = self._received
            if len(received) >= 9 and len(received) >= 9 + (size := int.from_bytes(received[:3], "big")):
                kind, flags, stream = received[3], received[4], int.from_bytes(received[5:9], "big")
                payload = bytes(received[9 : 9 + size])
                del received[: 9 + size]
                if kind in (SETTINGS, PING) and not flags & ACK:
                    self._socket.sendall(_frame(kind, ACK, 0, payload if kind == PING else b""))
                    continue
                return kind, flags, stream, payload
            data = self._socket.recv(65_536)
            if not data:
                raise BenchError("etcd closed the connection")
            received += data


def leader_of(members: list[Member]) -> Member:
    """Waits for one. BenchError."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        for member in members:
            if _leads(member):
                return member
        time.sleep(0.1)
    raise BenchError(f"etcd had no leader after {START_SECONDS_MAX} s")


def _leads(member: Member) -> bool:
    try:
        with contextlib.closing(Client(member.client_port)) as client:
            return bool(client.leads())
    except (OSError, BenchError):  # not listening, or without a leader
        return False


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _field(number: int, value: bytes) -> bytes:
    assert len(value) < 128, "one byte of length is all that is written here"
    return bytes([number << 3 | BYTES, len(value)]) + value


def _fields(message: bytes) -> dict[int, int | bytes]:
    """Protocol buffers, as far as etcd's answers need them: the last value of each field."""
    fields: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value, at = _varint(message, at)
        if tag & 7 == BYTES:
            fields[tag >> 3] = message[at : at + value]
            at += value
        elif tag & 7 == VARINT:
            fields[tag >> 3] = value
        else:
            raise BenchError(f"etcd sent wire type {tag & 7}")
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
