"""Hours that a wrong clock made: they would stretch everybody's time axis."""

from collections.abc import Mapping
from statistics import median
from typing import Literal

EARLIEST_TS = 1_420_070_400_000
"""2015-01-01."""

HOUR_MS = 3_600_000
AHEAD_MS = HOUR_MS
GAP_MS = 7 * 24 * HOUR_MS
STRAY_ROWS_SHARE = 0.001
STRAY_RATE_SHARE = 0.5

Reason = Literal["before 2015", "in the future", "far from the other hours"]


def outlier_hours(rows: Mapping[int, int], now_ms: int) -> dict[int, Reason]:
    """Returns the hours (ms of their beginning) to leave out, and why. `rows`: how many each has.

    Far: a run of hours, more than GAP_MS from every other one and from now, with less than STRAY_ROWS_SHARE
    of all rows, and in none of its hours STRAY_RATE_SHARE of the rows of a usual hour (the median). A wrong
    clock is that of one broker. The first hours after a long pause are few as well, but they have the rows of
    all brokers, or they are close to now.
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
    usual = median(rows[hour_ts] for hour_ts in rest) if rest else 0
    for run in _runs(rest):
        is_small = sum(rows[hour_ts] for hour_ts in run) < total * STRAY_ROWS_SHARE
        is_partial = max(rows[hour_ts] for hour_ts in run) < usual * STRAY_RATE_SHARE
        if is_small and is_partial and now_ms - (run[-1] + HOUR_MS) > GAP_MS:
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
