"""The page files of the last minutes: of each minute that a batch changed, and of the fleet's last hour."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from keelmq.runtime.durable_file import replace_file
from keelmq.web.live_files import (
    FLEET,
    FLEET_MINUTES,
    LIVE,
    MINUTE_MS,
    MINUTES,
    Live,
    LiveFleet,
    LiveFleetGroup,
    LiveGroup,
    LiveReplica,
    minute_file,
)
from keelmq.web.page_files import Column, packed

REPLICA = ("samples", "bytes_max", "ms_max", "last_ack_offset")
STATE = ("below_min_ms", "no_master_ms", "unknown_ms")
_KEYS = ("cluster_name", "broker_name", "window_ts", "max_offset", "confirm_offset")
_OF_FLEET = ("ms_p99", "ms_max")
Rows = Any
"""A table of Arrow; None: its rows are not known to differ from before."""
GroupName = tuple[str, str]
Values = Mapping[GroupName, Mapping[str, int | None]]


class LivePages:
    """The files below OUT/live that name servers read. One writer per directory."""

    def __init__(self, out: Path, *, every_ms: int) -> None:
        self._out, self._every_ms = out, every_ms
        self._lag: dict[int, Values] = {}
        """By minute: _OF_FLEET of the groups with samples."""
        self._states: dict[int, Values] = {}
        """By minute: STATE of the groups that controllers know."""

    def put(self, minute: int, lag: Rows, replicas: Rows) -> None:
        """Writes a minute. `lag`, `replicas`: rows of the roll-ups lag and replica_lag of that minute."""
        of_replicas: defaultdict[GroupName, list[LiveReplica]] = defaultdict(list)
        for row in _rows(replicas):
            values = {name: row[name] for name in REPLICA}
            of_replicas[_name(row)].append(LiveReplica(row["broker_id"], values))
        lags = {_name(row): row for row in _rows(lag)}
        lines = [
            LiveGroup(*name, _values(lags.get(name, {})), of_replicas.get(name, []))
            for name in sorted({*lags, *of_replicas})
        ]
        path = self._out / minute_file(minute)
        replace_file(path, msgspec.json.Encoder().encode_lines(lines), keep_backup=False, durable=False)
        self.remember(minute, lag=lag)

    def remember(self, minute: int, *, lag: Rows = None, state: Rows = None) -> None:
        """Keeps the fleet page's numbers of a minute. `state`: rows of the roll-up group_state."""
        if lag is not None:
            self._lag[minute] = {_name(row): lag_ms(row) for row in lag.to_pylist()}
        if state is not None:
            self._states[minute] = _columns(state, STATE)

    def publish(self, *, computed_ts: int, data_to_ts: int) -> None:
        """Writes the fleet's last hour and, last, how far the minutes are; deletes those before."""
        end = data_to_ts // MINUTE_MS * MINUTE_MS + MINUTE_MS
        start = end - FLEET_MINUTES * MINUTE_MS
        fleet = LiveFleet(
            computed_ts=computed_ts,
            data_to_ts=data_to_ts,
            every_ms=self._every_ms,
            start_ts=start,
            groups=self._groups(range(start, end, MINUTE_MS)),
        )
        self._write(FLEET, packed(msgspec.json.encode(fleet), level=1))
        for kept in (self._lag, self._states):
            for each in [each for each in kept if each < start]:
                del kept[each]
        found = [int(path.stem) for path in (self._out / MINUTES).glob("*.jsonl") if path.stem.isdigit()]
        minutes = [each for each in found if each < end]  # later ones: of a clock that was ahead
        first, last = min(minutes, default=end), max(minutes, default=end - MINUTE_MS)
        head = Live(
            computed_ts=computed_ts,
            data_to_ts=data_to_ts,
            start_ts=first,
            count=(last - first) // MINUTE_MS + 1,
            every_ms=self._every_ms,
        )
        self._write(LIVE, msgspec.json.encode(head))

    def forget(self, before_ts: int) -> None:
        """Deletes the minutes before."""
        for path in (self._out / MINUTES).glob("*.jsonl"):
            if path.stem.isdigit() and int(path.stem) < before_ts:
                path.unlink(missing_ok=True)

    def _groups(self, minutes: range) -> list[LiveFleetGroup]:
        names = {
            name for minute in minutes for kept in (self._lag, self._states) for name in kept.get(minute, ())
        }
        found = []
        for name in sorted(names):
            lags = [self._lag.get(minute, {}).get(name) for minute in minutes]
            states = [self._states.get(minute, {}).get(name) for minute in minutes]
            seen = [minute for minute, row in zip(minutes, lags, strict=True) if row is not None]
            found.append(
                LiveFleetGroup(
                    cluster_name=name[0],
                    broker_name=name[1],
                    **{each: _column(lags, each) for each in _OF_FLEET},
                    **{each: _zero_is_empty(_column(states, each)) for each in STATE},
                    samples_ts=seen[-1] + MINUTE_MS if seen else None,
                )
            )
        return found

    def _write(self, name: str, data: bytes) -> None:
        replace_file(self._out / name, data, keep_backup=False, durable=False)


def lag_ms(row: Mapping[str, Any]) -> dict[str, int | None]:
    """Returns ms_p99 and ms_max of a row of the roll-up lag, by the rules of analytics/queries/incidents.py
    (p99_ms, max_ms): the broker's own histogram has more values than one sample a second."""
    p99, most = (_ms_of(row.get(name)) for name in ("lag_us_p99", "lag_us_max"))
    known = [each for each in (row["ms_max"], most) if each is not None]
    return {"ms_p99": row["ms_p99"] if p99 is None else p99, "ms_max": max(known, default=None)}


def _ms_of(us: int | None) -> int | None:
    return None if us is None else -(-us // 1_000)


def _rows(table: Rows) -> Iterable[dict[str, Any]]:
    return [] if table is None else table.to_pylist()


def _columns(table: Rows, names: tuple[str, ...]) -> Values:
    return {_name(row): {name: row[name] for name in names} for row in table.to_pylist()}


def _column(rows: list[Mapping[str, int | None] | None], name: str) -> Column:
    return [None if row is None else row[name] for row in rows]


def _zero_is_empty(column: Column) -> Column:
    return column if any(each != 0 for each in column) else []


def _name(row: Mapping[str, Any]) -> GroupName:
    return row["cluster_name"], row["broker_name"]


def _values(row: Mapping[str, Any]) -> dict[str, int | None]:
    return {name: value for name, value in row.items() if name not in _KEYS}
