"""What manifests tell of clocks and writers."""

import random
from pathlib import Path

from analytics.compaction.manifest import HourManifest, read_manifests
from analytics.compaction.times import HOUR_MS, OFFSET_MAX_MS, STEP_MS, Clock, Times, Writer, last_offset
from keelmq.remoting.records import ClockSample, ControllerEvent, HaSample, Record
from tests.unit.analytics.compaction.model import HOUR, run, write

MINUTE_MS = 60_000


def ha(ts: int, broker_id: int = 1, *, role: str = "master", broker_name: str = "g") -> HaSample:
    return HaSample(
        ts=ts,
        cluster_name="c",
        broker_name=broker_name,
        broker_id=broker_id,
        role=role,  # type: ignore[arg-type]
        master_epoch=1,
        max_offset=0,
        confirm_offset=0,
        lag_ms=0,
    )


def clock(ts: int, offset_ms: int, broker_id: int = 1, controller_id: str = "n1") -> ClockSample:
    return ClockSample(
        ts=ts,
        cluster_name="c",
        broker_name="g",
        broker_id=broker_id,
        controller_id=controller_id,
        offset_ms=offset_ms,
        heartbeats=60,
    )


def compacted(folder: Path, *records: Record) -> HourManifest:
    write(folder / "in", records)
    (manifest,) = run(folder / "in", folder / "out")
    assert read_manifests(str(folder / "out")) == [manifest]
    return manifest


def test_writers(tmp_path: Path) -> None:
    event = ControllerEvent(
        ts=HOUR + 7, cluster_name="c", broker_name="g", event_id=1, log_id="l", type="electMaster",
        controller_id="n2", before=None, after=None,
    )  # fmt: skip
    manifest = compacted(
        tmp_path,
        *(ha(HOUR + second * 1_000) for second in range(5)),
        ha(HOUR + 5_000, role="slave"),
        ha(HOUR + 1_000, 2, role="none"),
        ha(HOUR + 2_000, broker_name="h"),
        clock(HOUR + 30_000, 1),
        clock(HOUR + 90_000, 1, 2),
        event,
    )
    assert sorted(manifest.writers) == [
        Writer("", "n1", 0, HOUR + 30_000, HOUR + 90_000),
        Writer("", "n2", 0, HOUR + 7, HOUR + 7),
        Writer("c", "g", 1, HOUR, HOUR + 5_000),
        Writer("c", "g", 2, HOUR + 1_000, HOUR + 1_000),
        Writer("c", "h", 1, HOUR + 2_000, HOUR + 2_000),
    ]
    assert (manifest.clocks, manifest.shifts) == ([Clock("c", "g", 1, 0), Clock("c", "g", 2, 0)], [])


def test_clocks_that_are_off(tmp_path: Path) -> None:
    offsets = {1: STEP_MS, 2: -90_000, 3: 90_000, 4: -HOUR_MS - 70, 5: OFFSET_MAX_MS + 1, 6: -(2**63)}
    manifest = compacted(tmp_path, *(clock(HOUR, offset, broker) for broker, offset in offsets.items()))
    assert {each.broker_id: each.offset_ms for each in manifest.clocks} == {
        1: 0, 2: -90_000, 3: 90_000, 4: -HOUR_MS - 70, 5: 0, 6: 0
    }  # fmt: skip
    assert manifest.shifts == [-1, 0, 1]


def test_of_a_clock_that_steps_the_last_piece_counts(tmp_path: Path) -> None:
    """And every offset for the hours that are to be read."""
    steps = [5, 3, -90_000, -89_950, -90_040, -89_990]
    manifest = compacted(tmp_path, *(clock(HOUR + at * MINUTE_MS, offset) for at, offset in enumerate(steps)))
    assert manifest.clocks == [Clock("c", "g", 1, -90_040)]
    assert manifest.shifts == [0]
    assert last_offset([(0, "n1", 500), (1, "n2", 520)]) == 520, "another controller has another clock"


def test_new_lines_are_added(tmp_path: Path) -> None:
    """In whatever order they come, and of one kind only: what was known of the others remains."""
    records: list[Record] = [ha(HOUR + second * 1_000, second % 3) for second in range(60)]
    records_of_clocks: list[Record] = [
        clock(HOUR + minute * MINUTE_MS, 300 * minute, 1) for minute in range(5)
    ]
    everything = compacted(tmp_path / "once", *records, *records_of_clocks)
    random.Random(37).shuffle(records)
    for at, some in enumerate((records[:20], records_of_clocks, records[20:])):
        write(tmp_path / "in", some, name=f"n-{at}.jsonl")
        (manifest,) = run(tmp_path / "in", tmp_path / "out")
    assert manifest.times == everything.times
    assert {*manifest.times} == {"ha_sample", "clock_sample"}


def test_hours_that_were_compacted_before_tell_nothing(tmp_path: Path) -> None:
    manifest = compacted(tmp_path, ha(HOUR))
    (path,) = (tmp_path / "out" / "compacted" / "manifest").glob("dt=*")
    before, _, after = path.read_bytes().partition(b',\n "times"')
    path.write_bytes(before + b"\n}\n")
    assert after
    (old,) = read_manifests(str(tmp_path / "out"))
    assert (old.times, old.writers, old.clocks, old.shifts) == ({}, [], [], [])
    assert old.parts == manifest.parts
    assert manifest.times == {"ha_sample": Times(writers=[Writer("c", "g", 1, HOUR, HOUR)])}
