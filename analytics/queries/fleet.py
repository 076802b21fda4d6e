"""The fleet's numbers: a row for each group, the cells of the heat map, and incidents.

All are of the same windows of a minute: a group's worst p99 is the p99 of its worst minute, and the highest
of its cells.
"""

from collections.abc import Callable
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.queries.incidents import WINDOW_MS, FleetFrames, births, incidents, max_ms, p99_ms
from analytics.queries.kept import kept
from analytics.queries.windows import all_rows, window_of
from analytics.tables import GROUP

HEAT_CELLS_MAX = 48
HOUR_MS = 3_600_000
TOTALS = ("elections", "unclean_elections", "shrinks", "flaps")


def shown(from_ts: int, to_ts: int) -> tuple[int, int, int]:
    """Returns the time that the fleet's page shows of a run over [from_ts, to_ts), and the width of its
    cells: (start, end, cell_ms). Minutes if they fit into the heat map, else the last hours."""
    end = -(-to_ts // WINDOW_MS) * WINDOW_MS
    start = from_ts - from_ts % WINDOW_MS
    if end - start <= HEAT_CELLS_MAX * WINDOW_MS:
        return start, end, WINDOW_MS
    last = -(-to_ts // HOUR_MS) * HOUR_MS - HEAT_CELLS_MAX * HOUR_MS
    return max(from_ts - from_ts % HOUR_MS, last), end, HOUR_MS


def fleet_tables(
    frames: FleetFrames,
    groups: DataFrame,
    *,
    from_ts: int,
    to_ts: int,
    cell_ms: int,
    kept: Callable[[DataFrame], DataFrame] = kept,
) -> dict[str, DataFrame]:
    """Returns the run tables by name: incidents, fleet, heat. `groups`: their names, each once. The bounds:
    see shown()."""
    groups = kept(groups)
    cells = kept(heat(frames, cell_ms=cell_ms))
    found = kept(incidents(frames, groups, from_ts=from_ts, to_ts=to_ts, kept=kept))
    return {
        "incidents": found,
        "fleet": fleet(frames, groups, cells, found, from_ts=from_ts, to_ts=to_ts),
        "heat": cells,
    }


def groups_of(*frames: DataFrame) -> DataFrame:
    """Returns the names of the groups in these frames, each once."""
    return reduce(DataFrame.unionByName, (each.select(*GROUP) for each in frames)).distinct()


def heat(frames: FleetFrames, *, cell_ms: int) -> DataFrame:
    """Returns one row per group and cell: window_ts, cell_ms, ms_p99 and ms_max (of the worst minute),
    below_min_ms and unknown_ms (of all minutes). NULL: not known in any of them."""
    window_ts = window_of(F.col("window_ts"), cell_ms)
    lag = frames.lag.select(
        *GROUP, window_ts.alias("window_ts"), p99_ms().alias("ms_p99"), max_ms().alias("ms_max")
    )
    state = frames.group_state.select(*GROUP, window_ts.alias("window_ts"), "below_min_ms", "unknown_ms")
    names = ("ms_p99", "ms_max", "below_min_ms", "unknown_ms")
    return (
        all_rows([lag, state])
        .groupBy(*GROUP, "window_ts")
        .agg(
            F.lit(cell_ms).cast("bigint").alias("cell_ms"),
            *(F.max(name).alias(name) for name in names[:2]),
            *(F.sum(name).alias(name) for name in names[2:]),
        )
    )


def fleet(
    frames: FleetFrames,
    groups: DataFrame,
    cells: DataFrame,
    found: DataFrame,
    *,
    from_ts: int,
    to_ts: int,
) -> DataFrame:
    """Returns one row per group.

    worst_ms, worst_p99_ms: the highest lag and the highest p99 of a minute; unknown_total_ms: time without a
    known state, a new group's since its first election; incidents, score (the sum of their severity): of
    [from_ts, to_ts). Of the whole run: below_ms, availability, elections, unclean_elections, shrinks, flaps,
    failovers, longest_gap_ms.
    """
    worst = cells.groupBy(*GROUP).agg(
        F.max("ms_max").alias("worst_ms"), F.max("ms_p99").alias("worst_p99_ms")
    )
    known_ms = WINDOW_MS - F.coalesce(F.col("unknown_ms"), F.lit(0))
    known = frames.group_state.groupBy(*GROUP).agg(
        F.sum(known_ms).alias("_known_ms"), F.min("window_ts").alias("_first_ts")
    )
    born = births(frames.sync_state_set_changes).groupBy(*GROUP).agg(F.min("birth_ts").alias("_birth_ts"))
    totals = frames.group_totals.select(
        *GROUP, F.col("below_min_ms").alias("below_ms"), "availability", *TOTALS
    )
    switched = frames.failovers.groupBy(*GROUP).agg(
        F.count("*").alias("failovers"), F.max("gap_ms").alias("longest_gap_ms")
    )
    of_incidents = found.groupBy(*GROUP).agg(
        F.count("*").alias("incidents"), F.sum("severity").alias("score")
    )
    joined = groups
    for each in (worst, known, born, totals, switched, of_incidents):
        joined = joined.join(each, [*GROUP], "left")
    # a first election before the first window is one of older controllers, whose time is known
    begins = F.when(F.col("_birth_ts") >= F.col("_first_ts"), F.col("_first_ts"))
    whole = F.lit(to_ts) - F.greatest(F.coalesce(begins, F.lit(from_ts)), F.lit(from_ts))
    unknown = F.greatest(whole - F.coalesce(F.col("_known_ms"), F.lit(0)), F.lit(0))
    counts = (*TOTALS, "failovers", "incidents", "score")
    return joined.select(
        *GROUP,
        "worst_ms",
        "worst_p99_ms",
        "below_ms",
        unknown.cast("bigint").alias("unknown_total_ms"),
        "availability",
        "longest_gap_ms",
        *(F.coalesce(F.col(name), F.lit(0)).cast("bigint").alias(name) for name in counts),
    )
