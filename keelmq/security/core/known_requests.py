"""What was granted to requests of one connection: of further ones of the same kind only the signature is
checked.

Most requests of a connection differ in little: a producer sends the same ext fields in the same order, with
the same user and topic. The decision about (user, code, resources) is taken once, and then holds until any
user or ACL changes. The signer and the signed bytes are still checked with every request.

Such a request is decoded to a struct of exactly its field names, in the order in which their values are
signed. A request with other fields, or with a value that is not a text, is not known."""

import re
from collections.abc import Callable
from hmac import compare_digest
from operator import itemgetter
from typing import Any, Final, TypeAlias

import msgspec

from keelmq.remoting.operation import Role
from keelmq.security.core.access import AccessControl, AccessRequest, Granted
from keelmq.security.core.member_proof import PROOF
from keelmq.security.core.rules import RULES, UNKNOWN
from keelmq.security.core.signature import (
    ACCESS_KEY,
    SIGNATURE,
    UNIQUE_KEY_QUERY,
    ExtFields,
    SecretKey,
    is_ordinary,
    signed_order,
)

GRANTED_MAX: Final = 1_000
"""Users and resources that one connection may have for one code; more begin anew."""
SUBJECT_CHARS_MAX: Final = 4_096
"""Requests with longer names are checked as a whole: a thousand of a frame's size would fill the memory."""
DECODERS_MAX: Final = 256
"""Lists of field names; more begin anew."""
TEXT_BYTES_MAX: Final = 255
"""A text of SentForm; with a longer name there is no form."""

SentForm: TypeAlias = tuple[bytes, int, tuple[int, ...], tuple[int, ...], int]
"""How a client sends the ext fields of a request: JSON text before each value and behind the last one, each
after a byte with its length; how many values; the runs of values in the order in which they are signed, as
the place of the first one and the place behind the last one, in turn; the places of the values that were
decided about; the place of the signature. Places count from 0 in the order of the names."""

_NAME: Final = re.compile(r'[^\x00-\x1f"\\\ud800-\udfff]+')
_values_of: Final = msgspec.structs.astuple
_decoders: dict[tuple[str, ...], Callable[[bytes], Any]] = {}


def key_for_more(
    control: AccessControl, request: AccessRequest, granted: Granted
) -> tuple[SecretKey, tuple[str, ...]] | None:
    """Returns the key of the user, and the names of the ext fields that the request was granted for. Further
    requests of its connection with this user, code and these fields need only a right signature, as long as
    control.state is the same. None: they have to be checked as a whole."""
    rule, ext_fields = RULES.get(request.code, UNKNOWN), request.ext_fields or {}
    if control.settings.authentication_enabled is (control.plain is not None):
        return None  # none or both of them check signatures
    if rule.body is not None or rule.lookups or rule.role is Role.ADMINISTER or granted.is_member:
        return None
    accounts = control.plain.accounts.get if control.plain is not None else control.users.user
    user = accounts(granted.username)
    if user is None or PROOF in ext_fields or UNIQUE_KEY_QUERY in ext_fields:
        return None
    return user.secret, (ACCESS_KEY, *rule.fields)


class KnownRequests:
    """Of one connection. `state`: AccessControl.state when they were granted."""

    __slots__ = ("kinds", "signed_until_ms", "state")

    def __init__(self, state: object) -> None:
        self.state = state
        self.kinds: dict[int, KnownKind] = {}
        """By code, as most connections send one list of names with each."""
        self.signed_until_ms: dict[SecretKey, int] = {}
        """Of users whose signature was right: until when that counts, with the stateful strategy."""

    def add(self, code: int, ext_fields: ExtFields, resources: tuple[str, ...], key: SecretKey) -> None:
        """A request was granted, whatever its body and its other ext fields. resources: names of the ext
        fields that it was granted for. Requests with a null value are not remembered."""
        if SIGNATURE not in ext_fields or None in ext_fields.values():
            return
        if not is_ordinary(ext_fields) or not all(map(_NAME.fullmatch, ext_fields)):
            return  # msgspec refuses some characters in names
        names = (*signed_order(ext_fields), SIGNATURE)
        kind = self.kinds.get(code)
        if kind is None or kind.names != names:
            kind = self.kinds[code] = KnownKind(names, resources, sent=tuple(ext_fields))
        kind.add(tuple(ext_fields[name] or "" for name in names), key)


