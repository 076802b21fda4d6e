"""From the keys of stored records to the columns of an IndexFile: hashes, CommitLog offsets, timestamps.

One pass over many records, with the hash of record.key_hash() written out: half the cost. Pure.
"""

from collections.abc import Iterable
from typing import TypeAlias

from broker.store.record import (
    FROM_ZERO,
    HIGH_DIGITS,
    KEY_DIGITS_MAX,
    LOW_DIGITS,
    POWERS,
    ZEROS_HASHES,
    key_hash,
)

Keyed: TypeAlias = tuple[int, int, int, bytes, bytes]
"""(java_hash(topic + "#"), CommitLog offset, store timestamp in ms, UNIQ_KEY, KEYS: blank-separated)"""
Columns: TypeAlias = tuple[list[int], list[int], list[int]]
"""Of each key, in log order: hash, its record's CommitLog offset and store timestamp."""


def columns(records: Iterable[Keyed]) -> Columns:
    """A record's unique key stands before its others; a record without keys does not come."""
    hashes: list[int] = []
    offsets: list[int] = []
    timestamps: list[int] = []
    for prefix_hash, offset, timestamp, unique_key, keys in records:
        if unique_key:
            length = len(unique_key)
            try:
                digits = int(unique_key.translate(FROM_ZERO), 31)
                hashed = prefix_hash * POWERS[length] + ZEROS_HASHES[length] + digits & 0xFFFFFFFF
                hashes.append(hashed if hashed < 0x80000000 else -hashed & 0x7FFFFFFF)
            except (ValueError, IndexError):  # no upper-case hex
                hashes.append(key_hash(prefix_hash, unique_key))
            offsets.append(offset)
            timestamps.append(timestamp)
        if keys:
            for key in keys.split(b" ") if b" " in keys else (keys,):
                length = len(key)
                if length <= KEY_DIGITS_MAX and key.isascii():
                    if not key:
                        continue
                    digits = int(key.translate(HIGH_DIGITS), 31) * 31 + int(key.translate(LOW_DIGITS), 31)
                    hashed = prefix_hash * POWERS[length] + digits & 0xFFFFFFFF
                    hashes.append(hashed if hashed < 0x80000000 else -hashed & 0x7FFFFFFF)
                else:
                    hashes.append(key_hash(prefix_hash, key))
                offsets.append(offset)
                timestamps.append(timestamp)
    return hashes, offsets, timestamps
