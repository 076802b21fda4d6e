"""The stream: totals are exact whatever is late, doubled, damaged or repeated after a crash."""

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from keelmq.remoting.records import HaSample, ReplicaSample, encode_record
from keelmq.runtime.clock import wall_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from analytics.live.minutes import Piece
    from analytics.live.tables import LiveTables

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

HOUR_TS = wall_ms() // 3_600_000 * 3_600_000
"""Only files of the last hours are followed."""
NOW = HOUR_TS + 30 * 60_000


def sample(second: int, group: str = "b", broker_id: int = 1, role: str = "master") -> HaSample:
    return HaSample(
        ts=HOUR_TS + second * 1000,
        cluster_name="C",
        broker_name=group,
        broker_id=broker_id,
        role=role,  # type: ignore[arg-type]
        master_epoch=3,
        max_offset=second * 10,
        confirm_offset=second * 10,
        replicas=(ReplicaSample(broker_id=2, ack_offset=second, lag_ms=1, in_sync=True),),
    )


def count_minutes(spark: "SparkSession", piece: "Piece") -> "dict[str, pa.Table]":
    """Masters' samples and replicas' acks per group and minute."""
    from pyspark.sql import functions as F

    from analytics.queries.windows import MINUTE_MS, window_of
    from analytics.tables import MASTER_SAMPLE, REPLICA_SAMPLE

    minute = window_of(F.col("ts"), MINUTE_MS).alias("window_ts")
    found = {}
    for name, table in (("masters", MASTER_SAMPLE), ("replicas", REPLICA_SAMPLE)):
        rows = piece.rows(spark, table).groupBy("broker_name", minute).agg(F.count("*").alias("n"))
        found[name] = rows.toArrow()
    return found


