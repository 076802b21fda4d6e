"""The first moment that an output keeps: compaction must not restore data that --keep-days deleted from
telemetry that still exists."""

import msgspec

from analytics.compaction.manifest import COMPACTED
from analytics.compaction.storage import Storage

KEPT = f"{COMPACTED}/kept_from.json"


class _Kept(msgspec.Struct):
    from_ts: int = 0


def kept_from(storage: Storage) -> int:
    """Returns the first moment that is kept; 0: nothing was ever deleted. Raises OSError."""
    try:
        return msgspec.json.decode(storage.read(KEPT), type=_Kept).from_ts
    except (FileNotFoundError, msgspec.MsgspecError):
        return 0


def keep_from(storage: Storage, from_ts: int) -> None:
    """Raises OSError."""
    if from_ts != kept_from(storage):
        storage.replace(KEPT, msgspec.json.encode(_Kept(from_ts)))
