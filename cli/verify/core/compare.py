"""What differs between the replicas of a group. Pure: values in, differences out.

Replicas are compared where all of them have confirmed records: from the highest minOffset to the lowest
confirmOffset. What is behind that may still be on its way.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from keelmq.remoting.operations.route import DataVersion
from keelmq.remoting.operations.store_copies import QueueChecksum, ReplicaDigest

Value = TypeVar("Value", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Difference:
    """kind: epochs, log, queue or metadata. brokers: the addresses that differ from the others. offset: of
    the log, where that is known."""

    kind: str
    brokers: tuple[str, ...]
    text: str
    offset: int | None = None


def common_range(digests: Sequence[ReplicaDigest]) -> tuple[int, int]:
    """Returns the part of the log that all replicas have confirmed; empty ranges begin where they end."""
    start = max(each.min_offset for each in digests)
    return start, max(start, min(each.confirm_offset for each in digests))


def odd_ones(said: Mapping[str, Value], master: str | None) -> tuple[str, ...]:
    """Returns the addresses whose value is not that of the majority, sorted; without a majority, those that
    differ from the master; without a master, all. Empty: they are equal."""
    counts = Counter(said.values())
    if len(counts) <= 1:
        return ()
    value, count = counts.most_common(1)[0]
    if 2 * count <= len(said):
        if master is None or master not in said:
            return tuple(sorted(said))
        value = said[master]
    return tuple(sorted(address for address, each in said.items() if each != value))


def epochs_in(digest: ReplicaDigest, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """Returns (epoch, first offset) of the epochs with bytes in [start, end), clipped to it."""
    entries = digest.epochs
    ends = [*(each.start_offset for each in entries[1:]), digest.max_offset][: len(entries)]
    return tuple(
        (entry.epoch, max(entry.start_offset, start))
        for entry, stop in zip(entries, ends, strict=True)
        if max(entry.start_offset, start) < min(stop, end)
    )


def epoch_differences(
    digests: Mapping[str, ReplicaDigest], start: int, end: int, master: str | None
) -> list[Difference]:
    """Returns which replicas assign the bytes of the range to other epochs."""
    said = {address: epochs_in(each, start, end) for address, each in digests.items()}
    odd = odd_ones(said, master)
    if not odd:
        return []
    offset = min(at for _, at in set.symmetric_difference(*_two(said, odd)))
    shown = "; ".join(f"{each}: {_pairs(said[each])}" for each in sorted(said))
    text = f"the bytes from {offset} on have other epochs: {shown}"
    return [Difference("epochs", odd, text, offset)]


def _two(said: Mapping[str, tuple[tuple[int, int], ...]], odd: Sequence[str]) -> list[set[tuple[int, int]]]:
    """Returns two values that differ."""
    first = said[odd[0]]
    other = next(value for value in said.values() if value != first)
    return [set(first), set(other)]


def _pairs(pairs: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{epoch}@{start}" for epoch, start in pairs) or "none"


def first_piece(said: Mapping[str, Sequence[int]], master: str | None) -> tuple[int, tuple[str, ...]] | None:
    """Returns the number of the first piece that differs, and who differs; None: all pieces are equal."""
    for number, crcs in enumerate(zip(*said.values(), strict=True)):
        if len(set(crcs)) > 1:
            return number, odd_ones(dict(zip(said, crcs, strict=True)), master)
    return None


def queue_differences(
    said: Mapping[str, Mapping[tuple[str, int], QueueChecksum]], master: str | None
) -> list[Difference]:
    """Returns the queues whose entries for the same part of the log differ."""
    found = []
    for key in sorted({key for queues in said.values() for key in queues}):
        values = {address: _entries(queues.get(key)) for address, queues in said.items()}
        if odd := odd_ones(values, master):
            shown = "; ".join(f"{each}: {_told(values[each])}" for each in sorted(values))
            found.append(Difference("queue", odd, f"{key[0]} {key[1]}: {shown}"))
    return found


def _entries(queue: QueueChecksum | None) -> tuple[int, int, int]:
    return (0, 0, 0) if queue is None else (queue.first_offset, queue.entries, queue.crc)


def _told(value: tuple[int, int, int]) -> str:
    first, count, crc = value
    return f"{count} entries from {first} on, checksum {crc:08x}" if count else "no entries"


def newest_tables(digests: Mapping[str, ReplicaDigest], master: str | None) -> dict[str, DataVersion]:
    """Returns name -> the version that all replicas must reach: the master's, or else the newest."""
    if master is not None and master in digests:
        return dict(digests[master].tables)
    newest: dict[str, DataVersion] = {}
    for digest in digests.values():
        for name, version in digest.tables.items():
            if name not in newest or _order(version) > _order(newest[name]):
                newest[name] = version
    return newest


def table_differences(
    digests: Mapping[str, ReplicaDigest], wanted: Mapping[str, DataVersion]
) -> list[Difference]:
    """Returns the tables that replicas have in older or other versions than `wanted`, which was read before:
    a version that is newer has been replicated since then."""
    found = []
    for name, version in sorted(wanted.items()):
        odd = sorted(
            address for address, each in digests.items() if _is_behind(each.tables.get(name), version)
        )
        if odd:
            shown = "; ".join(f"{each}: {_version(digests[each].tables.get(name))}" for each in odd)
            found.append(
                Difference("metadata", tuple(odd), f"{name}: {_version(version)} is wanted; {shown}")
            )
    return found


def _order(version: DataVersion) -> tuple[int, int]:
    return version.state_version, version.counter


def _is_behind(found: DataVersion | None, wanted: DataVersion) -> bool:
    return (
        found is None
        or _order(found) < _order(wanted)
        or (_order(found) == _order(wanted) and found != wanted)
    )


def _version(version: DataVersion | None) -> str:
    return "none" if version is None else f"version {version.state_version}.{version.counter}"