class Files:
    """Appends lines, as brokers do."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def append(self, *samples: HaSample, node: str = "n", rest: bytes = b"") -> None:
        hour = time.strftime("dt=%Y-%m-%d/hour=%H", time.gmtime(HOUR_TS / 1000))
        folder = self.root / "ha_sample" / hour
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{node}-1.jsonl.open").open("ab") as file:
            file.write(b"".join(map(encode_record, samples)) + rest)

    def close(self, node: str = "n") -> None:
        (path,) = self.root.rglob(f"{node}-1.jsonl.open")
        path.rename(path.with_suffix(""))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "telemetry")


def follow(spark: "SparkSession", files: Files, out: Path, *, fail: str = "", now: int = NOW) -> "LiveTables":
    """Takes what is there now as the next batch. `fail`: before or
    after the tables are written, or when their status is."""
    from analytics.live.following import Following
    from analytics.live.positions import Positions, ranges
    from analytics.live.tables import LiveTables

    tables = LiveTables(spark, files.root, out, compute=count_minutes, wall_clock=lambda: now)
    known = out / "position"
    following = Following(files.root, bytes_max=1 << 40, hour=HOUR_TS // 3_600_000)
    start = Positions.of_json(json.loads(known.read_text())) if known.exists() else following.first()
    end = following.after(start)
    batch = list(ranges(start, end))
    if not batch:
        return tables
    if fail == "before":
        raise Crash
    tables.take(batch, tables.status.batch + 1)
    if fail == "after":
        raise Crash
    tables.commit(took_ms=0)
    if fail == "committed":
        raise Crash
    known.write_text(json.dumps(end.to_json()))
    return tables


class Crash(Exception):
    pass


def found(tables: "LiveTables", name: str) -> dict[tuple[str, int], int]:
    rows = [row for _, table in tables.kept(name) for row in table.to_pylist()]
    return {(row["broker_name"], (row["window_ts"] - HOUR_TS) // 60_000): row["n"] for row in rows}


@pytest.mark.parametrize("rows_at_once", [500_000, 1])
def test_late_doubled_and_damaged_lines(
    spark: "SparkSession",
    files: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows_at_once: int,
) -> None:
    from analytics.live import tables as live

    monkeypatch.setattr(live, "ROWS_AT_ONCE", rows_at_once)
    out = tmp_path / "live"
    first = [sample(second) for second in range(1200, 1290)]
    files.append(*first)
    files.append(*first[:50], sample(1230, "c"), node="copy")
    files.append(
        sample(1231, broker_id=2, role="slave"), rest=b"{broken\n[]\n" + encode_record(sample(1299))[:40]
    )
    tables = follow(spark, files, out)
    assert found(tables, "masters") == {("b", 20): 60, ("b", 21): 30, ("c", 20): 1}
    assert found(tables, "replicas") == found(tables, "masters")
    assert (tables.status.bad, tables.status.late) == (2, 0)
    files.append(rest=encode_record(sample(1299))[40:])  # the other half of the line
    files.append(sample(1201, "late"), sample(-7_000, "left to the batch job"), node="copy")
    files.close()
    tables = follow(spark, files, out)
    assert found(tables, "masters") == {("b", 20): 60, ("b", 21): 31, ("c", 20): 1, ("late", 20): 1}
    assert (tables.status.bad, tables.status.late) == (2, 2)  # one sample, and its replica
    again = follow(spark, files, out)
    assert again.status == tables.status


def test_a_batch_with_many_values(spark: "SparkSession", files: Files, tmp_path: Path) -> None:
    """Values of a column that take more than 8 KiB: Spark could not read them in LZ4 (parquet-java #3478)."""
    files.append(*(sample(second) for second in range(1_800)))
    tables = follow(spark, files, tmp_path / "live")
    assert found(tables, "masters") == {("b", minute): 60 for minute in range(30)}


def test_a_clock_of_the_far_future_keeps_no_batch(
    spark: "SparkSession", files: Files, tmp_path: Path
) -> None:
    from analytics.live.tables import KEPT_MS

    out = tmp_path / "live"
    files.append(sample(1200), sample(10**9))
    tables = follow(spark, files, out)
    assert found(tables, "masters") == {("b", 20): 1}
    assert tables.status.data_to_ts == HOUR_TS + 1_200_000
    files.append(sample(1201))
    follow(spark, files, out, now=NOW + 2 * KEPT_MS)
    assert [path.name for path in (out / "records").iterdir()] == ["batch=1"]


def test_a_clock_that_was_ahead_for_a_moment(spark: "SparkSession", files: Files, tmp_path: Path) -> None:
    """Of the machine with the stream and a broker."""
    day_s = 24 * 3_600
    files.append(sample(1200 + day_s))
    ahead = follow(spark, files, tmp_path / "live", now=NOW + day_s * 1_000)
    assert ahead.status.data_to_ts == HOUR_TS + (1_200 + day_s) * 1_000
    files.append(sample(1201))
    assert follow(spark, files, tmp_path / "live").status.data_to_ts <= NOW


@pytest.mark.parametrize("fail", ["before", "after"])
def test_a_repeated_batch(spark: "SparkSession", files: Files, tmp_path: Path, fail: str) -> None:
    """It has the bytes that have come since, too, and replaces what was left of it."""
    crashed, smooth = tmp_path / "crashed", tmp_path / "smooth"
    files.append(*(sample(second) for second in range(1200, 1230)))
    follow(spark, files, crashed)
    files.append(*(sample(second) for second in range(1230, 1240)))
    with pytest.raises(Crash):
        follow(spark, files, crashed, fail=fail)
    files.append(*(sample(second) for second in range(1240, 1270)))
    left = crashed / "records" / "batch=1" / "left-by-a-kill"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.touch()
    tables = follow(spark, files, crashed)
    assert not left.exists()
    other = follow(spark, files, smooth)
    assert found(tables, "masters") == found(other, "masters") == {("b", 20): 60, ("b", 21): 10}
    assert tables.status.rows == other.status.rows == 140
    assert contents(crashed) == contents(smooth)


def contents(out: Path) -> dict[Path, bytes]:
    return {path.relative_to(out): path.read_bytes() for path in out.glob("rollup/*/*")}


def recent(seconds: int) -> list[HaSample]:
    """Samples of the last seconds of the present hour."""
    first = (wall_ms() - HOUR_TS) // 1_000 - seconds
    return [sample(second) for second in range(max(first, 0), max(first, 0) + seconds)]


def lag_samples(out: Path) -> int:
    paths = (out / "live" / "rollup" / "lag").glob("*.parquet")
    return sum(sum(pq.ParquetFile(path).read()["samples"].to_pylist()) for path in paths)


def test_structured_streaming_takes_the_same_batches(
    spark: "SparkSession", files: Files, tmp_path: Path
) -> None:
    """Only Spark in this process streams. It goes on from the checkpoint, with the batch that was lost."""
    from analytics.live.app import is_of_this_process
    from analytics.live.publish import LiveRun
    from analytics.live.streaming import run_query

    if not is_of_this_process(spark):
        pytest.skip("only Spark in this process calls functions of a stream here")
    out, some = tmp_path / "out", recent(50)

    def follow_until(samples: int) -> None:
        run, stopped, lines = LiveRun(spark, files.root, out, every_ms=1_000), threading.Event(), list[str]()

        def heard(line: str) -> None:
            lines.append(line)
            if lag_samples(out) >= samples:
                stopped.set()

        run_query(spark, files.root, tmp_path / "checkpoint", run, 0.2, stopped, heard)
        assert lines

    files.append(*some[:20])
    follow_until(20)
    files.append(*some[20:30], *some[:5])
    follow_until(30)
    status = out / "live" / "status.json"
    known = json.loads(status.read_bytes())
    last = known["batch"]
    for name in (str(last), f".{last}.crc"):  # not there if the query was stopped before it wrote them
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    status.write_text(json.dumps(known | {"batch": last - 1}))  # as if killed before this batch was done
    files.append(*some[30:])
    follow_until(50)
    assert lag_samples(out) == 50


def test_the_loop_goes_on_from_its_position(
    spark: "SparkSession", files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before position.json is written, it reads the bytes of the batch again."""
    from analytics.live import loop as module
    from analytics.live.following import Following
    from analytics.live.loop import LiveLoop

    out = tmp_path / "out"

    def loop() -> LiveLoop:
        following = Following(files.root, hour=HOUR_TS // 3_600_000)
        return LiveLoop(spark, files.root, out, every_ms=1_000, following=following, wall_clock=lambda: NOW)

    first = loop()
    assert first.step() == (None, False), "nothing is there"
    files.append(*(sample(second) for second in range(1200, 1230)))
    assert str(first.step()[0]).startswith("Status(batch=0, ")
    files.append(*(sample(second) for second in range(1230, 1240)))
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(module, "replace_file", raise_crash)
        first.step()
    assert lag_samples(out) == 40
    files.append(*(sample(second) for second in range(1240, 1250)))
    second = loop()
    status, has_more = second.step()
    assert status is not None and (status.batch, status.rows, has_more) == (1, 100, False)
    assert lag_samples(out) == 50 and second.step() == (None, False)
    (out / "live" / "position.json").write_bytes(b"\0" * 100)  # what a power failure or a bad disk leaves
    status, _ = loop().step()
    assert status is not None and (status.batch, lag_samples(out)) == (0, 50)


def raise_crash(*_: object, **__: object) -> None:
    raise Crash
