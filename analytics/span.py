"""Which hours a run looks at, and how wide its finest windows are."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from analytics.compaction.manifest import HourManifest
from analytics.errors import AnalyticsError
from analytics.rollup.outliers import outlier_hours
from analytics.tables import Table

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
FINE_MS = (1_000, 5_000)
FINE_POINTS_MAX = 2_000
"""Windows finer than minutes only for a span that fits on a page: a demo, an incident."""


@dataclass(frozen=True, slots=True)
class Span:
    """`hours`: the manifests that count; `outliers`: those of wrong clocks. [from_ts, to_ts): their rows."""

    hours: Sequence[HourManifest]
    outliers: Sequence[HourManifest]
    from_ts: int
    to_ts: int

    def rows_of(self, tables: Iterable[Table]) -> int:
        """Returns the number of compacted rows of these tables."""
        names = [each.name for each in tables]
        return sum(part.rows for each in self.hours for name in names for part in each.parts.get(name, ()))

    @property
    def ends(self) -> dict[int, int]:
        """Returns up to when each hour has rows, exclusive; to its end if only a moment is missing."""
        found = {}
        for each in self.hours:
            last = max((part.max_ts for part in each.all_parts()), default=each.hour_ts)
            whole = each.hour_ts + HOUR_MS
            found[each.hour_ts] = whole if last >= whole - 2_000 else last + 1
        return found


def span_of(
    manifests: Sequence[HourManifest],
    *,
    now_ms: int,
    from_ts: int | None,
    to_ts: int | None,
    progress: Callable[[str], None],
) -> Span:
    """Returns the hours within [from_ts, to_ts), without those of wrong clocks; with both bounds all of them,
    because the user says which hours are right. Raises AnalyticsError if none is left."""
    within = [
        each
        for each in manifests
        if (from_ts is None or each.hour_ts + HOUR_MS > from_ts) and (to_ts is None or each.hour_ts < to_ts)
    ]
    rows = {each.hour_ts: each.rows for each in within if each.rows}
    is_bounded = from_ts is not None and to_ts is not None
    reasons = {} if is_bounded else outlier_hours(rows, now_ms)
    for reason in sorted(set(reasons.values())):
        left_out = [hour for hour, why in reasons.items() if why == reason]
        count = sum(rows[hour] for hour in left_out)
        progress(f"left out: {count:,} rows of {len(left_out)} hours {reason} (wrong clocks)")
    hours = [each for each in within if each.hour_ts not in reasons and each.rows]
    parts = [part for each in hours for part in each.all_parts()]
    if not parts:
        bad = sum(
            count for each in manifests for of in each.counts.values() for count in of.bad_lines.values()
        )
        raise AnalyticsError(
            f"no record to analyse: {len(manifests)} hours are compacted, {len(within)} of them within "
            f"--from and --to, {len(reasons)} left out for their clocks; {bad:,} damaged lines"
        )
    return Span(
        hours,
        [each for each in within if each.hour_ts in reasons],
        min(part.min_ts for part in parts),
        max(part.max_ts for part in parts) + 1,
    )


def fine_window_ms(span: Span) -> int | None:
    """Returns the width of windows below a minute that a short span is shown with; None: minutes do."""
    if span.to_ts - span.from_ts > FINE_POINTS_MAX * FINE_MS[-1]:
        return None
    return next((each for each in FINE_MS if (span.to_ts - span.from_ts) / each <= FINE_POINTS_MAX), None)
