"""The end of records: the time at which most of their writers end, by the controllers' clock, never by one
writer's.

A broker whose clock was measured counts as corrected; it is `known`, and so is a controller that measured
clocks. If any writer is known, a broker that is not known does not move the end.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from analytics.compaction.manifest import HourManifest
from analytics.compaction.times import HOLD_MS, HOUR_MS, OFFSET_MAX_MS, BrokerKey, Writer
from analytics.rollup.inputs import around
from analytics.tables import CLOCK_SAMPLE

NEAR_MS = 90_000
"""Writers whose last rows are this close end together: a controller writes about once a minute."""
ACTIVE_MS = 2 * HOUR_MS
"""Writers that ended this long before an end still count among those that could confirm it."""
LOOK_BACK_MS = 24 * HOUR_MS
"""Writers that ended earlier than this before an end do not count for it."""
WRITERS_SHARE = 4
"""Of writers of unknown clocks, one in this many must confirm an end."""


@dataclass(frozen=True, slots=True)
class Spell:
    """From when to when a writer has rows in a compacted hour, both included; by the controllers' clock if
    the writer's is known."""

    writer: object
    from_ts: int
    to_ts: int
    is_known: bool


class Spells:
    """The writers of compacted hours. `manifests`: of all of them, those of wrong clocks too."""

    def __init__(self, manifests: Iterable[HourManifest]) -> None:
        self._hours = {each.hour_ts: each for each in manifests}
        self._measured: dict[int, set[BrokerKey]] = {}
        self._measuring: set[BrokerKey] = set()
        self._offsets: defaultdict[BrokerKey, list[tuple[int, int]]] = defaultdict(list)
        for hour_ts, each in sorted(self._hours.items()):
            self._measured[hour_ts] = {clock.key for clock in each.clocks}
            for clock in each.clocks:
                self._offsets[clock.key].append((hour_ts, clock.offset_ms))
            if CLOCK_SAMPLE.name in each.times:
                self._measuring |= {writer.key for writer in each.times[CLOCK_SAMPLE.name].writers}
        self._is_off = {key for key, found in self._offsets.items() if any(offset for _, offset in found)}
        self._found: dict[int, list[Spell]] = {}

    def of(self, hour_ts: int) -> list[Spell]:
        """Returns the writers of this compacted hour; one for all, if its manifest does not list them."""
        if hour_ts not in self._found:
            manifest = self._hours[hour_ts]
            found = [self._spell(writer, hour_ts) for writer in manifest.writers]
            if not manifest.times:
                parts = manifest.all_parts()
                first_ts = min((part.min_ts for part in parts), default=hour_ts)
                last_ts = max((part.max_ts for part in parts), default=hour_ts)
                found = [Spell(hour_ts, first_ts, last_ts, is_known=False)]
            self._found[hour_ts] = found
        return self._found[hour_ts]

    def _spell(self, writer: Writer, hour_ts: int) -> Spell:
        if writer.key in self._measuring:
            return Spell(writer.key, writer.first_ts, writer.last_ts, is_known=True)
        if writer.key not in self._is_off:
            is_known = any(writer.key in self._measured.get(near, ()) for near in around(hour_ts))
            return Spell(writer.key, writer.first_ts, writer.last_ts, is_known)
        measured = self._offsets[writer.key]
        reach = OFFSET_MAX_MS + HOLD_MS + HOUR_MS
        low = bisect_left(measured, (hour_ts - reach, -OFFSET_MAX_MS))
        near = measured[low : bisect_right(measured, (hour_ts + reach, OFFSET_MAX_MS))]
        first, last = offset_at(writer.first_ts, near), offset_at(writer.last_ts, near)
        begin, end = sorted((writer.first_ts + (first or 0), writer.last_ts + (last or 0)))
        return Spell(writer.key, begin, end, is_known=last is not None)


def offset_at(own_ts: int, offsets: Iterable[tuple[int, int]]) -> int | None:
    """Returns the offset of a broker's clock when it showed own_ts; None: it was not measured around then.

    `offsets`: (hour_ts, offset_ms) by hours of the controllers' clock. Of several the nearest counts, then
    the smallest.
    """

    def away(hour_ts: int, offset_ms: int) -> int:
        moment = own_ts + offset_ms
        return max(hour_ts - moment, moment - (hour_ts + HOUR_MS - 1), 0)

    near = [(away(*each), abs(each[1]), each[1]) for each in offsets]
    distance, _, offset = min(near, default=(HOLD_MS + 1, 0, 0))
    return offset if distance <= HOLD_MS else None


def edge_of(spells: Iterable[Spell], *, now_ms: int, until_ts: int | None = None) -> int | None:
    """Returns the last moment of these rows, before `until_ts`. None: there is none.

    Of known clocks, the latest end that a second writer confirms. Of unknown ones, the latest that a quarter
    of the writers of that time confirm, and two at least. The present moment confirms as well: a writer that
    writes now has a right clock. If no writer confirms another, the latest end.
    """
    ends: dict[object, tuple[int, bool]] = {}
    for each in spells:
        if until_ts is not None and each.from_ts >= until_ts:
            continue
        ts = each.to_ts if until_ts is None else min(each.to_ts, until_ts - 1)
        ends[each.writer] = max((ts, each.is_known), ends.get(each.writer, (ts, each.is_known)))
    known = [ts for ts, is_known in ends.values() if is_known]
    moments = sorted(known or [ts for ts, _ in ends.values()])
    for ts in reversed(moments):
        confirming = bisect_right(moments, ts) - bisect_left(moments, ts - NEAR_MS)
        if abs(now_ms - ts) <= NEAR_MS:
            return ts
        alive = len(moments) - bisect_left(moments, ts - ACTIVE_MS)
        lately = len(moments) - bisect_left(moments, ts - LOOK_BACK_MS)
        wanted = 2 if known else max(2, -(-alive // WRITERS_SHARE))
        if confirming >= min(lately, wanted):
            return ts
    return moments[-1] if moments else None
