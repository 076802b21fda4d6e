"""Changes the properties of a message in the text form in which they are stored: `key \\x01 value \\x02 ...`.

The text itself is stored, so every change must rebuild it (broker-ops pitfall 11). Pure.
"""

from collections.abc import Mapping


def with_properties(properties: bytes, changes: Mapping[bytes, bytes | None]) -> bytes:
    """Returns the properties with these keys set, or removed where the value is None. They end with a
    separator."""
    kept = [
        segment
        for segment in properties.split(b"\x02")
        if segment and segment.partition(b"\x01")[0] not in changes
    ]
    kept += [b"%b\x01%b" % (key, value) for key, value in changes.items() if value is not None]
    return b"\x02".join(kept) + b"\x02" if kept else b""


def without(properties: bytes, *names: bytes) -> bytes:
    """Returns the properties without these; the others are unchanged, and end with a separator."""
    if not properties:
        return b""
    if any(name + b"\x01" in properties for name in names):
        segments = properties.split(b"\x02")
        kept = [each for each in segments if each and each.partition(b"\x01")[0] not in names]
        return b"\x02".join(kept) + b"\x02" if kept else b""
    return properties if properties.endswith(b"\x02") else properties + b"\x02"
