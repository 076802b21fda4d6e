"""Records of an invented fleet: they are what brokers write, and each incident is in them."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from analytics import tables
from analytics.compaction.compactor import compact
from analytics.compaction.manifest import read_manifests
from analytics.compaction.scan import find_sources
from analytics.fleet.files import write_compacted, write_incidents, write_telemetry
from analytics.fleet.plan import KINDS, Fleet, Planted, plan
from analytics.fleet.records import records_of
from keelmq.remoting.records import (
    AnyRecord,
    ClockSample,
    ControllerEvent,
    HaSample,
    decode_record,
    name_of,
)

ROOT = Path(__file__).parents[3]
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
START = 20_000 * 24 * HOUR_MS
FLEET = plan(11, groups=9, hours=4, kinds=KINDS, from_ts=START)


def planted(kind: str) -> Planted:
    (found,) = [each for each in FLEET.planted if each.kind == kind]
    return found


def history(kind: str, fleet: Fleet = FLEET) -> tuple[Planted, list[AnyRecord]]:
    """The whole history of the group with this incident, a sample of 10 s."""
    one = planted(kind)
    hours = range(fleet.from_ts, fleet.to_ts, HOUR_MS)
    return one, [each for hour in hours for each in records_of(fleet, one.group, hour, every_ms=10_000)]


def masters(found: list[AnyRecord]) -> list[HaSample]:
    return [each for each in found if isinstance(each, HaSample) and each.role == "master"]


def inside(one: Planted, ts: int) -> bool:
    return one.from_ts <= ts < one.to_ts


def test_lag_is_high_while_it_lasts() -> None:
    one, found = history("lag")
    for each in masters(found):
        assert (each.lag_ms >= 4_000) == inside(one, each.ts)
        assert each.confirm_offset <= each.max_offset


@pytest.mark.parametrize("kind", ["flap", "below-min", "dead-replica", "failover", "unclean", "stale-master"])
def test_events_follow_each_other(kind: str) -> None:
    _, found = history(kind)
    events = [each for each in found if isinstance(each, ControllerEvent)]
    changes = [each for each in events if each.type != "snapshot"]
    assert changes and [each.event_id for each in events] == sorted(each.event_id for each in events)
    for left, right in itertools.pairwise(events):
        assert right.after is not None
        assert (right.before or right.after) == left.after, "no gap in the epochs"
    for each in masters(found):
        known = [event.after for event in events if event.ts <= each.ts and event.after]
        if each.master_epoch == known[-1].master_epoch:
            assert each.sync_state_set == known[-1].sync_state_set


def test_a_group_below_the_minimum() -> None:
    one, found = history("below-min")
    for each in masters(found):
        assert (len(each.sync_state_set) < each.min_in_sync_replicas) == inside(one, each.ts)


def test_a_dead_replica_is_not_seen() -> None:
    one, found = history("dead-replica")
    for each in masters(found):
        seen = {replica.broker_id for replica in each.replicas}
        assert (one.replica not in seen) == inside(one, each.ts)


def test_a_stale_master_goes_on_sampling() -> None:
    one, found = history("stale-master")
    old = [each for each in masters(found) if each.master_epoch == 1 and each.ts >= one.from_ts]
    assert old and all(inside(one, each.ts) and each.broker_id == 1 for each in old)
    assert {each.broker_id for each in masters(found) if each.master_epoch == 2} == {2}


@pytest.mark.parametrize("kind", ["failover", "unclean"])
def test_a_fail_over(kind: str) -> None:
    one, found = history(kind)
    (elected,) = [each for each in found if isinstance(each, ControllerEvent) and each.type == "electMaster"]
    assert elected.unclean == (kind == "unclean") and inside(one, elected.ts)
    assert elected.last_heartbeat_ts is not None and elected.last_heartbeat_ts < elected.ts
    assert not any(elected.last_heartbeat_ts <= each.ts < elected.ts for each in masters(found))


def test_a_gap_has_no_record_and_a_skewed_clock_is_told() -> None:
    one, found = history("gap")
    assert found and not any(inside(one, each.ts) for each in found)
    one, found = history("skew")
    for each in found:
        if isinstance(each, ClockSample):
            assert (each.offset_ms >= 5_000) == (each.broker_id == one.replica)


def test_an_hour_is_the_same_each_time() -> None:
    assert records_of(FLEET, 3, START + HOUR_MS) == records_of(FLEET, 3, START + HOUR_MS)
    assert records_of(FLEET, 3, START) != records_of(FLEET, 3, START + HOUR_MS)


def test_files_have_all_records(tmp_path: Path) -> None:
    fleet = plan(2, groups=9, hours=2, kinds=KINDS, from_ts=START)
    said: list[str] = []
    n = write_telemetry(fleet, tmp_path, every_ms=60_000, progress=said.append)
    lines = [
        (path, line)
        for path in sorted(tmp_path.rglob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]  # fmt: skip
    for path, line in lines:
        record = decode_record(line)
        assert (
            path.parts[-4] == name_of(type(record)) and f"hour={record.ts // HOUR_MS % 24:02}" in path.parts
        )
    assert len(lines) == n and said
    write_compacted(fleet, tmp_path, every_ms=60_000, progress=said.append)
    for table in tables.TABLES:
        rows = [row for path in tmp_path.rglob(f"compacted/{table.name}/**/*.parquet")
                for row in pq.ParquetFile(path).read().to_pylist()]  # fmt: skip
        keys = [tuple(row[name] for name in table.key) for row in rows]
        assert len(set(keys)) == len(keys), table.name
    _check_manifests(fleet, tmp_path)
    samples = list(tmp_path.rglob("compacted/master_sample/**/*.parquet"))
    assert pq.ParquetFile(samples[0]).schema_arrow.equals(tables.MASTER_SAMPLE.schema)
    content = json.loads(write_incidents(fleet, tmp_path).read_bytes())
    assert {each["kind"] for each in content["incidents"]} == set(KINDS)
    assert set(content["incidents"][0]) >= {"kind", "cluster_name", "broker_name", "replica", "from", "to"}


def _check_manifests(fleet: Fleet, out: Path) -> None:
    """They name every part, and a later compaction of the same records finds them all there."""
    manifests = read_manifests(str(out))
    assert [each.hour_ts for each in manifests] == list(range(fleet.from_ts, fleet.to_ts, HOUR_MS))
    parts = {part.path: part for each in manifests for of in each.parts.values() for part in of}
    assert {str(path.relative_to(out)) for path in out.rglob("*.parquet")} == set(parts)
    for path, part in parts.items():
        table = pq.ParquetFile(out / path).read()
        assert (len(table), (out / path).stat().st_size) == (part.rows, part.size_bytes)
        times = table["ts"].to_pylist()
        assert (min(times), max(times)) == (part.min_ts, part.max_ts)
    rows = {each.hour_ts: {name: of.rows for name, of in each.counts.items()} for each in manifests}
    compact(find_sources([str(out)]), str(out))
    for each in read_manifests(str(out)):
        assert {name: of.rows for name, of in each.counts.items() if of.rows} == rows[each.hour_ts]


def generate(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "cli.keelmq", "analytics", "generate", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    done = generate("--groups", "9", "--hours", "1", "--rollup", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path}/incidents.json: 10 incidents in 9 groups, 1 h\n"
    assert (tmp_path / "current.json").exists()
    refused = generate("--groups", "9", "--incidents", "fire", "--output", str(tmp_path))
    assert refused.returncode == 1 and refused.stderr.startswith("keelmq: unknown incidents: fire; known are")


@pytest.mark.parametrize(
    ("groups", "hours", "kinds", "says"),
    [
        (10, 1, ("lag", "fire"), "unknown incidents: fire; known are lag, flap"),
        (0, 1, (), "1 to 100000 groups"),
        (10, 0, (), "1 to 8784 hours"),
        (2, 1, KINDS, "9 kinds of incidents need as many groups; there are 2"),
    ],
)
def test_a_plan_that_cannot_be(groups: int, hours: int, kinds: tuple[str, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        plan(1, groups=groups, hours=hours, kinds=kinds, from_ts=START)


def test_the_same_seed_is_the_same_fleet() -> None:
    one, same, other = (plan(seed, groups=50, hours=9, kinds=KINDS, from_ts=START) for seed in (4, 4, 5))
    assert one == same and one != other
