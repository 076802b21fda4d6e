"""The hello before the HA handshake: slave and master prove to each other that they know the secret of their
cluster's members. No socket, no clock, no random numbers.

    slave                                                master
      HELLO      nonce, names, proof        ----------->
                 <----------------------------  nonce, proof      CHALLENGE
      PROOF      proof                      ----------->          the HA handshake follows

A proof is HMAC-SHA256 with the secret over: its purpose, both nonces, cluster, brokerName, broker id,
accessKey, and the TLS connection (RFC 5929 tls-unique, so a man in the middle cannot terminate TLS and relay
proofs). HELLO has a proof, too: a peer without the secret gets no answer, so it cannot collect material to
guess the secret. A replayed HELLO gets a CHALLENGE, which cannot be answered without the secret. All integers
are big-endian. No length is used before it is checked, and a packet has at most PACKET_BYTES_MAX bytes. The
first byte distinguishes a hello from a RocketMQ handshake (0x00) and from TLS (0x16).
"""

import hmac
import struct
from dataclasses import dataclass, field
from typing import Final

import msgspec

MAGIC: Final = b"KMQH"
TLS_FIRST_BYTE: Final = 0x16
VERSION: Final = 1
HEAD: Final = struct.Struct(">4sBBH")
"""magic(4) | version(1) | kind(1) | bodySize(2)."""

HELLO, CHALLENGE, PROOF = 1, 2, 3
"""Kinds. Bodies: nonce(32) | proof(32) | broker id(8) | 3 texts of size(2) + UTF-8: cluster, brokerName,
accessKey;   nonce(32) | proof(32);   proof(32)."""

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
BROKER_ID: Final = struct.Struct(">q")
TEXT_BYTES: Final = struct.Struct(">H")
HELLO_BYTES_MIN: Final = NONCE_BYTES + PROOF_BYTES + BROKER_ID.size + 3 * TEXT_BYTES.size
BODY_BYTES: Final = {
    HELLO: (HELLO_BYTES_MIN, 2_048),
    CHALLENGE: (NONCE_BYTES + PROOF_BYTES,) * 2,
    PROOF: (PROOF_BYTES,) * 2,
}
"""Kind -> the fewest and the most bytes of its body."""
PACKET_BYTES_MAX: Final = HEAD.size + 2_048

DEADLINE_MS: Final = 5_000
"""Limit from the connection to the last byte of the hello, also for a slow peer."""

NO_CREDENTIALS: Final = "no_credentials"
NOT_CONFIGURED: Final = "not_configured"
MALFORMED: Final = "malformed"
OTHER_GROUP: Final = "other_group"
WRONG_CREDENTIALS: Final = "wrong_credentials"
TIMED_OUT: Final = "timed_out"


