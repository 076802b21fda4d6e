"""Clocks in an hour's manifest: the last row of each writer, and the offsets of brokers' clocks.

So a run knows, without reading the rows, which hours hold rows of another hour because of a wrong clock, and
where most writers end. The controllers' clock counts; see analytics/queries/clocks.py.
"""

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from analytics.tables import CLOCK_SAMPLE, CONTROLLER_EVENT, MASTER_SAMPLE, SLAVE_SAMPLE

HOUR_MS = 3_600_000
STEP_MS = 200
"""Smaller differences between two clock samples come from the network and from drift."""
HOLD_MS = HOUR_MS
"""How long a measured offset holds, before and after, if no other is nearer: controllers may pause."""
OFFSET_MAX_MS = 86_400_000
"""A clock with a larger offset is not corrected; the hours of such clocks are left out."""

BrokerKey = tuple[str, str, int]
"""Cluster, broker name, broker id. A controller: "", its id, 0."""

_BROKER = ["cluster_name", "broker_name", "broker_id"]


class Writer(msgspec.Struct, frozen=True, array_like=True, order=True):
    """`first_ts`, `last_ts`: of its rows in this hour, by its own clock, both included."""

    cluster_name: str
    name: str
    id: int
    first_ts: int
    last_ts: int

    @property
    def key(self) -> BrokerKey:
        """Identity of the writer, the same in all hours."""
        return self.cluster_name, self.name, self.id


class Clock(msgspec.Struct, frozen=True, array_like=True, order=True):
    """`offset_ms`: to be added to this broker's time at the end of the hour; 0: its clock is right."""

    cluster_name: str
    broker_name: str
    broker_id: int
    offset_ms: int

    @property
    def key(self) -> BrokerKey:
        """The broker, as in Writer.key."""
        return self.cluster_name, self.broker_name, self.broker_id


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Of the rows of one kind in an hour; each list is sorted. `writers`: brokers, by their samples, and
    controllers.

    `shifts`: the offsets of brokers' clocks, as the number of hours, rounded down, that their time is ahead:
    by its broker's clock, a row of this hour can be that many hours later, or one more. Offsets of at most
    STEP_MS and of more than OFFSET_MAX_MS are left out.
    """

    writers: list[Writer] = []
    clocks: list[Clock] = []
    shifts: list[int] = []


class TimesReader:
    """Collects the rows of a kind's tables with add(), each once, in the order of their keys."""

    def __init__(self) -> None:
        self._writers: dict[BrokerKey, tuple[int, int]] = {}
        self._clocks: dict[BrokerKey, int] = {}
        self._shifts: set[int] = set()

    def add(self, table_name: str, rows: pa.Table) -> None:
        """Reads rows that are sorted by the table's key; a group's rows are never divided between calls."""
        if table_name in (MASTER_SAMPLE.name, SLAVE_SAMPLE.name):
            self._add_writers(rows, _BROKER)
        elif table_name == CONTROLLER_EVENT.name:
            self._add_writers(rows, ["controller_id"])
        elif table_name == CLOCK_SAMPLE.name:
            self._add_writers(rows, ["controller_id"])
            self._add_clocks(rows)

    def times(self) -> Times:
        """Returns what was found."""
        return Times(
            writers=[Writer(*key, *span) for key, span in sorted(self._writers.items())],
            clocks=[Clock(*key, offset) for key, offset in sorted(self._clocks.items())],
            shifts=sorted(self._shifts),
        )

    def _add_writers(self, rows: pa.Table, names: list[str]) -> None:
        spans = rows.select([*names, "ts"]).group_by(names, use_threads=False)
        for row in spans.aggregate([("ts", "min"), ("ts", "max")]).to_pylist():
            key = ("", row["controller_id"], 0) if len(names) == 1 else tuple(row[each] for each in names)
            first, last = self._writers.get(key, (row["ts_min"], row["ts_max"]))
            self._writers[key] = min(first, row["ts_min"]), max(last, row["ts_max"])

    def _add_clocks(self, rows: pa.Table) -> None:
        offset = rows["offset_ms"]
        is_off = _is_beyond(offset, STEP_MS)
        self._clocks |= dict.fromkeys(_brokers(rows), 0)
        moved = rows.filter(pc.and_not(is_off, _is_beyond(offset, OFFSET_MAX_MS)))
        self._shifts |= {-offset // HOUR_MS for offset in moved["offset_ms"].unique().to_pylist()}
        wrong = {*_brokers(rows.filter(is_off))}
        samples: dict[BrokerKey, list[tuple[int, str, int]]] = {key: [] for key in wrong}
        for row in rows.to_pylist() if wrong else ():
            key = row["cluster_name"], row["broker_name"], row["broker_id"]
            if key in wrong:
                samples[key].append((row["ts"], row["controller_id"], row["offset_ms"]))
        for key, of_broker in samples.items():
            offset = last_offset(sorted(of_broker))
            self._clocks[key] = offset if STEP_MS < abs(offset) <= OFFSET_MAX_MS else 0


def last_offset(samples: Iterable[tuple[int, str, int]]) -> int:
    """Returns the offset of the last piece of these samples (ts, controller_id, offset_ms), which are in
    order: the pieces of skew.clock_pieces()."""
    least = before = 0
    controller_id = None
    for _, controller, offset in samples:
        begins = controller != controller_id or abs(offset - before) > STEP_MS
        least = offset if begins else min(least, offset)
        controller_id, before = controller, offset
    return least


def _is_beyond(offset: pa.ChunkedArray, limit_ms: int) -> pa.ChunkedArray:
    return pc.or_(pc.greater(offset, limit_ms), pc.less(offset, -limit_ms))


def _brokers(rows: pa.Table) -> Iterator[BrokerKey]:
    for row in rows.select(_BROKER).group_by(_BROKER, use_threads=False).aggregate([]).to_pylist():
        yield row["cluster_name"], row["broker_name"], row["broker_id"]
