"""Hours that exist because of a wrong clock: they would stretch the time axis of all groups."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Literal

from analytics.compaction.manifest import HourManifest

EARLIEST_TS = 1_420_070_400_000
"""2015-01-01."""

HOUR_MS = 3_600_000
AHEAD_MS = HOUR_MS
GAP_MS = 7 * 24 * HOUR_MS
STRAY_ROWS_SHARE = 0.001
STRAY_RATE_SHARE = 0.5
STRAY_WRITERS_SHARE = 0.25

Reason = Literal["before 2015", "in the future", "far from the other hours"]


def outliers_of(manifests: Iterable[HourManifest], now_ms: int) -> dict[int, Reason]:
    """Returns the hours to leave out, of those with rows: see outlier_hours()."""
    with_rows = {each.hour_ts: each for each in manifests if each.rows}
    writers = {hour_ts: len({writer.key for writer in each.writers}) for hour_ts, each in with_rows.items()}
    most = max(writers.values(), default=0)
    shares = {hour_ts: count / most for hour_ts, count in writers.items() if count}
    return outlier_hours({hour_ts: each.rows for hour_ts, each in with_rows.items()}, now_ms, shares)


def outlier_hours(
    rows: Mapping[int, int], now_ms: int, writers: Mapping[int, float] | None = None
) -> dict[int, Reason]:
    """Returns the hours (ms of their beginning) to leave out, and why. `rows`: how many each has; `writers`:
    what share it has of the number of writers of the hour with most of them, where that is known.

    Far: a run of hours, more than GAP_MS from every other one and from now, with less than STRAY_ROWS_SHARE
    of all rows, and in none of its hours STRAY_RATE_SHARE of the rows of a usual hour (the median). A wrong
    clock is that of one broker. The first hours after a long pause are few as well, but they have the rows of
    all brokers, or they are close to now. The newest run stays if STRAY_WRITERS_SHARE of the writers are in
    it, however little they wrote, and whenever it is looked at.
    """
    writers = writers or {}
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
    runs = runs_of(rest, GAP_MS)
    for run in runs:
        is_small = sum(rows[hour_ts] for hour_ts in run) < total * STRAY_ROWS_SHARE
        is_partial = max(rows[hour_ts] for hour_ts in run) < usual * STRAY_RATE_SHARE
        is_back = run is runs[-1] and max(writers.get(each, 0) for each in run) >= STRAY_WRITERS_SHARE
        if is_small and is_partial and not is_back and now_ms - (run[-1] + HOUR_MS) > GAP_MS:
            found |= dict.fromkeys(run, "far from the other hours")
    return found


def runs_of(hours: Iterable[int], gap_ms: int) -> list[list[int]]:
    """Returns the ascending hours in runs that are more than `gap_ms` apart."""
    runs: list[list[int]] = []
    for hour_ts in hours:
        if not runs or hour_ts - (runs[-1][-1] + HOUR_MS) > gap_ms:
            runs.append([])
        runs[-1].append(hour_ts)
    return runs
