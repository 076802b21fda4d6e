"""Channel: bytes of one connection <-> frames, authenticated before a frame is delivered. No I/O.

    plain:   frame = length (4, big endian) + payload                  loopback only
    key:     32-byte nonce each way, then frame = length (4) + AES-256-GCM(payload) with a counter as nonce
    TLS:     transport/tls.py

One key per direction, HKDF-SHA256(shared key, salt = both nonces, info = direction + cluster id): frames
cannot be replayed to another connection, reflected, or moved to another cluster. HELLO names the receiver.
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
HELLO_BYTES_MAX = 512  # maximum frame until the HELLO of the peer is accepted


class ChannelError(Exception):
    """The peer has not proved that it is a member, or violates the protocol: the connection is closed.

    `reason` is one of a few fixed texts, for metrics and rate limits. `detail` may contain text of the peer.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


class Channel(Protocol):
    """Without I/O. `is_open` becomes true when the handshake is complete and frames can be encoded."""

    is_open: bool
    frame_bytes_max: int

    def start(self) -> bytes:
        """Returns the first bytes to send."""
        ...

    def receive_data(self, data: bytes) -> None:
        """Stores received bytes. Raises ChannelError."""
        ...

    def data_to_send(self) -> bytes:
        """Returns handshake bytes; call it after each receive_data(). After ChannelError: a TLS alert."""
        ...

    def may_be(self, member: str) -> bool:
        """Returns whether the authenticated peer can be this member. Call it when `is_open`."""
        ...

    def next_frame(self) -> bytes | None:
        """Returns the next complete frame; None: more data is needed. Raises ChannelError."""
        ...

    def encode_frame(self, frame: bytes) -> bytes:
        """Returns the bytes to send. Raises ChannelError."""
        ...


class PlainChannel:
    """No authentication at all."""

    def __init__(self) -> None:
        self.is_open = True
        self.frame_bytes_max = HELLO_BYTES_MAX
        self._buffer = bytearray()

    def start(self) -> bytes:
        return b""

    def receive_data(self, data: bytes) -> None:
        self._buffer += data

    def data_to_send(self) -> bytes:
        return b""

    def may_be(self, member: str) -> bool:
        return True  # no authentication, or by the shared key, which every member has

    def next_frame(self) -> bytes | None:
        return self._next(0)

    def encode_frame(self, frame: bytes) -> bytes:
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
    """Authentication and encryption by a shared key. `dialed`: this side opened the connection."""

    def __init__(self, secret: bytes, cluster_id: str, *, dialed: bool) -> None:
        super().__init__()
        self.is_open = False
        self._secret, self._context, self._dialed = secret, cluster_id.encode(), dialed
        self._nonce = os.urandom(NONCE_BYTES)
        self._received = self._sent = 0
        self._receive_key: Any = None
        self._send_key: Any = None

    def start(self) -> bytes:
        return self._nonce

    def receive_data(self, data: bytes) -> None:
        self._buffer += data
        if not self.is_open and len(self._buffer) >= NONCE_BYTES:
            self._derive(bytes(self._buffer[:NONCE_BYTES]))
            del self._buffer[:NONCE_BYTES]

    def next_frame(self) -> bytes | None:
        encrypted = self._next(TAG_BYTES) if self.is_open else None
        return None if encrypted is None else self._decrypt(encrypted)

    def encode_frame(self, frame: bytes) -> bytes:
        encrypted = self._send_key.encrypt(self._sent.to_bytes(12, "big"), frame, None)
        self._sent += 1
        return super().encode_frame(encrypted)

    def _decrypt(self, encrypted: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        if len(encrypted) < TAG_BYTES:
            raise ChannelError("frame without a tag")
        try:
            frame: bytes = self._receive_key.decrypt(self._received.to_bytes(12, "big"), encrypted, None)
        except InvalidTag:
            raise ChannelError("wrong key, or altered bytes") from None
        self._received += 1
        return frame

    def _derive(self, nonce: bytes) -> None:
        # imported here: a member without a secret does not need the library's memory
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
        self.is_open = True


def hkdf_expand(root: bytes, info: bytes) -> bytes:
    """Returns one block of HKDF-Expand (RFC 5869): 32 bytes."""
    return hmac.new(root, info + b"\x01", hashlib.sha256).digest()
