"""Reads the signature of a call, from its metadata. Pure.

    authorization: MQv2-HMAC-SHA1 Credential=<access key>, SignedHeaders=x-mq-date-time, Signature=<hex>

Clients write it differently: hex in either case, "/" and a region or a service behind the access key, and
any form of time. The time is never read: Python, Go, C# and Rust send local times. So a signature is right
for as long as the password is, and whoever reads a call can repeat it: only TLS prevents that."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Final

from keelmq.security.core.signature import Credential
from proxy.core.statuses import Refused
from proxy.wire import messaging_pb2 as pb

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"
SCHEME: Final = "mqv2-hmac-sha1"
CHARACTERS_MAX: Final = 1_024
DIGEST_BYTES: Final = 20


def credential_of(metadata: Mapping[str, str]) -> Credential | None:
    """None: the client is anonymous, as one whose access key is empty. Raises Refused: it cannot be read."""
    text = metadata.get(AUTHORIZATION, "")
    if len(text) > CHARACTERS_MAX:
        raise unauthorized(f"{AUTHORIZATION} has more than {CHARACTERS_MAX} characters")
    scheme, _, rest = text.strip().partition(" ")
    if not scheme:
        return None
    if scheme.lower() != SCHEME:
        raise unauthorized(f"{AUTHORIZATION} does not begin with MQv2-HMAC-SHA1")
    fields = {}
    for field in rest.split(","):
        name, _, value = field.partition("=")
        fields[name.strip().lower()] = value.strip()
    access_key = fields.get("credential", "").partition("/")[0]
    if not access_key:
        return None
    if fields.get("signedheaders", DATE_TIME).lower() != DATE_TIME:
        raise unauthorized(f"SignedHeaders is not {DATE_TIME}")
    signed = metadata.get(DATE_TIME, "")
    if not signed or len(signed) > CHARACTERS_MAX:
        raise unauthorized(f"the call has no {DATE_TIME} of 1 to {CHARACTERS_MAX} characters")
    try:
        digest = bytes.fromhex(fields.get("signature", ""))
    except ValueError:
        digest = b""
    if len(digest) != DIGEST_BYTES:
        raise unauthorized(f"Signature is not {DIGEST_BYTES} bytes in hex")
    return Credential(access_key, b64encode(digest).decode(), signed.encode())


def unauthorized(why: str) -> Refused:
    """Returns the refusal of a call that does not prove who sends it."""
    return Refused(pb.UNAUTHORIZED, why)
