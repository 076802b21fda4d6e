"""Roll-ups of samples in plain Python, from their definitions; and random hours of samples to roll up.

A row is a dict with the columns of its compacted table.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keelmq.runtime.log_buckets import bucket_of, bucket_top

Row = dict[str, Any]
Key = tuple[Any, ...]

HOUR_MS = 3_600_000
HOUR_TS = 1_767_225_600_000
MINUTE_MS = 60_000
EARLY_MS = 3_000
UNITS = ("bytes", "ms", "lag_us", "confirm_us")
RANKS = {"p50": 50, "p95": 95, "p99": 99}


class Life:
    """A random group's hours: gaps, an old master that goes on, truncated offsets, replicas that go."""

    def __init__(self, seed: int, hours: int) -> None:
        self._random = random.Random(seed)
        self._group = {"cluster_name": "KeelCluster", "broker_name": f"group-{seed:02}"}
        self.masters: list[Row] = []
        self.replicas: list[Row] = []
        self.events: list[Row] = []
        self.consumers: list[Row] = []
        for hour in range(hours):
            self._live(HOUR_TS + hour * HOUR_MS, epoch=3 + 2 * hour)

    def _live(self, hour_ts: int, epoch: int) -> None:
        change = self._random.randint(5, 300) if self._random.random() < 0.7 else None
        second = self._random.choice([0, 1, 58, 3_400])
        last = min(second + self._random.choice([1, 90, 200]), 3_599)
        while second <= last:
            ts = hour_ts + second * 1_000 + self._random.choice([0, 0, 1, 999])
            if change is not None and second >= change:
                self._sample(ts, 2, epoch + 1)
                if self._random.random() < 0.3:
                    self._sample(ts, 1, epoch)  # does not know yet
            else:
                self._sample(ts, 1, epoch)
            second += self._random.choice([1, 1, 1, 1, 2, 3, 61])
        if change is not None and self._random.random() < 0.5:  # known earlier from a controller
            self._event(hour_ts + max(change - 3, 0) * 1_000, epoch, epoch + 1)
        for topic in ("TopicA", "TopicB"):
            for _ in range(5):
                ts = hour_ts + self._random.randrange(HOUR_MS)
                self.consumers.append(
                    self._group
                    | {"ts": ts, "broker_id": 1, "consumer_group": "GID_a", "topic": topic}
                    | {"lag_messages": self._random.randint(0, 999), "lag_ms": self._random.randint(0, 999)}
                )

    def _sample(self, ts: int, broker_id: int, epoch: int) -> None:
        max_offset = (ts - HOUR_TS) * 100
        lag = self._random.choice([0, 0, 7, 4_000, 1 << 33, -1])
        ms = self._random.choice([0, 3, 900, 70_000])
        view = {"ts": ts, "broker_id": broker_id, "master_epoch": epoch, "max_offset": max_offset}
        self.masters.append(
            self._group
            | view
            | {
                "confirm_offset": max_offset - lag,
                "lag_ms": ms,
                "lag_ms_max": ms + self._random.choice([0, 40]),
            }
            | {"lag_bytes_max": self._random.choice([0, 1 << 34])}
            | {name: self._histogram() for name in ("lag_us", "confirm_us")}
        )
        for replica in {1, 2, 3} - {broker_id}:
            if self._random.random() < 0.8:
                ack = max_offset - self._random.choice([-3, 0, 5_000])
                more = {"ack_offset": ack, "lag_ms": ms, "in_sync": self._random.random() < 0.7}
                self.replicas.append(self._group | view | {"replica_id": replica} | more)

    def _histogram(self) -> list[Row] | None:
        if self._random.random() < 0.3:
            return self._random.choice([None, []])
        found = sorted(self._random.sample(range(504), self._random.randint(1, 4)))
        return [{"bucket": each, "n": self._random.randint(1, 50)} for each in found]

    def _event(self, ts: int, before: int, after: int) -> None:
        self.events.append(
            self._group
            | {"ts": ts, "log_id": "", "event_id": len(self.events), "type": "electMaster"}
            | {"controller_id": "n0", "unclean": False, "reason": ""}
            | {"before": {"master_epoch": before}, "after": {"master_epoch": after}}
        )


