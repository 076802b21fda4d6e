"""What was not compacted, for people: bad lines by hour, and files that were not read.

OUT/compacted/bad/dt=YYYY-MM-DD-hour=HH.jsonl      of each file of that hour the first bad lines
OUT/compacted/not_read.json                        of the last run
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from analytics.compaction.manifest import COMPACTED, HourManifest, Source, folder_of
from analytics.compaction.scan import NotRead
from analytics.compaction.storage import Storage

BAD = f"{COMPACTED}/bad"
NOT_READ = f"{COMPACTED}/not_read.json"
NOT_READ_MAX = 1_000
SHOWN_MAX = 20


class _NotReadFile(msgspec.Struct):
    """`files`: all of them; `not_read`: the first NOT_READ_MAX."""

    files: int
    not_read: list[NotRead]


def write_bad_lines(storage: Storage, manifest: HourManifest) -> None:
    """Writes the list of an hour, if it changes. Raises OSError."""
    lines = [
        msgspec.json.encode({"path": source.path, "record": source.kind, **msgspec.to_builtins(line)})
        for source in manifest.sources
        for line in source.bad_lines
    ]
    lines += [
        msgspec.json.encode({"path": source.path, "record": source.kind, "error": source.error})
        for source in manifest.sources
        if source.error
    ]
    name = f"{BAD}/{folder_of(manifest.hour_ts).replace('/', '-')}.jsonl"
    if lines:
        _write(storage, name, b"".join(line + b"\n" for line in lines))
    else:
        storage.delete(name)


def bad_line_totals(manifests: Iterable[HourManifest]) -> Iterator[str]:
    """Yields a line per kind of record with bad lines in these hours: how many, and where the first of them
    is."""
    found: dict[str, list[Source]] = {}
    for manifest in manifests:
        for source in manifest.sources:
            if source.bad:
                found.setdefault(source.kind, []).append(source)
    for kind, sources in sorted(found.items()):
        count = sum(sum(each.bad.values()) for each in sources)
        first = sources[0]
        place = f"{first.path}, byte {first.bad_lines[0].offset}: " if first.bad_lines else f"{first.path}: "
        reason = first.bad_lines[0].reason if first.bad_lines else next(iter(first.bad))
        yield (
            f"left out: {count:,} bad lines of {kind} in {len(sources)} files, the first in {place}{reason}; "
            f"listed in {BAD}"
        )


def write_not_read(storage: Storage, not_read: Sequence[NotRead]) -> Iterator[str]:
    """Writes the list, if it changes, and yields lines for the user. Raises OSError."""
    listed = sorted(set(not_read), key=lambda each: each.path)
    content = _NotReadFile(len(listed), listed[:NOT_READ_MAX])
    _write(storage, NOT_READ, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    yield from map(str, listed[:SHOWN_MAX])
    if len(listed) > SHOWN_MAX:
        yield f"... and {len(listed) - SHOWN_MAX} more: {NOT_READ}"


def _write(storage: Storage, name: str, content: bytes) -> None:
    try:
        if storage.read(name) == content:
            return
    except FileNotFoundError:
        pass
    storage.replace(name, content)
