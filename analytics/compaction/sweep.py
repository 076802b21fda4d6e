"""Deletes parts that no manifest names any more, some time after their successors came: a reader may still
have the manifest before."""

import msgspec

from analytics.compaction.manifest import COMPACTED, MANIFESTS, folder_of, hours_of_files
from analytics.compaction.plan import Manifests
from analytics.compaction.storage import Storage
from analytics.tables import TABLES

KEPT_MS = 15 * 60_000
SWEPT = f"{MANIFESTS}/swept.json"


class _Swept(msgspec.Struct):
    """All hours whose manifest is older than `before_ns` hold no old parts."""

    before_ns: int = 0


def sweep(storage: Storage, manifests: Manifests, now_ms: int) -> None:
    """Looks at the hours that changed since they were clean. Raises OSError."""
    try:
        swept = msgspec.json.decode(storage.read(SWEPT), type=_Swept)
    except (FileNotFoundError, msgspec.MsgspecError):
        swept = _Swept()
    changed = {
        hour_ts: modified_ns
        for hour_ts, modified_ns in hours_of_files(storage.files(MANIFESTS)).items()
        if modified_ns >= swept.before_ns
    }
    unclean = [
        modified_ns
        for hour_ts, modified_ns in sorted(changed.items())
        if not _clean(storage, hour_ts, manifests.get(hour_ts).paths(), now_ms)
    ]
    before_ns = min(unclean) if unclean else max(changed.values(), default=swept.before_ns - 1) + 1
    if before_ns != swept.before_ns:
        storage.replace(SWEPT, msgspec.json.encode(_Swept(before_ns)))


def _clean(storage: Storage, hour_ts: int, paths: set[str], now_ms: int) -> bool:
    """Deletes old parts of an hour; returns True if none is left."""
    left = False
    for table in TABLES:
        folder = f"{COMPACTED}/{table.name}/{folder_of(hour_ts)}"
        files = sorted(storage.files(folder), key=lambda each: each.modified_ns)
        ended = [*(each.modified_ns for each in files[1:]), *(each.modified_ns for each in files[-1:])]
        for file, ended_ns in zip(files, ended, strict=True):
            if f"{folder}/{file.name}" in paths:
                continue
            if ended_ns // 1_000_000 + KEPT_MS <= now_ms:
                storage.delete(f"{folder}/{file.name}")
            else:
                left = True
    return not left
