"""Checks of an output that an analyst can run: what is wrong or missing, how often, and what that means."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from analytics.compaction.manifest import COMPACTED
from analytics.compaction.parquet import verify_part
from analytics.compaction.storage import open_storage
from analytics.tables import GROUP, TABLES
from analytics.views.tables import Output, View

CHECKS_SCHEMA = (
    "check string, of string, cluster_name string, broker_name string, count bigint, meaning string"
)
SKEW_MS = 1_000

Row = tuple[str, str, str | None, str | None, int, str]
"""In the columns of CHECKS_SCHEMA."""

BAD_PARTS, STALE_FILES, NOT_ROLLED, KEY_TWICE = "bad_parts", "stale_files", "hours_not_rolled", "key_twice"
MEANINGS: Final[Mapping[str, str]] = {
    BAD_PARTS: "compacted files that are missing, damaged, or without some of their rows",
    STALE_FILES: "compacted files that no manifest names: replaced ones, deleted by a later run. Views leave "
    "them out; who reads the folder counts their rows twice",
    NOT_ROLLED: "hours that were compacted after their roll-up: the next run computes them",
    KEY_TWICE: "keys with more than one row: sums over this view are too high",
    "duplicates": "good lines that say again what another says; one of them was kept",
    "bad_lines": "lines of telemetry that are no record; the manifests list them",
    "outliers": "records of hours that were left out for their clocks",
    "unread_files": "files of telemetry that could not be read: compacted/not_read.json names them",
    "stale_master": "records of a master that was replaced already; lag leaves them out",
    "confirm_above_max": "samples with a confirmOffset above maxOffset: a defect; lag leaves them out",
    "epoch_gaps": "places where events of the controllers are missing: the state in between is not known",
    "logs": "logs of the controllers before the present one: they were built anew",
    "unknown_ms": "milliseconds in which the state of the group is not known",
    "skew": f"groups with a broker whose clock is {SKEW_MS} ms or more from the controllers'",
    "skew_unknown": "brokers whose clock is wrong by an unknown offset: their times are not corrected",
}
"""Every check, and what a count above 0 means."""

_SUMMED = (
    "duplicates", "bad_lines", "outliers", "unread_files", "stale_master", "confirm_above_max", "epoch_gaps",
    "unknown_ms", "skew_unknown",
)  # fmt: skip
_OTHERS = {
    "logs": "logs - 1",
    "skew": f"CASE WHEN skew_max_ms >= {SKEW_MS} THEN 1 WHEN skew_max_ms IS NOT NULL THEN 0 END",
}
"""Checks that are another expression over data_quality."""


def checks(spark: SparkSession, output: str) -> DataFrame:
    """Returns the checks of an output: check, of (a view, or a kind of record), cluster_name, broker_name,
    count, meaning.

    Each check has a row for everything together (group NULL), 0 if nothing is wrong, and one for each group
    with a count above 0. A view of which a file is bad is not read. Raises AnalyticsError: no output.
    """
    found = Output(spark, output)
    files = list(_of_files(found))
    bad = {of for check, of, *_, count, _ in files if check == BAD_PARTS and count}
    counted: list[DataFrame] = []
    for view in found.views():
        if view.table == "data_quality":
            counted += _of_quality(view.rows)
        if ("controller_event" if view.table == "refused_event" else view.table) not in bad:
            counted.append(_of_keys(view))
    # Few rows, a line per check and group: added up here, so the result needs no file any more.
    rows = reduce(DataFrame.unionAll, counted).collect()
    total = Counter[tuple[str, str]]()
    for check, of, _, _, count in rows:
        total[check, of] += count
    of_all = [(check, of, None, None, count, MEANINGS[check]) for (check, of), count in total.items()]
    groups = [(*row, MEANINGS[row["check"]]) for row in rows if row["count"] and row["broker_name"]]
    return spark.createDataFrame([*files, *of_all, *groups], CHECKS_SCHEMA)


def _of_files(found: Output) -> Iterator[Row]:
    """Yields the checks of the manifests and the folders."""
    with open_storage(found.store.out) as storage:
        for table in TABLES:
            parts = [part for each in found.manifests for part in each.parts.get(table.name, ())]
            wrong = [(part.path, why) for part in parts if (why := verify_part(storage, part))]
            first = f"; the first: {wrong[0][0]}: {wrong[0][1]}" if wrong else ""
            yield BAD_PARTS, table.name, None, None, len(wrong), MEANINGS[BAD_PARTS] + first
            named = {f"{found.store.url}/{each}" for each in found.all_parts}
            stale = {*found.store.files_in(f"{COMPACTED}/{table.name}")} - named
            yield STALE_FILES, table.name, None, None, len(stale), MEANINGS[STALE_FILES]
    late = len(found.store.stale(found.manifests, ()))
    yield NOT_ROLLED, "rollup", None, None, late, MEANINGS[NOT_ROLLED]


def _of_quality(quality: DataFrame) -> Iterator[DataFrame]:
    """Yields check, of, GROUP, count, for each count of data_quality."""
    for check, count in (dict(zip(_SUMMED, _SUMMED, strict=True)) | _OTHERS).items():
        rows = quality.select(
            F.lit(check).alias("check"),
            F.col("record").alias("of"),
            *GROUP,
            F.expr(count).cast("bigint").alias("count"),
        )
        yield rows.where("count IS NOT NULL")


def _of_keys(view: View) -> DataFrame:
    """Returns the same columns: the keys of each group that more than one row has."""
    keys = view.rows.groupBy(*view.key).agg(F.count(F.lit(1)).alias("_rows"))
    twice = F.sum(F.when(F.col("_rows") > 1, 1).otherwise(0)).alias("count")
    by_group = keys.groupBy(*GROUP).agg(twice)
    return by_group.select(F.lit(KEY_TWICE).alias("check"), F.lit(view.name).alias("of"), *GROUP, "count")
