"""Proof that a request of one of our own programs or tools is new and unaltered.

    0KeelMQProof = "<code>:<ms>:<nonce>:<digest>"      1001:1767225600000:32 hex digits:64 hex digits

An ordinary signature covers neither the code nor where values begin and end, so a captured one can be sent
again, as another code, or with its values cut differently. The proof is an ext field, so the signature
covers it. Its name sorts before all others and its length is fixed but for the code, so it is the beginning
of the signed bytes and cannot be cut differently either. Its digest covers the recipient, every key and
value, and the body.

A nonce is remembered for as long as its time is within the window. The memory is bounded: a server that has
no room refuses, since forgetting a nonce would let it be used again."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final

from keelmq.security.core.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, ExtFields

PROOF: Final = "0KeelMQProof"
WINDOW_MS: Final = 30_000
NONCES_MAX: Final = 200_000
NONCE_BYTES: Final = 16
PERSONAL: Final = frozenset({PROOF, ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})

_FORM: Final = re.compile(r"(\d{1,10}):(\d{13}):([0-9a-f]{32}):([0-9a-f]{64})", re.ASCII)


def digest_of(ext_fields: ExtFields, body: bytes, recipient: str) -> str:
    """Covers keys and values with their lengths, so that no two requests have the same bytes."""
    digest = hashlib.sha256()
    names = sorted(name for name in ext_fields if name not in (PROOF, SIGNATURE, ACCESS_KEY))
    for text in (recipient, *(each for name in names for each in (name, ext_fields[name] or ""))):
        raw = text.encode("utf-8", "replace")
        digest.update(len(raw).to_bytes(4, "big") + raw)
    digest.update(len(names).to_bytes(4, "big") + body)
    return digest.hexdigest()


def with_proof(
    code: int, ext_fields: Mapping[str, str], body: bytes, *, now_ms: int, nonce: bytes, recipient: str = ""
) -> dict[str, str]:
    """Returns the ext fields with the proof, to be signed then. `nonce`: 16 random bytes, never used twice.

    recipient: whom it is for, in the words that the recipient checks it with; "": everybody."""
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes")
    digest = digest_of(ext_fields, body, recipient)
    return {**ext_fields, PROOF: f"{code}:{now_ms:013d}:{nonce.hex()}:{digest}"}


def unsigned(ext_fields: Mapping[str, str]) -> dict[str, str]:
    """Returns the ext fields without what proves who has sent them, for a request that goes on to somebody
    else, who could send it again."""
    return {name: value for name, value in ext_fields.items() if name not in PERSONAL}


class MemberProofs:
    """Checks proofs. Only requests whose signature is right may come here, or strangers could fill the
    memory."""

    def __init__(
        self,
        *,
        window_ms: int = WINDOW_MS,
        nonces_max: int = NONCES_MAX,
        recipients: frozenset[str] = frozenset({""}),
        not_before_ms: int = 0,
    ) -> None:
        """not_before_ms: when this program began: it does not know which nonces were used before."""
        self._window_ms = window_ms
        self._nonces_max = nonces_max
        self._recipients = sorted(recipients)
        self._oldest_ms = not_before_ms
        self._seen: dict[int, set[str]] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many nonces are remembered."""
        return self._count

    def check(self, code: int, ext_fields: ExtFields, body: bytes, now_ms: int) -> str | None:
        """Returns why the proof does not hold; None: it does, and will not again."""
        proof = ext_fields.get(PROOF)
        if not proof:
            return "the proof of a member is missing"
        form = _FORM.fullmatch(proof)
        if form is None or min(ext_fields) != PROOF:
            return "the proof of a member is malformed"
        proven_code, sent_text, nonce, digest = form.groups()
        if proven_code != str(code):
            return f"the proof of a member is for code {proven_code}"
        sent_ms = int(sent_text)
        if abs(now_ms - sent_ms) > self._window_ms:
            ago_ms = now_ms - sent_ms
            return f"the request was sent {ago_ms} ms ago by this clock; {self._window_ms} ms is the limit"
        if not any(
            hmac.compare_digest(digest_of(ext_fields, body, recipient), digest)
            for recipient in self._recipients
        ):
            return "the proof of a member is for other fields, another body or another recipient"
        return self._use(nonce, sent_ms, now_ms)

    def _use(self, nonce: str, sent_ms: int, now_ms: int) -> str | None:
        # The limit never goes back, even if the clock does: older nonces are forgotten.
        self._oldest_ms = max(self._oldest_ms, now_ms - self._window_ms)
        if sent_ms < self._oldest_ms:
            return "the request was sent before this program began to remember requests"
        self._forget()
        nonces = self._seen.get(sent_ms // self._window_ms, set())
        if nonce in nonces:
            return "the request was sent before"
        if self._count >= self._nonces_max:
            return f"{self._nonces_max} requests of members within {2 * self._window_ms} ms: no room for more"
        self._seen.setdefault(sent_ms // self._window_ms, set()).add(nonce)
        self._count += 1
        return None

    def _forget(self) -> None:
        for slot in [each for each in self._seen if each < self._oldest_ms // self._window_ms]:
            self._count -= len(self._seen.pop(slot))
