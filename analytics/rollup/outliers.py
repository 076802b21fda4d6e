"""Hours that a wrong clock made: they would stretch everybody's time axis."""

from collections.abc import Mapping
from typing import Literal

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