def mark_stale(rows: Iterable[Row], masters: Sequence[Row], events: Sequence[Row]) -> list[Row]:
    """The rows with `is_stale`."""
    elected = {(*_of_hour(each), each["after"]["master_epoch"]) for each in events if each["before"]}
    began: dict[Key, list[tuple[int, int]]] = defaultdict(list)

    def seen(row: Row, epoch: int) -> None:
        is_early = row["ts"] % HOUR_MS < EARLY_MS and (*_of_hour(row), epoch) not in elected
        began[_of_hour(row)].append((row["ts"] - row["ts"] % HOUR_MS if is_early else row["ts"], epoch))

    for row in masters:
        seen(row, row["master_epoch"])
    for event in events:
        for view in filter(None, (event["before"], event["after"])):
            seen(event, view["master_epoch"])
    return [
        row
        | {
            "is_stale": any(
                ts <= row["ts"] and epoch > row["master_epoch"] for ts, epoch in began[_of_hour(row)]
            )
        }
        for row in rows
    ]


def _of_hour(row: Row) -> Key:
    return row["cluster_name"], row["broker_name"], row["ts"] // HOUR_MS


def windows(rows: Iterable[Row], window_ms: int, *more: str) -> dict[Key, list[Row]]:
    """The rows by broker_name, window_ts and the columns `more`."""
    found: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        window_ts = row["ts"] // window_ms * window_ms
        found[row["broker_name"], window_ts, *(row[name] for name in more)].append(row)
    return found


def is_above(row: Row) -> bool:
    return bool(row["confirm_offset"] > row["max_offset"])


def counted(rows: Sequence[Row]) -> dict[str, Counter[int]]:
    """Per unit, how many values are in each bucket."""
    found: dict[str, Counter[int]] = {unit: Counter() for unit in UNITS}
    for row in rows:
        found["bytes"][bucket_of(row["max_offset"] - row["confirm_offset"])] += 1
        found["ms"][bucket_of(row["lag_ms"])] += 1
        for unit in ("lag_us", "confirm_us"):
            for each in row[unit] or ():
                found[unit][each["bucket"]] += each["n"]
    return found


def worst(rows: Sequence[Row], unit: str) -> int | None:
    if unit == "bytes":
        return max(max(row["max_offset"] - row["confirm_offset"], row["lag_bytes_max"]) for row in rows)
    if unit == "ms":
        return max(max(row["lag_ms"], row["lag_ms_max"]) for row in rows)
    buckets = counted(rows)[unit]
    return bucket_top(max(buckets)) if buckets else None


def lag_row(rows: Sequence[Row]) -> Row:
    """Of a window. All but covered_ms."""
    kept = [row for row in rows if not row["is_stale"] and not is_above(row)]
    row: Row = {
        "samples": len(kept),
        "stale_master": sum(each["is_stale"] for each in rows),
        "above_max": sum(is_above(each) for each in rows if not each["is_stale"]),
    }
    counts = counted(kept)
    row["confirms"] = sum(counts["confirm_us"].values()) or None
    newest = max(kept, key=lambda each: each["ts"]) if kept else {}
    for name in ("max_offset", "confirm_offset"):
        row[name] = newest.get(name)
    for unit in UNITS:
        top = worst(kept, unit) if kept else None
        row[f"{unit}_max"] = top
        for name, percent in RANKS.items():
            ranked = sorted(counts[unit].elements())
            at = -(-len(ranked) * percent // 100) - 1
            row[f"{unit}_{name}"] = min(bucket_top(ranked[at]), top) if top is not None and ranked else None
    return row


def covered_ms(rows: Sequence[Row], window_ms: int) -> Mapping[Key, int]:
    """By broker_name and window_ts: seconds with a sample, or after one, of the windows that have rows.
    `window_ms`: a minute at most."""
    found: dict[Key, int] = {}
    in_windows = windows(rows, window_ms)
    kept = {
        (row["broker_name"], row["ts"] // 1_000) for row in rows if not row["is_stale"] and not is_above(row)
    }
    for broker_name, window_ts in in_windows:
        seconds = range(window_ts // 1_000, (window_ts + window_ms) // 1_000)
        before = {each for each in seconds if (broker_name, each - 1) in kept and each % 3_600}
        found[broker_name, window_ts] = 1_000 * len(
            before | {each for each in seconds if (broker_name, each) in kept}
        )
    return found


def replica_row(rows: Sequence[Row]) -> Row:
    newest = max(rows, key=lambda each: each["ts"])
    return {
        "samples": len(rows),
        "bytes_max": max(max(each["max_offset"] - each["ack_offset"], 0) for each in rows),
        "ms_max": max(each["lag_ms"] for each in rows),
        "samples_out": sum(not each["in_sync"] for each in rows),
        "last_ack_offset": newest["ack_offset"],
        "last_ts": newest["ts"],
    }


def consumer_row(rows: Sequence[Row]) -> Row:
    return {
        "lag_messages_max": max(each["lag_messages"] for each in rows),
        "lag_messages_last": max(rows, key=lambda each: each["ts"])["lag_messages"],
        "lag_ms_max": max(each["lag_ms"] for each in rows),
    }
