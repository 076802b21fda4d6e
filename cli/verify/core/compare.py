"""Differences between the replicas of a group. Pure: values in, differences out.

Replicas are compared where all of them have confirmed records: from the highest minOffset to the lowest
confirmOffset. Bytes behind that may still be on their way.
"""

import zlib
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from cli.verify.core.verdict import Divergence, Verdict, judge
from keelmq.remoting.operations.route import DataVersion
from keelmq.remoting.operations.store_copies import QueueChecksum, ReplicaDigest

Value = TypeVar("Value", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Difference:
    """kind: epochs, log, queue or metadata. brokers: the addresses that are wrong, or all that differ if
    nothing shows which one is right (is_decided False). offset: of the log, where that is known."""

    kind: str
    brokers: tuple[str, ...]
    text: str
    offset: int | None = None
    is_decided: bool = True


def common_range(digests: Sequence[ReplicaDigest]) -> tuple[int, int]:
    """Returns the part of the log that all replicas have confirmed; empty ranges begin where they end."""
    start = max(each.min_offset for each in digests)
    return start, max(start, min(each.confirm_offset for each in digests))


def odd_ones(answers: Mapping[str, Value]) -> tuple[tuple[str, ...], bool]:
    """Returns the addresses whose value is not that of the majority, sorted, and True; without a majority all
    of them, and False: the master's value may be the wrong one. Empty: they are equal."""
    counts = Counter(answers.values())
    if len(counts) <= 1:
        return (), True
    value, count = counts.most_common(1)[0]
    if 2 * count <= len(answers):
        return tuple(sorted(answers)), False
    return tuple(sorted(address for address, each in answers.items() if each != value)), True


def epochs_in(digest: ReplicaDigest, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """Returns (epoch, first offset) of the epochs with bytes in [start, end), clipped to it."""
    entries = digest.epochs
    ends = [*(each.start_offset for each in entries[1:]), digest.max_offset][: len(entries)]
    return tuple(
        (entry.epoch, max(entry.start_offset, start))
        for entry, stop in zip(entries, ends, strict=True)
        if max(entry.start_offset, start) < min(stop, end)
    )


def epoch_verdict(digests: Mapping[str, ReplicaDigest], start: int, end: int) -> Verdict | None:
    """Returns which replicas assign the bytes of the range to other epochs; None: none does. There are no
    checksums of epochs, so the majority decides."""
    answers = {address: epochs_in(each, start, end) for address, each in digests.items()}
    odd, _ = odd_ones(answers)
    if not odd:
        return None
    first = min(at for _, at in set.symmetric_difference(*_two(answers, odd)))
    values = {address: zlib.crc32(repr(each).encode()) for address, each in answers.items()}
    return judge(Divergence(first, end, values, damaged={}, unchecked={}, epochs={}))


def epoch_difference(verdict: Verdict, digests: Mapping[str, ReplicaDigest], start: int) -> Difference:
    """Returns the text about an epoch_verdict(). start: of the compared range."""
    divergence = verdict.divergence
    pairs = {address: epochs_in(each, start, divergence.end) for address, each in sorted(digests.items())}
    shown = "; ".join(f"{each}: {_pairs(pairs[each])}" for each in pairs)
    text = f"the bytes from {divergence.start} on have other epochs: {shown}"
    return Difference(
        "epochs", verdict.wrong or verdict.undecided, text, divergence.start, bool(verdict.right)
    )


def _two(
    answers: Mapping[str, tuple[tuple[int, int], ...]], odd: Sequence[str]
) -> list[set[tuple[int, int]]]:
    """Returns two values that differ."""
    first = answers[odd[0]]
    other = next(value for value in answers.values() if value != first)
    return [set(first), set(other)]


def _pairs(pairs: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{epoch}@{start}" for epoch, start in pairs) or "none"


def epoch_at(digest: ReplicaDigest, offset: int) -> int | None:
    """Returns the epoch of the byte at `offset`; None: no epoch covers it."""
    found = [each.epoch for each in digest.epochs if each.start_offset <= offset]
    return found[-1] if found else None


def differing_runs(answers: Mapping[str, Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Yields (number of the first, number behind the last) of pieces in a row that are not equal
    everywhere."""
    begin, number = None, -1
    for number, crcs in enumerate(zip(*answers.values(), strict=True)):
        differs = len(set(crcs)) > 1
        if differs and begin is None:
            begin = number
        elif not differs and begin is not None:
            yield begin, number
            begin = None
    if begin is not None:
        yield begin, number + 1


def log_difference(verdict: Verdict) -> Difference:
    """Returns the text about a divergence of the log."""
    divergence, brokers = verdict.divergence, verdict.wrong or verdict.undecided
    where = f"the log differs in {divergence.start}..{divergence.end}"
    parts = [f"damaged at {each}: {why}" for each, why in sorted(divergence.damaged.items())]
    outvoted = [each for each in verdict.wrong if each not in divergence.damaged]
    if outvoted:
        parts.append(f"{', '.join(outvoted)} differs from the majority, {', '.join(verdict.right)}")
    elif verdict.right:
        parts.append(f"sound at {', '.join(verdict.right)}")
    unchecked = [each for each in verdict.undecided if each in divergence.unchecked]
    parts += [f"not checked at {each}: {divergence.unchecked[each]}" for each in unchecked]
    sound = [each for each in verdict.undecided if each not in divergence.unchecked]
    if sound:
        same = len({divergence.crcs[each] for each in sound}) == 1
        parts.append(f"whole at {', '.join(sound)}{'' if same else ', but not the same'}")
    if not verdict.right and len(verdict.wrong) < len(divergence.crcs):
        parts.append("it is not known which copy is right")
    elif not verdict.right:
        parts.append("no replica has a sound copy")
    return Difference("log", brokers, f"{where}: {'; '.join(parts)}", divergence.start, bool(verdict.right))


def queue_differences(answers: Mapping[str, Mapping[tuple[str, int], QueueChecksum]]) -> list[Difference]:
    """Returns the queues whose entries for the same part of the log differ."""
    found = []
    for key in sorted({key for queues in answers.values() for key in queues}):
        values = {address: _entries(queues.get(key)) for address, queues in answers.items()}
        odd, is_decided = odd_ones(values)
        if odd:
            shown = "; ".join(f"{each}: {_told(values[each])}" for each in sorted(values))
            found.append(Difference("queue", odd, f"{key[0]} {key[1]}: {shown}", is_decided=is_decided))
    return found


def _entries(queue: QueueChecksum | None) -> tuple[int, int, int]:
    return (0, 0, 0) if queue is None else (queue.first_offset, queue.entries, queue.crc)


def _told(value: tuple[int, int, int]) -> str:
    first, count, crc = value
    return f"{count} entries from {first} on, checksum {crc:08x}" if count else "no entries"


def newest_tables(digests: Mapping[str, ReplicaDigest], master: str | None) -> dict[str, DataVersion]:
    """Returns name -> the version that all replicas must reach: the newest, also if it is not the master's,
    since versions begin with the masterEpoch. Without controllers it is the master's: slaves poll it."""
    has_epochs = any(each.epochs for each in digests.values())
    if master is not None and master in digests and not has_epochs:
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
    a version that is newer has been replicated since then. Of two tables with the same version and another
    time, nothing shows which is right."""
    found = []
    for name, version in sorted(wanted.items()):
        held = {address: each.tables.get(name) for address, each in digests.items()}
        behind = sorted(each for each, at in held.items() if at is None or _order(at) < _order(version))
        same = {each: at for each, at in held.items() if at is not None and _order(at) == _order(version)}
        times = {at.timestamp for at in same.values()} | {version.timestamp}
        if behind:
            shown = "; ".join(f"{each}: {_version(held[each])}" for each in behind)
            text = f"{name}: {_version(version)} is wanted; {shown}"
            found.append(Difference("metadata", tuple(behind), text))
        if len(times) > 1:
            shown = "; ".join(f"{each}: {at.timestamp}" for each, at in sorted(same.items()))
            text = f"{name}: {_version(version)} has more than one time: {shown}"
            found.append(Difference("metadata", tuple(sorted(same)), text, is_decided=False))
    return found


def _order(version: DataVersion) -> tuple[int, int]:
    return version.state_version, version.counter


def _version(version: DataVersion | None) -> str:
    return "none" if version is None else f"version {version.state_version}.{version.counter}"