class KnownKind:
    """Requests with one code and one list of ext fields: `names`, in the order of their signed values, and
    then the signature. `resources`: which of them were decided about, if they are there. `sent`: the same
    names as the client sent them."""

    __slots__ = ("_decode", "_subject_of", "form", "keys", "names")

    def __init__(self, names: tuple[str, ...], resources: tuple[str, ...], *, sent: tuple[str, ...]) -> None:
        self.names = names
        self.form = _form_of(names, resources, sent)
        """None: a name is not ASCII, or too long."""
        self._decode = _decoder_of(names)
        # The user is always among them.
        self._subject_of: Callable[[tuple[str, ...]], str | tuple[str, ...]] = itemgetter(
            *(place for place, name in enumerate(names[:-1]) if name in resources)
        )
        self.keys: dict[object, SecretKey] = {}
        """By what was decided about: the values of the user and the resources; one value without a tuple."""

    def __len__(self) -> int:
        """For how many users and resources requests are known."""
        return len(self.keys)

    def add(self, values: tuple[str, ...], key: SecretKey) -> None:
        """Requests with these resources are known from now on, if they are signed with this key."""
        if len(self.keys) >= GRANTED_MAX:
            self.keys.clear()
        subject = self._subject_of(values)
        if sum(map(len, (subject,) if isinstance(subject, str) else subject)) <= SUBJECT_CHARS_MAX:
            self.keys[subject] = key

    def key_of(self, header: bytes) -> SecretKey | None:
        """Returns the key of the user of a known request, whose signature is not checked; None: it is not
        known."""
        try:
            values = _values_of(self._decode(header).ext)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
        return self.keys.get(self._subject_of(values))

    def has(self, header: bytes, body: bytes) -> bool:
        """Whether the request is known, and its signature is right. header: JSON."""
        try:
            values = _values_of(self._decode(header).ext)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return False
        key = self.keys.get(self._subject_of(values))
        if key is None:
            return False
        # Java writes "?" for half of a surrogate pair.
        expected = key.signature_of("".join(values[:-1]).encode("utf-8", "replace") + body)
        return compare_digest(expected, values[-1].encode("utf-8", "replace"))


def _form_of(names: tuple[str, ...], resources: tuple[str, ...], sent: tuple[str, ...]) -> SentForm | None:
    if not all(map(str.isascii, names)):
        return None
    signed = [sent.index(name) for name in names[:-1]]
    runs: list[int] = []
    for place in signed:
        if runs and runs[-1] == place:
            runs[-1] = place + 1
        else:
            runs += (place, place + 1)
    decided = tuple(sent.index(name) for name in names[:-1] if name in resources)
    texts = [text.encode() for text in ('{"' + '":"\0","'.join(sent) + '":"\0"}').split("\0")]
    if max(map(len, texts)) > TEXT_BYTES_MAX:
        return None
    between = b"".join([len(text).to_bytes() + text for text in texts])
    return between, len(sent), tuple(runs), decided, sent.index(SIGNATURE)


def remembered_decoders() -> int:
    """Returns how many decoders are kept; DECODERS_MAX at most."""
    return len(_decoders)


def _decoder_of(names: tuple[str, ...]) -> Callable[[bytes], Any]:
    decode = _decoders.get(names)
    if decode is None:
        if len(_decoders) >= DECODERS_MAX:
            _decoders.clear()
        places = [f"v{place}" for place in range(len(names))]  # names need not be identifiers
        fields = msgspec.defstruct(
            "ExtFields",
            [(place, str) for place in places],
            rename=dict(zip(places, names, strict=True)),
            forbid_unknown_fields=True,
            gc=False,
        )
        header = msgspec.defstruct("Header", [("ext", fields)], rename={"ext": "extFields"}, gc=False)
        decode = _decoders[names] = msgspec.json.Decoder(header).decode
    return decode
