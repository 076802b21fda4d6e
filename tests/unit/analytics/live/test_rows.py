"""The rows of a batch: what is decoded, written and counted."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from analytics.live import rows
from analytics.live.files import GrowingFiles
from analytics.live.positions import Range
from analytics.live.rows import Written, write_rows
from keelmq.remoting.records import ControllerEvent, HaSample, Record, ReplicaSample, encode_record

MINUTE = 29_000_000 * 60_000
HOUR = "dt=2025-02-19/hour=21"


def sample(second: int, group: str = "b", role: str = "master") -> HaSample:
    replicas = tuple(ReplicaSample(broker_id=each, ack_offset=1, lag_ms=1, in_sync=True) for each in (2, 3))
    return HaSample(
        ts=MINUTE + second * 1_000, cluster_name="C", broker_name=group, broker_id=1, role=role,  # type: ignore[arg-type]
        master_epoch=1, max_offset=10, confirm_offset=10, replicas=replicas,
    )  # fmt: skip


def write(root: Path, kind: str, node: str, *records: Record, rest: bytes = b"") -> tuple[str, int, int]:
    name = f"{kind}/{HOUR}/{node}.jsonl"
    path = root / f"{name}.open"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(encode_record, records)) + rest)
    return name, 0, path.stat().st_size


def take(root: Path, out: Path, *ranges: tuple[str, int, int]) -> Written:
    return write_rows(GrowingFiles(root), [Range(*each) for each in ranges], out, MINUTE)


@pytest.mark.parametrize("decoded_bytes", [1, 4 << 20])
def test_files_of_several_nodes_and_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded_bytes: int
) -> None:
    monkeypatch.setattr(rows, "DECODED_BYTES", decoded_bytes)
    root, out = tmp_path / "in", tmp_path / "out"
    event = ControllerEvent(
        ts=MINUTE - 1, cluster_name="C", broker_name="b", event_id=1, type="electMaster", controller_id="n0"
    )
    ranges = [
        write(root, "ha_sample", "n1", *map(sample, (3, 1, 61)), rest=b"[]\n"),
        write(root, "ha_sample", "n2", sample(2, "c"), sample(2, "c", "slave")),
        write(root, "controller_event", "n1", event, rest=b"{\n"),
    ]
    written = take(root, out, *ranges)
    assert {(table, minute - MINUTE): rows for (table, minute), (rows, _, _) in written.minutes.items()} == {
        ("master_sample", 0): 3, ("master_sample", 60_000): 1,
        ("replica_sample", 0): 6, ("replica_sample", 60_000): 2,
        ("slave_sample", 0): 1, ("controller_event", -60_000): 1,
    }  # fmt: skip
    assert written.bad == 2 and written.rows()["master_sample"] == 4
    assert written.minutes["master_sample", MINUTE][1:] == (MINUTE + 1_000, MINUTE + 3_000)
    assert sorted(path.name for path in out.iterdir()) == [
        "controller_event.parquet", "epochs.parquet", "master_sample.parquet", "replica_sample.parquet",
    ]  # fmt: skip
    assert written.writers == {
        ("C", "b", "1"): (MINUTE + 1_000, MINUTE + 61_000),
        ("C", "c", "1"): (MINUTE + 2_000, MINUTE + 2_000),
        ("n0",): (MINUTE - 1, MINUTE - 1),
    }
    found = pq.ParquetFile(out / "master_sample.parquet").read()
    assert sorted(found["broker_name"].to_pylist()) == ["b", "b", "b", "c"]
    epochs = [(*row.values(),)[1:] for row in pq.ParquetFile(out / "epochs.parquet").read().to_pylist()]
    assert sorted(epochs) == [
        ("b", 1, MINUTE, 1, MINUTE + 1_000, MINUTE + 3_000),
        ("b", 1, MINUTE + 60_000, 1, MINUTE + 61_000, MINUTE + 61_000),
        ("c", 1, MINUTE, 1, MINUTE + 2_000, MINUTE + 2_000),
    ]


def test_ranges_of_a_file_that_became_shorter(tmp_path: Path) -> None:
    """What is left of it is read, and its last half line does no harm to the next file."""
    name, _, end = write(tmp_path / "in", "ha_sample", "n1", sample(1), sample(2))
    (tmp_path / "in" / f"{name}.open").write_bytes(encode_record(sample(1)) + b'{"record":"ha_')
    other = write(tmp_path / "in", "ha_sample", "n2", sample(5))
    gone = ("ha_sample/dt=2025-02-19/hour=21/n3.jsonl", 0, 10)
    written = take(tmp_path / "in", tmp_path / "out", (name, 0, end), other, gone)
    assert written.rows() == {"master_sample": 2, "replica_sample": 4} and written.bad == 0
