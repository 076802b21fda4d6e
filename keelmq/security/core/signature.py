"""Signatures of requests: HMAC-SHA1 over the values of the ext fields, sorted by key, and the body.

The signature does not cover the code, the keys or where one value ends and the next begins: it proves who
sent a request, not that it is new or unaltered in its structure. member_proof.py covers these for our own
members. Source: RocketMQ 5.3.3 AclUtils, AclSigner, AclClientRPCHook."""

import hmac
from binascii import b2a_base64
from collections.abc import Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"

VERSION_4_9_3: Final = 399
"""Release ordinal of 4.9.3: clients up to it sign only the fields of the request's header class."""

ExtFields = Mapping[str, str | None]


def signed_bytes(ext_fields: ExtFields, body: bytes = b"", version: int = VERSION_4_9_3 + 1) -> bytes:
    """Returns what the signature is computed over. `version`: the sender's release ordinal.

    A null value counts as the text "null". _UNIQUE_KEY_QUERY is left out for clients up to 4.9.3, which add
    it without signing it (pitfall 1). Both parts may be empty (pitfall 3)."""
    names = sorted(ext_fields)
    if not "".join(names).isascii():
        names.sort(key=_utf16_order)
    if SIGNATURE in ext_fields:
        names.remove(SIGNATURE)
    if version <= VERSION_4_9_3 and UNIQUE_KEY_QUERY in ext_fields:
        names.remove(UNIQUE_KEY_QUERY)
    values = [ext_fields[name] for name in names]
    try:
        text = "".join(values)  # type: ignore[arg-type]  # None is rare: see below
    except TypeError:
        text = "".join(["null" if value is None else value for value in values])
    # Java writes "?" for half of a surrogate pair.
    return text.encode("utf-8", "replace") + body


def _utf16_order(name: str) -> bytes:
    """Java compares UTF-16 units, Python code points: they differ for characters beyond U+FFFF."""
    return name.encode("utf-16-be", "surrogatepass")


def signature_of(secret: bytes, data: bytes) -> bytes:
    """Returns base64 of HMAC-SHA1, as ASCII."""
    return b2a_base64(hmac.digest(secret, data, "sha1"), newline=False)


def sign(secret: str, ext_fields: ExtFields, body: bytes = b"", version: int = VERSION_4_9_3 + 1) -> str:
    """Returns the value for the ext field Signature. `ext_fields` has AccessKey already."""
    return signature_of(secret.encode(), signed_bytes(ext_fields, body, version)).decode()


def signed(access_key: str, secret: str, ext_fields: Mapping[str, str], body: bytes = b"") -> dict[str, str]:
    """Returns a copy of the ext fields with AccessKey and Signature: the last step before a request is
    sent."""
    fields = {**ext_fields, ACCESS_KEY: access_key}
    fields.pop(SIGNATURE, None)
    fields[SIGNATURE] = sign(secret, fields, body)
    return fields


def verify(secret: bytes, ext_fields: ExtFields, body: bytes, version: int) -> bool:
    """Whether the request's Signature is right. Takes the same time for every wrong one (pitfall 16)."""
    given = ext_fields.get(SIGNATURE)
    if not given:
        return False
    expected = signature_of(secret, signed_bytes(ext_fields, body, version))
    return hmac.compare_digest(expected, given.encode("utf-8", "replace"))
