"""Proof that a request of one of our own programs or tools is new and unaltered.

    0KeelMQProof = "<code>:<wall clock, ms>:<monotonic clock, ms>:<sender><number>:<digest>"

    1001:1767225600000:000000007200000:16 hex digits and 16 hex digits:64 hex digits

An ordinary signature covers neither the code nor where values begin and end, so a captured one can be sent
again, as another code, or with its values cut differently. The proof is an ext field, so the signature
covers it. Its name sorts before all others and its length is fixed but for the code, so it is the beginning
of the signed bytes and cannot be cut differently either. Its digest covers the recipient, every key and
value, and the body.

A sender has a random name and numbers its requests. The server remembers which of the latest numbers it has
seen, as IPsec does (RFC 4303, 3.4.3), for as long as a request of the sender could be within the window. So
the memory does not grow with the number of requests. A server that has no room for another sender refuses,
since forgetting one would let its requests be used again.

The first request of a sender is new by the wall clocks of both machines. The later ones are new by their
monotonic clocks, compared with the first one: a wall clock that jumps does not separate members that know
each other. One that arrives after the first and has a lower number must be later than the start of the
server by the wall clocks, too: another run of the server may have used it.

Users may send proofs as well, as our tools do. They have separate senders, few each, and are new by the wall
clocks always: no user can take the room or the numbers of members, or keep its own for ever."""

import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from keelmq.security.core.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, ExtFields

PROOF: Final = "0KeelMQProof"
WINDOW_MS: Final = 30_000
SENDERS_MAX: Final = 20_000
"""Limit of members; and as many of all users."""
USER_SENDERS_MAX: Final = 5_000
"""Limit of one user: each run of a tool is a sender, for a minute at most."""
SENDER_BYTES: Final = 8
NUMBERS: Final = 1_024
"""Requests of one sender may overtake each other by this many: it may have several connections."""
SWEEP_MS: Final = 1_000
PERSONAL: Final = frozenset({PROOF, ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})

DRIFT: Final = 1_000
"""Monotonic clocks may drift apart by one ms in this many."""

_FORM: Final = re.compile(
    r"(\d{1,10}):(\d{13}):(\d{15}):([0-9a-f]{16})([0-9a-f]{16}):([0-9a-f]{64})", re.ASCII
)
_MASK: Final = (1 << NUMBERS) - 1
OTHER_RECIPIENT: Final = "the proof of a member is for other fields, another body or another recipient"
CLOCKS: Final = "synchronize the clocks of both machines"
BEFORE: Final = f"the request was sent before this program began; if this goes on, {CLOCKS}"


def digest_of(ext_fields: ExtFields, body: bytes, recipient: str) -> str:
    """Covers keys and values with their lengths, so that no two requests have the same bytes."""
    names = sorted(name for name in ext_fields if name not in (PROOF, SIGNATURE, ACCESS_KEY))
    parts: list[bytes] = []
    for text in (recipient, *(each for name in names for each in (name, ext_fields[name] or ""))):
        raw = text.encode("utf-8", "replace")
        parts += (len(raw).to_bytes(4, "big"), raw)
    parts += (len(names).to_bytes(4, "big"), body)
    return hashlib.sha256(b"".join(parts)).hexdigest()


def with_proof(
    code: int,
    ext_fields: Mapping[str, str],
    body: bytes,
    *,
    now_ms: int,
    uptime_ms: int,
    sender: bytes,
    number: int,
    recipient: str = "",
) -> dict[str, str]:
    """Returns the ext fields with the proof, to be signed then. uptime_ms: a monotonic clock.

    sender: random bytes, chosen once for each signer. number: one more with each request, from 0 on.

    recipient: the server, by the name that it compares; "": any server."""
    if len(sender) != SENDER_BYTES:
        raise ValueError(f"the name of a sender has {SENDER_BYTES} bytes")
    digest = digest_of(ext_fields, body, recipient)
    return {
        **ext_fields,
        PROOF: f"{code}:{now_ms:013d}:{uptime_ms:015d}:{sender.hex()}{number:016x}:{digest}",
    }


