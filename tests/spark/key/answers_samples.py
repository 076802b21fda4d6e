"""What is true of lag: from samples in true time, whose masters are known. Definitions: docs/analytics.md.

Each number is counted sample by sample; nothing here merges windows or knows how terms are found.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from keelmq.runtime.log_buckets import bucket_of, bucket_top
from tests.spark import model_samples as model
from tests.spark.key.expected import Key, Near, Row, near, tolerance_of
from tests.spark.key.files import Known
from tests.spark.key.samples import Sample
from tests.spark.key.world import DAY_MS, HOUR_MS, MINUTE_MS

WIDTHS = (MINUTE_MS, HOUR_MS)
MINUTES_KEPT_MS = 3 * DAY_MS
"""The filled table has the minutes of the last three days only."""
ID = ("cluster_name", "broker_name")


def is_stale(known: Known, sample: Sample) -> bool:
    """Returns whether the group had a newer master, or had cleared this one, when a master sampled."""
    newest = (0, 0)
    for event in known.group.events:
        if event.ts > sample.ts:
            break
        newest = max(newest, (event.log, event.after.epoch))
    return newest > (sample.log, sample.epoch)


def master_rows(known: Known) -> list[Row]:
    """Returns the samples of masters in the form of model_samples, `ts` in true time."""
    return [
        {
            "cluster_name": "KeelCluster", "broker_name": known.group.name, "ts": each.ts,
            "broker_id": each.broker,
            "max_offset": each.max_offset, "confirm_offset": each.confirm_offset, "lag_ms": each.lag_ms,
            "lag_ms_max": each.lag_ms_max, "lag_bytes_max": each.lag_bytes_max, "minimum": each.minimum,
            "lag_us": [{"bucket": bucket, "n": n} for bucket, n in each.lag_us],
            "confirm_us": [{"bucket": bucket, "n": n} for bucket, n in each.confirm_us],
            "is_stale": is_stale(known, each), "replicas": each.replicas,
        }
        for each in known.samples
        if each.role == "master"
    ]  # fmt: skip


def lag(known: Known, rows: Sequence[Row], width: int) -> dict[Key, Row]:
    """Returns the table `lag` by group and window."""
    covered: Counter[int] = Counter()
    for (_, window_ts), ms in model.covered_ms(rows, MINUTE_MS).items():
        covered[window_ts // width * width] += ms
    return {
        key: model.lag_row(mine) | {"covered_ms": covered[key[1]]}
        for key, mine in model.windows(rows, width).items()
    }


def lag_histogram(rows: Sequence[Row]) -> dict[Key, Row]:
    """Returns the table `lag_histogram` by group, hour, unit and bucket."""
    counts: Counter[Key] = Counter()
    worst: dict[Key, int] = {}
    for row in rows:
        if row["is_stale"] or model.is_above(row):
            continue
        head = row["broker_name"], row["ts"] // HOUR_MS * HOUR_MS
        behind = row["max_offset"] - row["confirm_offset"]
        for unit, value, most in (
            ("bytes", behind, max(behind, row["lag_bytes_max"])),
            ("ms", row["lag_ms"], max(row["lag_ms"], row["lag_ms_max"])),
        ):
            key = (*head, unit, bucket_of(value))
            counts[key] += 1
            worst[key] = max(worst.get(key, 0), most)
        for unit in ("lag_us", "confirm_us"):
            for each in row[unit]:
                key = (*head, unit, each["bucket"])
                counts[key] += each["n"]
                worst[key] = bucket_top(each["bucket"])
    return {key: {"n": n, "worst": worst[key]} for key, n in counts.items()}


def replica_rows(known: Known, rows: Iterable[Row]) -> list[Row]:
    """Returns what current masters say of replicas, one row per sample and replica."""
    return [
        {
            "broker_name": row["broker_name"], "ts": row["ts"], "replica": each.broker,
            "max_offset": row["max_offset"],
            "ack_offset": each.ack, "lag_ms": each.lag_ms, "in_sync": each.in_sync,
            "master": row["broker_id"],
        }
        for row in rows
        if not row["is_stale"]
        for each in row["replicas"]
    ]  # fmt: skip


def replica_lag(known: Known, rows: Sequence[Row], width: int) -> dict[Key, Row]:
    """Returns the roll-up `replica_lag` by group, window and replica."""
    found = {}
    for key, mine in model.windows(replica_rows(known, rows), width, "replica").items():
        newest = max(mine, key=lambda each: each["ts"])
        slack = tolerance_of(known.group, newest["master"], newest["ts"])
        row = model.replica_row(mine)
        found[key] = row | {"last_ts": near(row["last_ts"], slack)}
    return found


def filled(known: Known, rows: Sequence[Row], width: int, to_ts: int) -> dict[Key, Row]:
    """Returns the run table `replica_lag`: with a row for each window, after a replica's first one, in which
    its group has a current master and the replica no sample."""
    oldest = to_ts - MINUTES_KEPT_MS if width < HOUR_MS else 0
    rows = [row for row in rows if row["ts"] // HOUR_MS * HOUR_MS + HOUR_MS > oldest]
    own = replica_lag(known, rows, width)
    ends = {
        window_ts: row["max_offset"]
        for (_, window_ts), row in lag(known, rows, width).items()
        if row["max_offset"] is not None
    }
    by_replica: dict[int, dict[int, Row]] = defaultdict(dict)
    for (_, window_ts, replica), row in own.items():
        by_replica[replica][window_ts] = row
    found: dict[Key, Row] = {}
    for replica, mine in by_replica.items():
        last: Row | None = None
        for window_ts in sorted(mine.keys() | ends.keys()):
            key = known.group.name, window_ts, replica
            if window_ts in mine:
                last = mine[window_ts]
                found[key] = last | {"is_filled": False}
            elif last is not None:
                found[key] = _filled_row(last, ends[window_ts], window_ts + width)
    return found


def _filled_row(last: Row, end: int, until_ts: int) -> Row:
    behind = max(end - last["last_ack_offset"], 0)
    seen: Any = last["last_ts"]
    value, slack = (seen.value, seen.tolerance) if isinstance(seen, Near) else (seen, 0)
    grown = last["ms_max"] + until_ts - value
    return {
        "samples": 0, "samples_out": 0, "bytes_max": behind, "ms_max": near(grown, slack) if behind else 0,
        "last_ack_offset": last["last_ack_offset"], "last_ts": seen, "is_filled": True,
    }  # fmt: skip


def minimum_changes(known: Known, rows: Sequence[Row], *, by_hour: bool) -> list[Row]:
    """Returns minInSyncReplicas as current masters' samples say: the first of each hour and each other one;
    with `by_hour` False over all hours."""
    found: list[Row] = []
    last: tuple[int, int] | None = None
    for row in rows:
        if row["is_stale"]:
            continue
        hour = row["ts"] // HOUR_MS * HOUR_MS if by_hour else 0
        if last != (hour, row["minimum"]):
            last = hour, row["minimum"]
            slack = tolerance_of(known.group, row["broker_id"], row["ts"])
            found.append(
                {"broker_name": row["broker_name"], "hour_ts": hour, "window_ts": near(row["ts"], slack)}
                | {"min_in_sync_replicas": row["minimum"], "true_ts": row["ts"], "slack": slack}
            )
    return found


def consumer_lag(known: Known, width: int) -> dict[Key, Row]:
    """Returns the table `consumer_lag` by group, window, consumer group and topic. Replaced masters count,
    too."""
    rows = [
        {
            "broker_name": known.group.name, "ts": each.ts, "consumer_group": each.consumer_group,
            "topic": each.topic, "lag_messages": each.messages, "lag_ms": each.lag_ms,
        }
        for each in known.backlogs
    ]  # fmt: skip
    return {
        key: model.consumer_row(mine)
        for key, mine in model.windows(rows, width, "consumer_group", "topic").items()
    }
