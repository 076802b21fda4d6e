"""Signatures of requests: HMAC-SHA1 over the values of the ext fields, sorted by key, and the body.

The signature does not cover the code, the keys or where one value ends and the next begins: it proves who
sent a request, not that it is new or unaltered in its structure. member_proof.py covers these for our own
members. Source: RocketMQ 5.3.3 AclUtils, AclSigner, AclClientRPCHook."""

import hashlib
from binascii import b2a_base64
from collections.abc import Callable, Collection, Iterable, Mapping
from hmac import compare_digest
from operator import itemgetter
from typing import Any, Final, NamedTuple

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"

VERSION_4_9_3: Final = 399
"""Release ordinal of 4.9.3: clients up to it sign only the fields of the request's header class."""

BLOCK_BYTES: Final = 64
_INNER_PAD: Final = bytes(each ^ 0x36 for each in range(256))
_OUTER_PAD: Final = bytes(each ^ 0x5C for each in range(256))

ExtFields = Mapping[str, str | None]


ORDERS_MAX: Final = 256
_orders: dict[tuple[str, ...], Callable[[ExtFields], tuple[str | None, ...]]] = {}
"""Field names as a client sends them -> how to get the signed values in order. A client's requests of one
kind have the same names in the same order, so sorting them is needed once. Bounded: it is emptied when it is
full, and has no list that is longer than those of real requests."""
NAMES_MAX: Final = 64
NAMES_CHARS_MAX: Final = 4_096


def signed_bytes(ext_fields: ExtFields, body: bytes = b"", version: int = VERSION_4_9_3 + 1) -> bytes:
    """Returns what the signature is computed over. `version`: the sender's release ordinal.

    A null value counts as the text "null". _UNIQUE_KEY_QUERY is left out for clients up to 4.9.3, which add
    it without signing it (pitfall 1). Both parts may be empty (pitfall 3).
    """
    if version <= VERSION_4_9_3 and UNIQUE_KEY_QUERY in ext_fields:
        ext_fields = {name: value for name, value in ext_fields.items() if name != UNIQUE_KEY_QUERY}
    names = tuple(ext_fields)
    values_of = _orders.get(names)
    if values_of is None:
        values_of = _order(names)
    values = values_of(ext_fields)
    try:
        text = "".join(values)  # type: ignore[arg-type]  # None is rare
    except TypeError:
        text = "".join(["null" if value is None else value for value in values])
    # Java writes "?" for half of a surrogate pair.
    return text.encode("utf-8", "replace") + body


def _order(names: tuple[str, ...]) -> Callable[[ExtFields], tuple[str | None, ...]]:
    ordered = signed_order(names)
    if len(ordered) < 2:
        # itemgetter() of one name returns no tuple, and of none it is an error.
        return lambda ext_fields: tuple(ext_fields[name] for name in ordered)
    values_of = itemgetter(*ordered)
    if not is_ordinary(names):
        return values_of
    if len(_orders) >= ORDERS_MAX:
        _orders.clear()
    _orders[names] = values_of
    return values_of


def is_ordinary(names: Collection[str]) -> bool:
    """Whether these names of ext fields are few and short enough to be remembered."""
    return len(names) <= NAMES_MAX and sum(map(len, names)) <= NAMES_CHARS_MAX


def signed_order(names: Iterable[str]) -> list[str]:
    """Returns the names of the signed ext fields, in the order of their values."""
    return sorted((name for name in names if name != SIGNATURE), key=_utf16_order)


def remembered_orders() -> int:
    """Returns for how many lists of names the order is remembered; ORDERS_MAX at most."""
    return len(_orders)


def _utf16_order(name: str) -> bytes:
    """Java compares UTF-16 units, Python code points: they differ for characters beyond U+FFFF."""
    return name.encode("utf-16-be", "surrogatepass")


class Credential(NamedTuple):
    """What a client of another protocol than remoting has signed: `signed`, and not the request. signature:
    base64, as the ext field Signature."""

    access_key: str
    signature: str
    signed: bytes


class SecretKey:
    """A key for HMAC-SHA1, prepared once: it saves half of the time of hmac.digest()."""

    __slots__ = ("_inner", "_outer", "blocks", "prepared")

    def __init__(self, secret: bytes) -> None:
        if len(secret) > BLOCK_BYTES:
            secret = hashlib.sha1(secret).digest()
        padded = secret.ljust(BLOCK_BYTES, b"\0")
        self.blocks = padded.translate(_INNER_PAD), padded.translate(_OUTER_PAD)
        """The first blocks of the inner and the outer hash. As secret as the key."""
        self._inner, self._outer = map(hashlib.sha1, self.blocks)
        self.prepared: Any = None
        """A PreparedHmac, once the compiled check has used this key."""

    def signature_of(self, data: bytes) -> bytes:
        """Returns base64 of HMAC-SHA1, as ASCII."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(data)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)


def sign(secret: str, ext_fields: ExtFields, body: bytes = b"", version: int = VERSION_4_9_3 + 1) -> str:
    """Returns the value for the ext field Signature. `ext_fields` has AccessKey already."""
    return SecretKey(secret.encode()).signature_of(signed_bytes(ext_fields, body, version)).decode()


def signed(access_key: str, secret: str, ext_fields: Mapping[str, str], body: bytes = b"") -> dict[str, str]:
    """Returns a copy of the ext fields with AccessKey and Signature: the last step before a request is
    sent."""
    fields = {**ext_fields, ACCESS_KEY: access_key}
    fields.pop(SIGNATURE, None)
    fields[SIGNATURE] = sign(secret, fields, body)
    return fields


def verify(secret: SecretKey, ext_fields: ExtFields, body: bytes, version: int) -> bool:
    """Whether the request's Signature is right. Takes the same time for every wrong one (pitfall 16)."""
    given = ext_fields.get(SIGNATURE)
    return given is not None and is_signature(secret, given, signed_bytes(ext_fields, body, version))


def is_signature(secret: SecretKey, given: str, data: bytes) -> bool:
    """Whether `given` is the signature of data, in base64. Takes the same time for every wrong one."""
    return compare_digest(secret.signature_of(data), given.encode("utf-8", "replace"))