def unsigned(ext_fields: Mapping[str, str]) -> dict[str, str]:
    """Returns the ext fields without the proof of their sender, for a request that is forwarded: its
    recipient could send it again."""
    return {name: value for name, value in ext_fields.items() if name not in PERSONAL}


class _Sender:
    """The numbers of one sender that were used: bit n of `seen` is for `highest` - n. first: the number that
    arrived first; only time tells whether lower ones were used before. latest_ms: of its requests, by its
    own wall clock. heard_ms: when the last one arrived, by the server's monotonic clock. offset_ms: that
    minus the sender's monotonic clock, for the request with the shortest transmission time."""

    __slots__ = ("first", "heard_ms", "highest", "latest_ms", "offset_ms", "seen")

    def __init__(self, number: int, uptime_ms: int, sent_uptime_ms: int) -> None:
        self.first = self.highest = number
        self.seen = self.latest_ms = 0
        self.heard_ms, self.offset_ms = uptime_ms, uptime_ms - sent_uptime_ms

    def late_ms(self, uptime_ms: int, sent_uptime_ms: int) -> int:
        """Returns how much longer the request was on its way than the quickest one."""
        return uptime_ms - sent_uptime_ms - self._offset_at(uptime_ms)

    def heard(self, uptime_ms: int, sent_uptime_ms: int) -> None:
        """A request was accepted."""
        self.offset_ms = min(self._offset_at(uptime_ms), uptime_ms - sent_uptime_ms)
        self.heard_ms = uptime_ms

    def _offset_at(self, uptime_ms: int) -> int:
        return self.offset_ms + (uptime_ms - self.heard_ms) // DRIFT

    def use(self, number: int) -> str | None:
        """Returns why the number cannot be used; None: it can, and not again."""
        ahead = number - self.highest
        if ahead > 0:
            self.seen = (self.seen << ahead) & _MASK if ahead < NUMBERS else 0
            self.highest, ahead = number, 0
        elif ahead <= -NUMBERS:
            return f"the request arrived after {NUMBERS} later ones"
        bit = 1 << -ahead
        if self.seen & bit:
            return "the request was sent before"
        self.seen |= bit
        return None


