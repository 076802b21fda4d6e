"""Bytes of one connection <-> whole frames, authenticated before any frame is handed on. No socket here.

    plain:   frame = length (4, big endian) + payload                  loopback only
    key:     32-byte nonce each way, then frame = length (4) + AES-256-GCM(payload) with a counter as nonce
    TLS:     raft.tls

One key per direction, HKDF-SHA256(shared key, salt = both nonces, info = direction + cluster id): frames
cannot be replayed into another connection, reflected, or moved to another cluster. HELLO binds the receiver.
"""

import hashlib
import hmac
import os
from typing import Any, Protocol

LENGTH_BYTES = 4
NONCE_BYTES = 32
TAG_BYTES = 16
SECRET_BYTES_MIN = 32
FRAME_BYTES_MAX = 8 * 1024 * 1024
HELLO_BYTES_MAX = 512  # limit before the other side has proved who it is


class ChannelError(Exception):
    """The other side is not a member with our key, or does not speak our protocol: close.

    `reason` is one of a few, whatever was sent: it is counted and limits the log. `detail` is theirs.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


class Channel(Protocol):
    """sans-IO. `opened` becomes true when frames can be sealed."""

    opened: bool
    frame_bytes_max: int

    def start(self) -> bytes:
        """Bytes to send first."""
        ...

    def receive_data(self, data: bytes) -> None:
        """Stores bytes; raises ChannelError."""
        ...

    def data_to_send(self) -> bytes:
        """A handshake's answer, after each receive_data(); after ChannelError: why, for the other side."""
        ...

    def may_be(self, member: str) -> bool:
        """Once opened: whether the other side, as far as it proved who it is, can be this member."""
        ...

    def next_frame(self) -> bytes | None:
        """The next whole frame, None for "need more"; raises ChannelError."""
        ...

    def seal(self, frame: bytes) -> bytes:
        """Bytes to send; raises ChannelError."""
        ...


class PlainChannel:
    """No authentication at all."""

    def __init__(self) -> None:
        self.opened = True
        self.frame_bytes_max = HELLO_BYTES_MAX
        self._buffer = bytearray()

    def start(self) -> bytes:
        return b""

    def receive_data(self, data: bytes) -> None:
        self._buffer += data

    def data_to_send(self) -> bytes:
        return b""

    def may_be(self, member: str) -> bool:
        return True  # nothing was proved; or that it has the key, and then it is one of us

    def next_frame(self) -> bytes | None:
        return self._next(0)

    def seal(self, frame: bytes) -> bytes:
        return len(frame).to_bytes(LENGTH_BYTES, "big") + frame

    def _next(self, overhead: int) -> bytes | None:
        if len(self._buffer) < LENGTH_BYTES:
            return None
        length = int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
        if length > self.frame_bytes_max + overhead:
            raise ChannelError("frame too long", f"frame of {length} bytes")
        if len(self._buffer) < LENGTH_BYTES + length:
            return None
        payload = bytes(self._buffer[LENGTH_BYTES : LENGTH_BYTES + length])
        del self._buffer[: LENGTH_BYTES + length]
        return payload


class KeyChannel(PlainChannel):
    """Shared key. `dialed`: this side opened the connection."""

    def __init__(self, secret: bytes, cluster_id: str, *, dialed: bool) -> None:
        super().__init__()
        self.opened = False
        self._secret, self._context, self._dialed = secret, cluster_id.encode(), dialed
        self._nonce = os.urandom(NONCE_BYTES)
        self._received = self._sent = 0
        self._receive_key: Any = None
        self._send_key: Any = None

    def start(self) -> bytes:
        return self._nonce

    def receive_data(self, data: bytes) -> None:
        self._buffer += data
        if not self.opened and len(self._buffer) >= NONCE_BYTES:
            self._derive(bytes(self._buffer[:NONCE_BYTES]))
            del self._buffer[:NONCE_BYTES]

    def next_frame(self) -> bytes | None:
        sealed = self._next(TAG_BYTES) if self.opened else None
        return None if sealed is None else self._open(sealed)

    def seal(self, frame: bytes) -> bytes:
        sealed = self._send_key.encrypt(self._sent.to_bytes(12, "big"), frame, None)
        self._sent += 1
        return super().seal(sealed)

    def _open(self, sealed: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        if len(sealed) < TAG_BYTES:
            raise ChannelError("frame without a tag")
        try:
            frame: bytes = self._receive_key.decrypt(self._received.to_bytes(12, "big"), sealed, None)
        except InvalidTag:
            raise ChannelError("wrong key, or altered bytes") from None
        self._received += 1
        return frame

    def _derive(self, nonce: bytes) -> None:
        # imported here: a member without a secret does not pay for the library's memory
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if hmac.compare_digest(nonce, self._nonce):
            raise ChannelError("our own nonce came back")
        salt = self._nonce + nonce if self._dialed else nonce + self._nonce
        root = hmac.new(salt, self._secret, hashlib.sha256).digest()
        of_dialer = AESGCM(hkdf_expand(root, b"keelmq raft dialer " + self._context))
        of_listener = AESGCM(hkdf_expand(root, b"keelmq raft listener " + self._context))
        self._send_key, self._receive_key = (
            (of_dialer, of_listener) if self._dialed else (of_listener, of_dialer)
        )
        self.opened = True


def hkdf_expand(root: bytes, info: bytes) -> bytes:
    """RFC 5869 expand for one block: 32 bytes."""
    return hmac.new(root, info + b"\x01", hashlib.sha256).digest()
