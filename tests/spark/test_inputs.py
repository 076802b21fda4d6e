"""Files that are read, files that are not, and lines that are no records."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from analytics.errors import AnalyticsError
from analytics.inputs import BAD, find_inputs, good, read_records
from keelmq.remoting.records import ControllerEvent, HaSample, SendGap, encode_record
from tests.spark.conftest import add_line, put_records
from tests.spark.histories import CLUSTER, START_TS, write_telemetry

pytestmark = pytest.mark.spark


def sample(ts: int = START_TS) -> HaSample:
    return HaSample(
        ts=ts, cluster_name=CLUSTER, broker_name="broker-a", broker_id=1, role="master", master_epoch=1,
        max_offset=10, confirm_offset=5, lag_ms=7,
    )  # fmt: skip


def lines(spark: SparkSession, *roots: Path) -> DataFrame:
    return read_records(spark, [str(root) for root in roots], HaSample)


BAD_LINES = {
    "no JSON": b"\x00\xff garbage\n",
    "another shape": b"[1, 2]\n",
    "empty object": b"{}\n",
    "a text for a number": encode_record(sample()).replace(b'"max_offset":10', b'"max_offset":"ten"'),
    "a missing field": encode_record(sample()).replace(b'"confirm_offset":5,', b""),
    "a null": encode_record(sample()).replace(b'"confirm_offset":5,', b'"confirm_offset":null,'),
    "a newer version": encode_record(sample()).replace(b'"v":1', b'"v":2'),
    "a time in the year 300000": encode_record(sample(ts=10**16)),
    "a negative time": encode_record(sample(ts=-1)),
}


def test_bad_lines_are_counted_and_stop_nothing(spark: SparkSession, tmp_path: Path) -> None:
    put_records(tmp_path, sample(), sample())
    for line in BAD_LINES.values():
        add_line(tmp_path, line)
    add_line(tmp_path, b"\n  \n")
    add_line(tmp_path, encode_record(sample())[:-20])  # half a last line: a crash
    frame = lines(spark, tmp_path).cache()
    assert frame.where(BAD).count() == len(BAD_LINES) + 1
    assert good(frame).count() == 2


def test_lines_of_other_versions(spark: SparkSession, tmp_path: Path) -> None:
    """A field that we do not know is ignored, one that came later has its default."""
    put_records(tmp_path, sample())
    add_line(tmp_path, encode_record(sample()).replace(b'"v":1', b'"v":1,"new":{"a":[1]}'))
    older = (
        encode_record(sample()).replace(b'"lag_ms_max":0,', b"").replace(b'"min_in_sync_replicas":1,', b"")
    )
    assert b"lag_ms_max" not in older
    add_line(tmp_path, older)
    rows = lines(spark, tmp_path).collect()
    assert [row[BAD] for row in rows] == [False] * 3
    assert {(row["lag_ms"], row["lag_ms_max"], row["min_in_sync_replicas"]) for row in rows} == {(7, 0, 1)}


def test_files_that_grow_and_hours(spark: SparkSession, tmp_path: Path) -> None:
    put_records(tmp_path, sample())
    write_telemetry(tmp_path, [sample()], suffix=".jsonl.open")
    later = tmp_path / "ha_sample" / "dt=2026-01-02" / "hour=13"
    later.mkdir(parents=True)
    (later / "node-1.jsonl").write_bytes(encode_record(sample()))
    (later / "node-1.jsonl.tmp").write_bytes(b"not ours")
    (later / "notes.txt").write_bytes(b"not ours")
    frame = lines(spark, tmp_path)
    assert (frame.count(), frame.where(BAD).count()) == (3, 0)


def test_a_kind_without_files_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    put_records(tmp_path, sample())
    (tmp_path / "controller_event").mkdir()
    for record in (ControllerEvent, SendGap):
        frame = read_records(spark, [str(tmp_path)], record)
        assert frame.count() == 0
        assert {"ts", BAD, "broker_name"} <= set(frame.columns)


def test_several_roots_and_strange_names(spark: SparkSession, tmp_path: Path) -> None:
    """Spark takes paths as patterns; a directory of a user is none."""
    strange = tmp_path / "a b[1]{x,y}*?%20#é" / "telemetry"
    put_records(strange, sample())
    put_records(tmp_path / "b", sample())
    assert lines(spark, strange, tmp_path / "b", tmp_path / "none").count() == 2


def test_a_url_is_passed_on(spark: SparkSession, tmp_path: Path) -> None:
    put_records(tmp_path, sample())
    found = find_inputs(f"file://{tmp_path}/")
    assert (found.roots, found.size_bytes) == ((f"file://{tmp_path}",), None)
    assert read_records(spark, found.roots, HaSample).count() == 1
    assert read_records(spark, found.roots, SendGap).count() == 0


def test_the_folders_that_are_read(tmp_path: Path) -> None:
    for folder in ("broker-0/telemetry", "broker-1/telemetry", "demo/telemetry"):
        put_records(tmp_path / folder, sample())
    (tmp_path / "broker-1/telemetry/telemetry").mkdir()
    (tmp_path / "empty/telemetry").mkdir(parents=True)
    found = find_inputs(str(tmp_path))
    assert [str(Path(root).relative_to(tmp_path)) for root in found.roots] == [
        "broker-0/telemetry", "broker-1/telemetry", "demo/telemetry",
    ]  # fmt: skip
    assert found.files == 3
    assert found.size_bytes == 3 * len(encode_record(sample()))
    assert find_inputs(str(tmp_path / "broker-0/telemetry")).roots == (str(tmp_path / "broker-0/telemetry"),)


def test_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "x/telemetry/ha_sample/dt=2026-01-01").mkdir(parents=True)
    with pytest.raises(AnalyticsError, match=r"no telemetry in .*ha_sample/.*keelmq demo --keep"):
        find_inputs(str(tmp_path))
    with pytest.raises(AnalyticsError, match="does not exist"):
        find_inputs(str(tmp_path / "none"))
    (tmp_path / "file").write_text("")
    with pytest.raises(AnalyticsError, match="is not a directory"):
        find_inputs(str(tmp_path / "file"))