class MemberProofs:
    """Checks proofs. Only requests whose signature is right may come here, or anonymous clients could fill
    the memory."""

    def __init__(
        self,
        *,
        window_ms: int = WINDOW_MS,
        senders_max: int = SENDERS_MAX,
        uptime: Callable[[], int] = int,
        not_before_ms: int = 0,
    ) -> None:
        """uptime: a monotonic clock, ms. not_before_ms: when this program began: it does not know what was
        used before."""
        self.window_ms, self._senders_max = window_ms, senders_max
        self._uptime = uptime
        self._not_before_ms = not_before_ms
        self._forgotten_ms = self._swept_ms = 0
        self._senders: dict[tuple[str, str], _Sender] = {}
        """Senders by user and name; user "": of members."""
        self._count_of: Counter[str] = Counter()  # senders by user
        self.skew_ms = 0
        """By how much the wall clock of the last request's sender is behind this one's. Also of the later
        requests of a member, which are not refused for it: they would be after a restart of either."""

    @property
    def is_skewed(self) -> bool:
        """Whether the clock of the last sender is off by more than half of what is allowed."""
        return abs(self.skew_ms) > self.window_ms / 2

    def __len__(self) -> int:
        """How many senders are remembered."""
        return len(self._senders)

    def check(
        self,
        code: int,
        ext_fields: ExtFields,
        body: bytes,
        now_ms: int,
        own_address: str = "",
        *,
        user: str = "",
    ) -> str | None:
        """Returns why the proof does not hold; None: it does, and will not again. own_address: the server's,
        of the connection on which the request came; "": a request that names a recipient is for others.
        user: who has signed; "": a member."""
        proof = ext_fields.get(PROOF)
        if not proof:
            return "the proof of a member is missing"
        form = _FORM.fullmatch(proof)
        if form is None or min(ext_fields) != PROOF:
            return "the proof of a member is malformed"
        proven_code, sent_text, uptime_text, sender, number, digest = form.groups()
        if proven_code != str(code):
            return f"the proof of a member is for code {proven_code}"
        if not any(
            hmac.compare_digest(digest_of(ext_fields, body, recipient), digest)
            for recipient in dict.fromkeys((own_address, ""))  # most name it
        ):
            return OTHER_RECIPIENT
        return self._use((user, sender), int(number, 16), int(sent_text), int(uptime_text), now_ms)

    def _use(
        self, key: tuple[str, str], number: int, sent_ms: int, sent_uptime_ms: int, now_ms: int
    ) -> str | None:
        (user, _), found, uptime_ms = key, self._senders.get(key), self._uptime()
        self.skew_ms = now_ms - sent_ms
        if (found is None or user) and (why := self._refusal_of_time()) is not None:
            return why
        if found is None:
            if (why := self._refusal_of_first(user, sent_ms, now_ms)) is not None:
                return why
            found = self._senders[key] = _Sender(number, uptime_ms, sent_uptime_ms)
            self._count_of[user] += 1
        late_ms = found.late_ms(uptime_ms, sent_uptime_ms)
        if abs(late_ms) > self.window_ms:
            return (
                f"the request was {late_ms / 1000:.1f} s longer on its way than others, "
                f"and {self.window_ms / 1000:g} s is the limit"
            )
        if number < found.first and self._is_before(sent_ms):
            return BEFORE
        if (why := found.use(number)) is None:
            found.heard(uptime_ms, sent_uptime_ms)
            found.latest_ms = max(found.latest_ms, sent_ms)
        return why

    def _refusal_of_time(self) -> str | None:
        """Returns why a request is not new by the wall clocks."""
        if abs(self.skew_ms) > self.window_ms:
            when = "ago" if self.skew_ms > 0 else "in the future"
            return (
                f"the request was sent {abs(self.skew_ms) / 1000:.1f} s {when} by the clock of this server, "
                f"and {self.window_ms / 1000:g} s is the limit: {CLOCKS}"
            )
        return None

    def _refusal_of_first(self, user: str, sent_ms: int, now_ms: int) -> str | None:
        """Returns why the first request of a sender is not new, or why there is no room for the sender."""
        # A clock that was far ahead when this program began must not refuse all requests until then. One
        # that is set back a little lets in nothing that was sent before: right clocks are beyond it already.
        if now_ms < self._not_before_ms - self.window_ms:
            self._not_before_ms = now_ms
        if self._is_before(sent_ms):
            return BEFORE
        self._sweep(now_ms)
        of_members = self._count_of[""]
        if self._count_of[user] >= (USER_SENDERS_MAX if user else self._senders_max):
            who = f"runs of tools of User:{user}" if user else "members"
            return f"{self._count_of[user]} {who} within {self.window_ms} ms: no room for more"
        if user and len(self._senders) - of_members >= self._senders_max:
            return f"{self._senders_max} runs of tools within {self.window_ms} ms: no room for more"
        return None

    def _is_before(self, sent_ms: int) -> bool:
        """Whether a request with this time stamp may have been used without being remembered here."""
        return sent_ms < self._not_before_ms or sent_ms <= self._forgotten_ms

    def _sweep(self, now_ms: int) -> None:
        """Forgets senders that are silent and whose requests are too old by now. Remembers the time of the
        latest of them, in case that the clock goes back."""
        if abs(now_ms - self._swept_ms) < SWEEP_MS:
            return
        self._swept_ms, uptime_ms = now_ms, self._uptime()
        for key, found in list(self._senders.items()):
            is_silent = found.heard_ms < uptime_ms - self.window_ms
            if is_silent and found.latest_ms < now_ms - self.window_ms:
                self._forgotten_ms = max(self._forgotten_ms, found.latest_ms)
                del self._senders[key]
                self._count_of[key[0]] -= 1
                if not self._count_of[key[0]]:
                    del self._count_of[key[0]]
