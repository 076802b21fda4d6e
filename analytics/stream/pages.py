"""The page files of the last minutes: of each minute that a batch changed, and of the fleet's last hour."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from analytics.stream.states import GroupName, GroupStates
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
from keelmq.web.page_files import packed

REPLICA = ("samples", "bytes_max", "ms_max", "last_ack_offset")
_KEYS = ("cluster_name", "broker_name", "window_ts", "max_offset", "confirm_offset")
Rows = Any
"""A table of Arrow, or None."""


class LivePages:
    """The files below OUT/live that name servers read. One writer per directory."""

    def __init__(self, out: Path, *, every_ms: int) -> None:
        self._out, self._every_ms = out, every_ms
        self._fleet: dict[int, dict[GroupName, tuple[int | None, int | None]]] = {}
        """By minute and group: ms_p99, ms_max."""

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
        self.remember(minute, lag)

    def remember(self, minute: int, lag: Rows) -> None:
        """Keeps what the fleet's page has of a minute."""
        self._fleet[minute] = {_name(row): (row["ms_p99"], row["ms_max"]) for row in _rows(lag)}

    def publish(self, states: GroupStates, *, computed_ts: int, data_to_ts: int) -> None:
        """Writes the fleet's last hour and, last, how far the minutes are; deletes those before."""
        end = data_to_ts // MINUTE_MS * MINUTE_MS + MINUTE_MS
        start = end - FLEET_MINUTES * MINUTE_MS
        fleet = LiveFleet(
            computed_ts=computed_ts,
            data_to_ts=data_to_ts,
            every_ms=self._every_ms,
            start_ts=start,
            groups=self._groups(states, range(start, end, MINUTE_MS), data_to_ts),
        )
        self._write(FLEET, packed(msgspec.json.encode(fleet), level=1))
        for each in [each for each in self._fleet if each < start]:
            del self._fleet[each]
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

    def _groups(self, states: GroupStates, minutes: range, data_to_ts: int) -> list[LiveFleetGroup]:
        of_states = states.minutes(minutes.start, len(minutes), data_to_ts)
        names = {name for minute in minutes for name in self._fleet.get(minute, ())} | set(of_states)
        found = []
        nothing = (None, None)
        for name in sorted(names):
            rows = [self._fleet.get(minute, {}).get(name, nothing) for minute in minutes]
            seen = [minute for minute, row in zip(minutes, rows, strict=True) if row is not nothing]
            below, without = of_states.get(name, ((), ()))
            found.append(
                LiveFleetGroup(
                    cluster_name=name[0],
                    broker_name=name[1],
                    ms_p99=[row[0] for row in rows],
                    ms_max=[row[1] for row in rows],
                    below_min_ms=list(below) if any(below) else [],
                    no_master_ms=list(without) if any(without) else [],
                    samples_ts=seen[-1] + MINUTE_MS if seen else None,
                )
            )
        return found

    def _write(self, name: str, data: bytes) -> None:
        replace_file(self._out / name, data, keep_backup=False, durable=False)


def _rows(table: Rows) -> Iterable[dict[str, Any]]:
    return [] if table is None else table.to_pylist()


def _name(row: Mapping[str, Any]) -> GroupName:
    return row["cluster_name"], row["broker_name"]


def _values(row: Mapping[str, Any]) -> dict[str, int | None]:
    return {name: value for name, value in row.items() if name not in _KEYS}