class HelloRefused(Exception):
    """The peer has not proved its membership: the connection is closed. `kind` is one of the few words above,
    for metrics; the text may contain names that the peer sent."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Group:
    """The data that the members of one broker group share. The secret is not in the repr."""

    cluster: str
    broker_name: str
    access_key: str
    secret: bytes = field(repr=False)

    def proof(
        self, of: bytes, *, broker_id: int, slave_nonce: bytes, master_nonce: bytes, binding: bytes
    ) -> bytes:
        """Returns the proof of one of the three packets. Every field has its length in front of it."""
        texts = [each.encode() for each in (self.cluster, self.broker_name, self.access_key)]
        fields = (of, slave_nonce, master_nonce, BROKER_ID.pack(broker_id), *texts, binding)
        message = b"KeelMQ HA 1" + b"".join(len(each).to_bytes(4, "big") + each for each in fields)
        return hmac.digest(self.secret, message, "sha256")


class Hello(msgspec.Struct, frozen=True):
    """The first packet of a slave."""

    nonce: bytes
    proof: bytes
    broker_id: int
    cluster: str
    broker_name: str
    access_key: str

    def encode(self) -> bytes:
        """Returns the packet. Raises HelloRefused if the names are too long for it."""
        body = self.nonce + self.proof + BROKER_ID.pack(self.broker_id)
        for text in (self.cluster, self.broker_name, self.access_key):
            raw = text.encode()
            body += TEXT_BYTES.pack(min(len(raw), 0xFFFF)) + raw
        if len(body) > BODY_BYTES[HELLO][1]:
            raise HelloRefused(MALFORMED, f"cluster, brokerName and accessKey have {len(body)} bytes")
        return packet(HELLO, body)


class Admitted(msgspec.Struct, frozen=True):
    """The slave may replicate. broker_id: the id that it has proved; None: it was admitted without a hello.
    rest: the bytes behind the hello."""

    broker_id: int | None
    rest: bytes


def packet(kind: int, body: bytes) -> bytes:
    """Returns head and body."""
    return HEAD.pack(MAGIC, VERSION, kind, len(body)) + body


def parse_hello(body: bytes) -> Hello:
    """Parses the body of a HELLO. Raises HelloRefused."""
    nonce, proof = body[:NONCE_BYTES], body[NONCE_BYTES : NONCE_BYTES + PROOF_BYTES]
    at = NONCE_BYTES + PROOF_BYTES
    (broker_id,) = BROKER_ID.unpack_from(body, at)
    at += BROKER_ID.size
    texts = []
    for _ in range(3):
        if at + TEXT_BYTES.size > len(body):
            raise HelloRefused(MALFORMED, "a hello that ends within its names")
        (size,) = TEXT_BYTES.unpack_from(body, at)
        at += TEXT_BYTES.size
        if at + size > len(body):
            raise HelloRefused(MALFORMED, "a hello that ends within its names")
        texts.append(body[at : at + size])
        at += size
    if at != len(body) or broker_id <= 0:
        raise HelloRefused(MALFORMED, f"a hello of broker {broker_id} with {len(body) - at} bytes too many")
    try:
        cluster, broker_name, access_key = (text.decode() for text in texts)
    except UnicodeDecodeError:
        raise HelloRefused(MALFORMED, "a hello whose names are not UTF-8") from None
    return Hello(nonce, proof, broker_id, cluster, broker_name, access_key)


class HelloDecoder:
    """receive_data() stores bytes; next_body() returns the body of the packet that is due, or None."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def has_data(self) -> bool:
        return bool(self._buffer)

    def receive_data(self, data: bytes | memoryview) -> None:
        self._buffer += data

    def next_body(self, due: int) -> bytes | None:
        """Returns the body of a packet of kind `due`; None: it is incomplete. Raises HelloRefused as soon as
        the bytes cannot be such a packet."""
        buffer = self._buffer
        if not MAGIC.startswith(buffer[: len(MAGIC)]):
            raise HelloRefused(MALFORMED, "bytes that are no hello")
        if len(buffer) < HEAD.size:
            return None
        _, version, kind, body_bytes = HEAD.unpack_from(buffer)
        fewest, most = BODY_BYTES[due]
        if version != VERSION:
            raise HelloRefused(MALFORMED, f"a hello of version {version}; this is version {VERSION}")
        if kind != due or not fewest <= body_bytes <= most:
            raise HelloRefused(MALFORMED, f"a hello packet of kind {kind} with {body_bytes} bytes")
        end = HEAD.size + body_bytes
        if len(buffer) < end:
            return None
        body = bytes(buffer[HEAD.size : end])
        del buffer[:end]
        return body

    def rest(self) -> bytes:
        """Removes and returns the bytes that were not parsed."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


class MasterHello:
    """The master's side of one connection, from its first byte until the slave is admitted.

    group: None: this master has no credentials. plain_allowed: this peer may begin without a hello.
    binding: of the TLS connection; empty without TLS. nonce: NONCE_BYTES that are used only here.
    """

    def __init__(
        self, group: Group | None, *, plain_allowed: bool, nonce: bytes, binding: bytes, now_ms: int
    ) -> None:
        self._group, self._plain_allowed = group, plain_allowed
        self._nonce, self._binding = nonce, binding
        self._began_ms = now_ms
        self._decoder = HelloDecoder()
        self._hello: Hello | None = None

    def receive_data(self, data: bytes) -> bytes | Admitted | None:
        """Returns bytes for the slave, or that it is admitted; None: more data is needed. Raises
        HelloRefused."""
        if self._hello is None and not self._decoder.has_data and data and data[0] != MAGIC[0]:
            if data[0] == TLS_FIRST_BYTE:
                raise HelloRefused(NOT_CONFIGURED, "it speaks TLS, and haTlsMode is disabled here")
            if not self._plain_allowed:
                raise HelloRefused(NO_CREDENTIALS, "it does not prove its membership (haPlainSlaves)")
            return Admitted(None, data)
        if self._group is None:
            raise HelloRefused(
                NOT_CONFIGURED, "it proves its membership, and this broker has no member credentials"
            )
        self._decoder.receive_data(data)
        if self._hello is None:
            return self._take_hello(self._group)
        return self._take_proof(self._group, self._hello)

    def _take_hello(self, group: Group) -> bytes | None:
        body = self._decoder.next_body(HELLO)
        if body is None:
            return None
        hello = parse_hello(body)
        if (hello.cluster, hello.broker_name) != (group.cluster, group.broker_name):
            raise HelloRefused(
                OTHER_GROUP, f"it is of the group {hello.broker_name[:100]!r} in {hello.cluster[:100]!r}"
            )
        proof = self._proof(group, b"hello", hello, b"")
        if not hmac.compare_digest(hello.proof, proof) or hello.access_key != group.access_key:
            raise HelloRefused(
                WRONG_CREDENTIALS, f"its credentials are wrong (accessKey {hello.access_key[:100]!r})"
            )
        if self._decoder.has_data:
            raise HelloRefused(
                WRONG_CREDENTIALS, "it answers before it is asked, so it repeats another hello"
            )
        self._hello = hello
        return packet(CHALLENGE, self._nonce + self._proof(group, b"master", hello, self._nonce))

    def _take_proof(self, group: Group, hello: Hello) -> Admitted | None:
        body = self._decoder.next_body(PROOF)
        if body is None:
            return None
        if not hmac.compare_digest(body, self._proof(group, b"slave", hello, self._nonce)):
            raise HelloRefused(WRONG_CREDENTIALS, "it repeats the hello of another connection")
        return Admitted(hello.broker_id, self._decoder.rest())

    def _proof(self, group: Group, of: bytes, hello: Hello, master_nonce: bytes) -> bytes:
        return group.proof(
            of,
            broker_id=hello.broker_id,
            slave_nonce=hello.nonce,
            master_nonce=master_nonce,
            binding=self._binding,
        )

    def check(self, now_ms: int) -> None:
        """Raises HelloRefused when the deadline is over."""
        if now_ms - self._began_ms > DEADLINE_MS:
            raise HelloRefused(TIMED_OUT, f"no proof of its membership in {DEADLINE_MS} ms")


class SlaveHello:
    """The slave's side of one connection. `nonce` and `binding` as for MasterHello."""

    def __init__(self, group: Group, broker_id: int, *, nonce: bytes, binding: bytes, now_ms: int) -> None:
        self._group, self._broker_id = group, broker_id
        self._nonce, self._binding = nonce, binding
        self._began_ms = now_ms
        self._decoder = HelloDecoder()

    def start(self) -> bytes:
        """Returns the HELLO. Raises HelloRefused if the names are too long for it."""
        group = self._group
        proof = self._proof(b"hello", b"")
        names = (group.cluster, group.broker_name, group.access_key)
        return Hello(self._nonce, proof, self._broker_id, *names).encode()

    def receive_data(self, data: bytes | memoryview) -> bytes | None:
        """Returns our PROOF when the master has proved its membership; None: more data is needed. Raises
        HelloRefused."""
        self._decoder.receive_data(data)
        body = self._decoder.next_body(CHALLENGE)
        if body is None:
            return None
        master_nonce, proof = body[:NONCE_BYTES], body[NONCE_BYTES:]
        if not hmac.compare_digest(proof, self._proof(b"master", master_nonce)):
            raise HelloRefused(WRONG_CREDENTIALS, "its proof is wrong")
        if self._decoder.has_data:
            raise HelloRefused(MALFORMED, "it sends before it has our proof")
        return packet(PROOF, self._proof(b"slave", master_nonce))

    def _proof(self, of: bytes, master_nonce: bytes) -> bytes:
        return self._group.proof(
            of,
            broker_id=self._broker_id,
            slave_nonce=self._nonce,
            master_nonce=master_nonce,
            binding=self._binding,
        )

    def check(self, now_ms: int) -> None:
        """Raises HelloRefused when the deadline is over."""
        if now_ms - self._began_ms > DEADLINE_MS:
            raise HelloRefused(TIMED_OUT, f"no proof in {DEADLINE_MS} ms")
