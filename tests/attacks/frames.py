"""Frames as an attacker makes them: signed by anybody, with any field, replayed, cut or damaged; answers.

Signatures and proofs are computed here by the documented rules, and not by keelmq.security, so that a mistake
in there is not made twice."""

import base64
import hashlib
import hmac
import json
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from keelmq.remoting.codes import VERSION

ONEWAY = 2
PROOF = "0KeelMQProof"
CLOSED = -1
"""The code of an Answer without one: the connection was closed."""
SILENT = -2
"""The same: nothing came."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose name a request has, and the secret that it is signed with."""

    name: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    remark: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def is_refusal(self) -> bool:
        """Whether the request was refused because of who sent it, or the connection was closed."""
        return self.code in (16, CLOSED)

    def __str__(self) -> str:
        if self.code in (CLOSED, SILENT):
            return self.remark
        return f"{self.code}: {self.remark}" if self.remark else str(self.code)


@dataclass(frozen=True, slots=True)
class Request:
    """A request before it becomes bytes. Change it with dataclasses.replace()."""

    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    version: int = VERSION
    flag: int = 0
    opaque: int = 1

    def frame(self) -> bytes:
        return json_frame(self.header(), self.body)

    def header(self) -> dict[str, object]:
        """Returns the members of the JSON header."""
        return {
            "code": self.code,
            "extFields": dict(self.fields),
            "flag": self.flag,
            "language": "PYTHON",
            "opaque": self.opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": self.version,
        }

    def signed(self, by: Identity, *, proof: bool = False, at_ms: int | None = None) -> "Request":
        """Returns the request with AccessKey and Signature; proof: with the proof that it is new."""
        fields = {name: value for name, value in self.fields.items() if name not in ("Signature", PROOF)}
        if proof:
            fields[PROOF] = proof_of(self.code, fields, self.body, at_ms=at_ms)
        fields["AccessKey"] = by.name
        fields["Signature"] = signature_of(by.secret, fields, self.body)
        return Request(self.code, fields, self.body, self.version, self.flag, self.opaque)


def signature_of(secret: str, fields: Mapping[str, str], body: bytes) -> str:
    """Returns RocketMQ's Signature: HMAC-SHA1 over the values, sorted by name, and the body."""
    values = "".join(fields[name] for name in sorted(fields) if name != "Signature")
    digest = hmac.digest(secret.encode(), values.encode() + body, "sha1")
    return base64.b64encode(digest).decode()


def proof_of(
    code: int,
    fields: Mapping[str, str],
    body: bytes,
    *,
    at_ms: int | None = None,
    uptime_ms: int = 0,
    sender: str = "",
    number: int = 0,
    recipient: str = "",
) -> str:
    """Returns the proof of a member's request: code, times of both clocks, sender and number, and a digest
    over what the signature leaves out. sender "": one that nobody has seen."""
    digest = hashlib.sha256()
    names = sorted(name for name in fields if name not in ("AccessKey", "Signature", PROOF))
    for text in (recipient, *(each for name in names for each in (name, fields[name]))):
        digest.update(struct.pack(">I", len(text.encode())) + text.encode())
    digest.update(struct.pack(">I", len(names)) + body)
    sent_ms = int(time.time() * 1_000) if at_ms is None else at_ms
    who = sender or os.urandom(8).hex()
    return f"{code}:{sent_ms:013d}:{uptime_ms:015d}:{who}{number:016x}:{digest.hexdigest()}"


def json_frame(header: Mapping[str, object] | bytes, body: bytes = b"") -> bytes:
    """Returns a frame with a JSON header; `header` as bytes: as it is."""
    raw = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(raw) + len(body), len(raw)) + raw + body


def properties(**pairs: str) -> str:
    """Returns message properties as one text."""
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def answer_of(payload: bytes) -> Answer:
    """Returns the answer in a frame without its length. Our servers write JSON headers."""
    (word,) = struct.unpack_from(">I", payload)
    end = 4 + (word & 0xFFFFFF)
    header = json.loads(payload[4:end])
    return Answer(header["code"], header.get("remark") or "", header.get("extFields") or {}, payload[end:])
