"""The properties of a record as they are stored: `key \\x01 value \\x02 ...`. Pure."""


def without(properties: bytes, *names: bytes) -> bytes:
    """These properties taken out; the others are as they were, and end with a separator."""
    if not properties:
        return b""
    if any(name + b"\x01" in properties for name in names):
        segments = properties.split(b"\x02")
        kept = [each for each in segments if each and each.partition(b"\x01")[0] not in names]
        return b"\x02".join(kept) + b"\x02" if kept else b""
    return properties if properties.endswith(b"\x02") else properties + b"\x02"
