"""Which compacted hours the roll-up of an hour reads.

An hour of the roll-ups is one of the controllers' clock, a compacted hour one of the writers' clocks. If no
clock is off, they are the same. Otherwise rows of an hour are also in other compacted hours, and some rows of
the compacted hour are of other hours. Clock samples show which: always those of the same hours, whatever
hours are read together, so that each row is in the roll-up of one hour.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from analytics.compaction.manifest import HourManifest
from analytics.compaction.times import HOLD_MS, HOUR_MS
from analytics.tables import CLOCK_SAMPLE

HOLD_HOURS = HOLD_MS // HOUR_MS


@dataclass(frozen=True, slots=True)
class Inputs:
    """`hours`: the compacted hours, ascending, whose rows are read; of these, rows count whose corrected ts
    is in the hour. `clock_hours`: those whose clock samples give the offsets; none: no row is corrected, and
    `hours` is the hour alone.

    Controllers' events are by the controllers' clock: only those of the hour itself count.
    """

    hours: Sequence[HourManifest]
    clock_hours: Sequence[HourManifest] = ()

    @property
    def parts(self) -> list[str]:
        """The paths of all parts that are read, below OUT, sorted."""
        found = {path for each in self.hours for path in each.paths()}
        found |= {part.path for each in self.clock_hours for part in each.parts.get(CLOCK_SAMPLE.name, ())}
        return sorted(found)


def inputs_of(manifests: Iterable[HourManifest]) -> Mapping[int, Inputs]:
    """Returns what the roll-up of each of these hours reads, by hour_ts.

    `manifests`: of all compacted hours, those of wrong clocks too. Hours whose manifest has nothing about
    clocks count as if they had no clock samples.
    """
    of_hour = {each.hour_ts: each for each in manifests}
    by_clock = read_by_a_clock(of_hour.values())
    found = {}
    for hour_ts, manifest in sorted(of_hour.items()):
        rows = {hour_ts} | {
            hour_ts + by * HOUR_MS
            for near in around(hour_ts)
            if near in of_hour
            for shift in of_hour[near].shifts
            for by in (shift, shift + 1)
        }
        rows &= of_hour.keys()
        if not any(by_clock.get(each) for each in rows):
            found[hour_ts] = Inputs((manifest,))
            continue
        clocks = {hour for each in rows for hour in (*by_clock.get(each, ()), *around(each))}
        with_samples = [of_hour[each] for each in sorted(clocks & of_hour.keys()) if of_hour[each].clocks]
        found[hour_ts] = Inputs([of_hour[each] for each in sorted(rows)], with_samples)
    return found


def read_by_a_clock(manifests: Iterable[HourManifest]) -> Mapping[int, set[int]]:
    """Returns for each compacted hour the hours with a clock that is off, and whose offset may count there:
    also HOLD_MS before and after."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for each in manifests:
        for shift in each.shifts:
            for by in range(shift - HOLD_HOURS, shift + 1 + HOLD_HOURS + 1):
                found[each.hour_ts + by * HOUR_MS].add(each.hour_ts)
    return found


def around(hour_ts: int) -> list[int]:
    """Returns the hours whose offsets may count in an hour."""
    return [hour_ts + by * HOUR_MS for by in range(-HOLD_HOURS, HOLD_HOURS + 1)]
