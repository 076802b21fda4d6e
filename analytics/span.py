"""Which hours a run looks at, where they end, and how wide its finest windows are."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from analytics.compaction.manifest import HourManifest
from analytics.compaction.times import HOUR_MS
from analytics.errors import AnalyticsError
from analytics.rollup.edges import LOOK_BACK_MS, Spell, Spells, edge_of
from analytics.rollup.inputs import around, read_by_a_clock
from analytics.rollup.outliers import outliers_of, runs_of
from analytics.tables import Table

MINUTE_MS = 60_000
FINE_MS = (1_000, 5_000)
FINE_POINTS_MAX = 2_000
"""Windows finer than minutes only for a span that fits on a page: a demo, an incident."""
AFTER_THE_OTHERS = "after the other writers' end"


@dataclass(frozen=True, slots=True)
class Span:
    """`hours`: the manifests that count; `outliers`: those of wrong clocks. `moved`: those whose rows are all
    of other hours by the controllers' clock, and read with them. [from_ts, to_ts): the rows, by that clock.
    """

    hours: Sequence[HourManifest]
    outliers: Sequence[HourManifest]
    from_ts: int
    to_ts: int
    moved: Sequence[HourManifest] = ()
    ends: Mapping[int, int] = field(default_factory=dict)
    """Up to when each hour has rows, exclusive, by hour_ts; to its end if only a moment is missing."""

    def rows_of(self, tables: Iterable[Table]) -> int:
        """Returns the number of compacted rows of these tables."""
        names = [each.name for each in tables]
        return sum(part.rows for each in self.hours for name in names for part in each.parts.get(name, ()))


def span_of(
    manifests: Sequence[HourManifest],
    *,
    now_ms: int,
    from_ts: int | None,
    to_ts: int | None,
    progress: Callable[[str], None],
) -> Span:
    """Returns the hours within [from_ts, to_ts), without those of wrong clocks; with both bounds all of them,
    because the user decides which hours are right. Raises AnalyticsError if none is left.

    One writer's wrong clock moves neither the end of the span nor that of an hour: see rollup/edges.py.
    """
    within = [
        each
        for each in manifests
        if (from_ts is None or each.hour_ts + HOUR_MS > from_ts) and (to_ts is None or each.hour_ts < to_ts)
    ]
    with_rows = {each.hour_ts: each for each in within if each.rows}
    is_bounded = from_ts is not None and to_ts is not None
    reasons: dict[int, str] = {} if is_bounded else {**outliers_of(with_rows.values(), now_ms)}
    axis = _Axis(manifests, with_rows, reasons, now_ms)
    for run in runs_of(axis.hours, LOOK_BACK_MS):
        edge = axis.edge(run[-1], until_ts=None)
        reasons |= dict.fromkeys((hour_ts for hour_ts in run if hour_ts > edge), AFTER_THE_OTHERS)
    _tell(reasons, with_rows, progress)
    hours = [hour_ts for hour_ts in axis.hours if hour_ts not in reasons]
    if not hours:
        bad = sum(
            count for each in manifests for of in each.counts.values() for count in of.bad_lines.values()
        )
        raise AnalyticsError(
            f"no record to analyse: {len(manifests)} hours are compacted, {len(within)} of them within "
            f"--from and --to, {len(reasons)} left out for their clocks; {bad:,} damaged lines"
        )
    followed = {hour_ts - HOUR_MS for hour_ts in hours}
    ends = {hour_ts: axis.end(hour_ts, has_next=hour_ts in followed) for hour_ts in hours}
    return Span(
        [with_rows[hour_ts] for hour_ts in hours],
        [each for hour_ts, each in with_rows.items() if hour_ts in reasons],
        axis.start(hours[0]),
        axis.edge(hours[-1], until_ts=hours[-1] + HOUR_MS) + 1,
        [with_rows[hour_ts] for hour_ts in axis.moved],
        {hour_ts: end_of_hour(hour_ts, end) for hour_ts, end in ends.items()},
    )


class _Axis:
    """The hours of the controllers' clock, of compacted ones. `hours`: those with rows, ascending; `moved`:
    compacted hours whose rows are all of others. Takes the moved ones out of `reasons`."""

    def __init__(
        self,
        manifests: Sequence[HourManifest],
        with_rows: Mapping[int, HourManifest],
        reasons: dict[int, str],
        now_ms: int,
    ) -> None:
        self._now_ms = now_ms
        self._with_rows, self._spells = with_rows, Spells(manifests)
        by_clock = read_by_a_clock(manifests)
        self.moved = [each for each in sorted(with_rows) if each in by_clock and not self._is_in(each)]
        for hour_ts in self.moved:
            reasons.pop(hour_ts, None)
        self.hours = [each for each in sorted(with_rows) if each not in reasons and each not in self.moved]

    def edge(self, hour_ts: int, *, until_ts: int | None) -> int:
        """Returns the last moment of the rows up to this hour; see rollup/edges.py."""
        found = edge_of(self._near(hour_ts), now_ms=self._now_ms, until_ts=until_ts)
        return hour_ts if found is None else found

    def end(self, hour_ts: int, *, has_next: bool) -> int:
        """Returns the last moment of an hour: in front of a pause, where most writers end."""
        if not has_next and (found := self.edge(hour_ts, until_ts=hour_ts + HOUR_MS)) >= hour_ts:
            return found
        return max((part.max_ts for part in self._with_rows[hour_ts].all_parts()), default=hour_ts)

    def start(self, hour_ts: int) -> int:
        """Returns the first moment of the rows from this hour on."""
        near = [each for each in (*around(hour_ts), *self.moved) if each in self._with_rows]
        found = [spell.from_ts for each in near for spell in self._spells.of(each) if spell.to_ts >= hour_ts]
        return max(min(found, default=hour_ts), hour_ts)

    def _near(self, hour_ts: int) -> list[Spell]:
        """The writers of the last day, and those whose clocks moved their rows elsewhere."""
        first_ts, next_ts = hour_ts - LOOK_BACK_MS, hour_ts + HOUR_MS
        hours = [each for each in self.hours if first_ts <= each < next_ts]
        return [
            spell
            for each in (*hours, *self.moved)
            for spell in self._spells.of(each)
            if first_ts <= spell.to_ts and spell.from_ts < next_ts
        ]

    def _is_in(self, hour_ts: int) -> bool:
        """Returns whether a row of this compacted hour is of this hour."""
        return any(
            each.from_ts < hour_ts + HOUR_MS and each.to_ts >= hour_ts for each in self._spells.of(hour_ts)
        )


def _tell(
    reasons: Mapping[int, str], manifests: Mapping[int, HourManifest], progress: Callable[[str], None]
) -> None:
    for reason in sorted(set(reasons.values())):
        left_out = [hour for hour, why in reasons.items() if why == reason]
        count = sum(manifests[hour].rows for hour in left_out)
        progress(f"left out: {count:,} rows of {len(left_out)} hours {reason} (wrong clocks)")


def end_of_hour(hour_ts: int, last_ts: int) -> int:
    """Returns up to when an hour counts whose last row is at `last_ts`, exclusive: to its end, if only a
    moment is missing."""
    whole = hour_ts + HOUR_MS
    return whole if last_ts >= whole - 2_000 else last_ts + 1


def fine_window_ms(span: Span) -> int | None:
    """Returns the width of windows below a minute that a short span is shown with; None: minutes do."""
    if span.to_ts - span.from_ts > FINE_POINTS_MAX * FINE_MS[-1]:
        return None
    return next((each for each in FINE_MS if (span.to_ts - span.from_ts) / each <= FINE_POINTS_MAX), None)
