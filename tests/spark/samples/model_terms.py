"""Whose samples are of a replaced master, in plain Python, and random hours with logs that were built
anew."""

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tests.spark.model_samples import EARLY_MS, HOUR_MS, HOUR_TS, Row

Hour = tuple[str, str, int]
Epoch = tuple[int, int]
"""The place of the log, from 0, and the masterEpoch."""


class Hours:
    """What is known of the masters in each hour of each group."""

    def __init__(self, masters: Sequence[Row], events: Sequence[Row]) -> None:
        self._named: dict[Hour, dict[tuple[str, int], int]] = defaultdict(dict)
        """When each log named an epoch first."""
        self._began: dict[Hour, dict[Epoch, int]] = defaultdict(dict)
        views = [
            (
                hour_of(event),
                event["ts"],
                event["log_id"] or "",
                view["master_epoch"],
                is_elected(event, side),
            )
            for event in events
            for side in ("before", "after")
            if (view := event[side]) is not None
        ]
        for hour, ts, log, epoch, _ in views:
            if log and epoch > 0:
                named = self._named[hour]
                named[log, epoch] = min(ts, named.get((log, epoch), ts))
        sampled = {
            (hour_of(row), log)
            for row in masters
            for (log, epoch), first in self._named[hour_of(row)].items()
            if epoch == row["master_epoch"] and first <= row["ts"]
        }
        seen = [(hour_of(row), row["ts"], self.epoch_of(row), False) for row in masters]
        for hour, ts, log, epoch, elected in views:
            logs = self._logs(hour)
            if len(logs) < 2 or not log or epoch <= 0:
                seen.append((hour, ts, (0, epoch), elected))
            elif (hour, log) in sampled:
                seen.append((hour, ts, (logs.index(log), epoch), elected))
        begun = {(hour, epoch) for hour, _, epoch, elected in seen if elected}
        for hour, ts, epoch, _ in sorted(seen, key=lambda each: each[1]):
            is_early = ts % HOUR_MS < EARLY_MS and (hour, epoch) not in begun
            self._began[hour].setdefault(epoch, hour[2] if is_early else ts)

    def _logs(self, hour: Hour) -> list[str]:
        """In the order in which they were seen."""
        first: dict[str, int] = {}
        for (log, _), ts in self._named[hour].items():
            first[log] = min(ts, first.get(log, ts))
        return sorted(first, key=lambda log: (first[log], log))

    def epoch_of(self, row: Row) -> Epoch:
        hour = hour_of(row)
        logs = self._logs(hour)
        places = [
            logs.index(log)
            for (log, epoch), first in self._named[hour].items()
            if epoch == row["master_epoch"] and first <= row["ts"]
        ]
        return max(places, default=0) if len(logs) > 1 else 0, row["master_epoch"]

    def is_stale(self, row: Row) -> bool | None:
        """None: nothing is known of its epoch."""
        began, epoch = self._began[hour_of(row)], self.epoch_of(row)
        if epoch not in began:
            return None
        return any(other > epoch and ts <= row["ts"] for other, ts in began.items())


def hour_of(row: Row) -> Hour:
    return row["cluster_name"], row["broker_name"], row["ts"] // HOUR_MS * HOUR_MS


def is_elected(event: Row, side: str) -> bool:
    before, after = event["before"], event["after"]
    return side == "after" and before is not None and before["master_epoch"] < after["master_epoch"]


def random_hours(seed: int, groups: int) -> tuple[list[Row], list[Row], list[Row]]:
    """Masters, replicas and events of groups: two hours each, few epochs, up to three logs."""
    dice = random.Random(seed)
    masters: dict[Any, Row] = {}
    replicas, events = [], []
    for number in range(groups):
        for hour in range(2):
            group: Row = {"cluster_name": dice.choice("cd"), "broker_name": f"group-{number}"}
            start, span = HOUR_TS + hour * HOUR_MS, dice.choice([4_000, 8_000, 100_000, HOUR_MS - 1])
            logs: list[str | None] = dice.choice(
                [["a"], ["a", "b"], ["a", "b", "c"], ["", "a", "b"], [None, "a", "b"]]
            )
            for _ in range(dice.randint(0, 25)):
                ts, epoch, end = start + dice.randrange(span), dice.randint(1, 4), dice.randint(0, 9_999)
                row = group | {"ts": ts, "broker_id": dice.randint(1, 3), "master_epoch": epoch}
                row |= {"max_offset": end, "confirm_offset": end, "lag_ms": 0}
                row |= {"min_in_sync_replicas": dice.choice([None, 1, 1, 1, 2])}
                masters[row["cluster_name"], row["broker_name"], ts, row["broker_id"]] = row
                seen = {"master_epoch": dice.choice([epoch, epoch, 5]), "replica_id": 4, "ack_offset": end}
                replicas.append(row | seen | {"in_sync": True})
            for event_id in range(dice.randint(0, 8)):
                views = {
                    side: dice.choice([None, {"master_epoch": dice.randint(0, 5)}])
                    for side in ("before", "after")
                }
                fields = {"log_id": dice.choice(logs), "event_id": event_id, "type": "", "controller_id": "n"}
                events.append(group | {"ts": start + dice.randrange(span)} | fields | views)
    return list(masters.values()), replicas, events
