"""The roll-ups of the last minutes, by the functions of the hourly job."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import DataFrame

from analytics.rollup.tables import TABLES, Hours
from analytics.tables import Table
from keelmq.web.page_files import STEP_MS

MINUTE_MS = STEP_MS["minute"]
NAMES = ("lag", "replica_lag")


@contextmanager
def minutes_of(tables: Mapping[str, DataFrame]) -> Iterator[dict[str, DataFrame]]:
    """Yields the roll-ups `lag` and `replica_lag` of all minutes in `tables`, and frees what they kept.

    `tables`: samples of these minutes, and of controllers' events all: a group's masterEpoch may have begun
    before.
    """

    def read(table: Table) -> DataFrame:
        return tables[table.name]

    hours = Hours(read, (MINUTE_MS,))
    try:
        yield {name: TABLES[name].roll(hours).select(*TABLES[name].columns) for name in NAMES}
    finally:
        hours.close()
