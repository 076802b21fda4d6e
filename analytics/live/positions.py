"""Which bytes of which growing files a batch reads: the positions of the live tables.

Positions are plain JSON: the embedded loop keeps them in a file, Spark in its checkpoint. A batch is a pair
of them. A file is known by its name without ".open", which it loses when its hour is over.
Files of hours before `from_hour` are left to the batch job: live pages have none of their minutes, and after
a long stop reading them would take as long as the batch job takes.
"""

import calendar
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

HOURS_KEPT = 2
"""Full hours before the current one whose files are still followed."""

_HOUR = re.compile(r"/dt=(\d{4})-(\d\d)-(\d\d)/hour=(\d\d)/", re.ASCII)


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes [start, end) of a file; both are at the beginning of a line."""

    name: str
    start: int
    end: int

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Positions:
    """`files`: bytes that were read, by name. `from_hour`: the oldest hour since 1970 that is followed."""

    from_hour: int
    files: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Returns the input of of_json(), with the files in order."""
        return {"from_hour": self.from_hour, "files": dict(sorted(self.files.items()))}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "Positions":
        return cls(int(value["from_hour"]), {str(name): int(at) for name, at in value["files"].items()})


def hour_of(name: str) -> int | None:
    """Returns the hour since 1970 in the names of a file's folders; None: there is none."""
    match = _HOUR.search(name)
    if match is None:
        return None
    year, month, day, hour = map(int, match.groups())
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour <= 23 and year >= 1970):
        return None
    return calendar.timegm((year, month, day, hour, 0, 0)) // 3_600


def followed_from(start: Positions, hour: int) -> int:
    """Returns the oldest hour that is followed. `hour`: the current one; if it is smaller than before, the
    clock was ahead and has been corrected."""
    return min(max(start.from_hour, hour - HOURS_KEPT), hour)


def advance(start: Positions, sizes: Mapping[str, int], *, hour: int, bytes_max: int) -> Positions:
    """Returns the positions after the next batch, which reads at most `bytes_max` bytes; older hours first.

    `sizes`: bytes of each file now, up to the end of its last whole line. `hour`: the current one. A file
    that disappeared or became shorter keeps its position while its hour is followed. Where bytes_max ends a
    range within a line, the caller moves that end to the beginning of a line.
    """
    from_hour, left = followed_from(start, hour), bytes_max
    hours = {name: at for name in {*sizes, *start.files} if (at := hour_of(name)) is not None}
    files = {name: at for name, at in start.files.items() if hours.get(name, -1) >= from_hour}
    followed = [name for name in sizes if hours.get(name, -1) >= from_hour]
    for name in sorted(followed, key=lambda each: (hours[each], each)):
        at = files.get(name, 0)
        if sizes[name] > at and left > 0:
            files[name] = min(sizes[name], at + left)
            left -= files[name] - at
    return Positions(from_hour, files)


def ranges(start: Positions, end: Positions) -> Iterator[Range]:
    """Yields the ranges that a batch from `start` to `end` reads, by name."""
    for name, to in sorted(end.files.items()):
        at = start.files.get(name, 0)
        if to > at:
            yield Range(name, at, to)
