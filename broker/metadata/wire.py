"""The body of 29001: MetadataUpdates as JSON, deflated if it is large. A whole table may have megabytes."""

import zlib

import msgspec

from keelmq.remoting.body import body_bytes
from keelmq.remoting.command import BadRequest, decode_body
from keelmq.remoting.operations.broker_metadata import MetadataUpdate, MetadataUpdates

PLAIN_BYTES_MAX = 65_536
INFLATED_BYTES_MAX = 256 << 20
_LEVEL = 1  # speed matters more, and JSON compresses well at any level


def encode_updates(updates: list[MetadataUpdate]) -> bytes:
    """Returns the body; deflated above PLAIN_BYTES_MAX."""
    raw = body_bytes(MetadataUpdates(updates=updates))
    return raw if len(raw) <= PLAIN_BYTES_MAX else zlib.compress(raw, _LEVEL)


def decode_updates(raw: bytes) -> list[MetadataUpdate]:
    """Parses the body. Raises ValueError if it is damaged, or inflates to more than INFLATED_BYTES_MAX."""
    if raw and not raw.startswith(b"{"):
        inflate = zlib.decompressobj()
        try:
            raw = inflate.decompress(raw, INFLATED_BYTES_MAX)
        except zlib.error as error:
            raise ValueError(f"metadata cannot be inflated: {error}") from None
        if not inflate.eof:
            raise ValueError(f"metadata of more than {INFLATED_BYTES_MAX} bytes, or a part of it")
    try:
        found = decode_body(MetadataUpdates, raw)
    except BadRequest as error:
        raise ValueError(error.remark) from None
    return list(found.updates) if found is not None else []


def encode_update(update: MetadataUpdate) -> bytes:
    """Returns one line of a journal."""
    return msgspec.json.encode(update.model_dump(by_alias=True, exclude_none=True, mode="json"))
