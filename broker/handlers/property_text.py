"""Changing the properties of a message in the text form in which they are stored.

The text is what is stored, and it is rebuilt with every change (broker-ops pitfall 11).
"""

from collections.abc import Mapping


def with_properties(properties: bytes, changes: Mapping[bytes, bytes | None]) -> bytes:
    """`key \\x01 value \\x02 ...` with these keys set, or gone (None). Ends with a separator."""
    kept = [
        segment
        for segment in properties.split(b"\x02")
        if segment and segment.partition(b"\x01")[0] not in changes
    ]
    kept += [b"%b\x01%b" % (key, value) for key, value in changes.items() if value is not None]
    return b"\x02".join(kept) + b"\x02" if kept else b""
