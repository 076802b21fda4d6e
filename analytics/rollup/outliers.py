"""Which hours a run is about. Those that a wrong clock made are left out, so that they stretch nobody's time
axis, and named."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from analytics.compaction.manifest import HourManifest

EARLIEST_TS = 1_420_070_400_000
"""2015-01-01."""

HOUR_MS = 3_600_000
AHEAD_MS = HOUR_MS
GAP_MS = 7 * 24 * HOUR_MS
STRAY_ROWS_SHARE = 0.001

Reason = Literal["before 2015", "in the future", "far from the other hours"]


def outlier_hours(rows: Mapping[int, int], now_ms: int) -> dict[int, Reason]:
    """Returns the hours (ms of their beginning) to leave out, and why. `rows`: how many each has.

    Far: a run of hours, more than GAP_MS from every other one, with less than STRAY_ROWS_SHARE of all rows.
    """
    found: dict[int, Reason] = {}
    rest: list[int] = []
    for hour_ts in sorted(rows):
        if hour_ts < EARLIEST_TS:
            found[hour_ts] = "before 2015"
        elif hour_ts > now_ms + AHEAD_MS:
            found[hour_ts] = "in the future"
        else:
            rest.append(hour_ts)
    total = sum(rows[hour_ts] for hour_ts in rest)
    for run in _runs(rest):
        if sum(rows[hour_ts] for hour_ts in run) < total * STRAY_ROWS_SHARE:
            found |= dict.fromkeys(run, "far from the other hours")
    return found


def _runs(hours: list[int]) -> list[list[int]]:
    """Returns the ascending hours in runs that are more than GAP_MS apart."""
    runs: list[list[int]] = []
    for hour_ts in hours:
        if not runs or hour_ts - (runs[-1][-1] + HOUR_MS) > GAP_MS:
            runs.append([])
        runs[-1].append(hour_ts)
    return runs


@dataclass(frozen=True, slots=True)
class Selection:
    """`hours`: in ascending order. `left_out`: the hours of wrong clocks, their rows and why."""

    hours: list[HourManifest]
    left_out: dict[int, tuple[int, Reason]]


def select_hours(
    manifests: Sequence[HourManifest], now_ms: int, *, from_ts: int | None = None, to_ts: int | None = None
) -> Selection:
    """Returns the hours that overlap [from_ts, to_ts) and have rows. An hour that the user asks for by both
    ends is never an outlier."""
    rows = {each.hour_ts: sum(part.rows for of in each.parts.values() for part in of) for each in manifests}
    asked = {
        hour_ts: count
        for hour_ts, count in rows.items()
        if count and (from_ts is None or hour_ts + HOUR_MS > from_ts) and (to_ts is None or hour_ts < to_ts)
    }
    is_bounded = from_ts is not None and to_ts is not None
    gone = {} if is_bounded else outlier_hours(asked, now_ms)
    kept = asked.keys() - gone.keys()
    return Selection(
        sorted((each for each in manifests if each.hour_ts in kept), key=lambda each: each.hour_ts),
        {hour_ts: (rows[hour_ts], reason) for hour_ts, reason in gone.items()},
    )
