"""The rows of a batch: what a task decodes, writes and counts."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analytics.stream import rows
from analytics.stream.rows import RANGES, WriteRows, rows_of
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


def take(root: Path, out: Path, *ranges: tuple[str, int, int]) -> list[dict[str, Any]]:
    columns = [
        pa.array(each, kind) for each, kind in zip(zip(*ranges, strict=True), RANGES.types, strict=True)
    ]
    (written,) = WriteRows(str(root), str(out))([pa.record_batch(columns, schema=RANGES)])
    found: list[dict[str, Any]] = written.to_pylist()
    return found


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
    written = {(each["table"], each["minute_ts"] - MINUTE): each for each in take(root, out, *ranges)}
    assert {key: each["rows"] for key, each in written.items() if key[0]} == {
        ("master_sample", 0): 3, ("master_sample", 60_000): 1,
        ("replica_sample", 0): 6, ("replica_sample", 60_000): 2,
        ("slave_sample", 0): 1, ("controller_event", -60_000): 1,
    }  # fmt: skip
    assert written["", -MINUTE]["bad"] == 2
    first = written["master_sample", 0]
    assert (first["from_ts"], first["to_ts"]) == (MINUTE + 1_000, MINUTE + 3_000)
    assert sorted(path.name for path in out.iterdir()) == [
        "controller_event-0.parquet", "master_sample-0.parquet", "replica_sample-0.parquet",
    ]  # fmt: skip
    found = rows_of(
        [str(out / "master_sample-0.parquet")] * 2, ["broker_name", "ts"], dictionaries=["broker_name"]
    )
    assert len(found) == 8 and set(found["broker_name"].to_pylist()) == {"b", "c"}


def test_ranges_of_a_file_that_became_shorter(tmp_path: Path) -> None:
    """What is left of it is read, and its last half line does no harm to the next file."""
    name, _, end = write(tmp_path / "in", "ha_sample", "n1", sample(1), sample(2))
    (tmp_path / "in" / f"{name}.open").write_bytes(encode_record(sample(1)) + b'{"record":"ha_')
    other = write(tmp_path / "in", "ha_sample", "n2", sample(5))
    gone = ("ha_sample/dt=2025-02-19/hour=21/n3.jsonl", 0, 10)
    written = take(tmp_path / "in", tmp_path / "out", (name, 0, end), other, gone)
    assert {each["table"]: each["rows"] for each in written} == {
        "master_sample": 2,
        "replica_sample": 4,
        "": 0,
    }
    assert written[-1]["bad"] == 0


def test_a_task_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = [write(tmp_path / "in", kind, "n1", sample(1)) for kind in ("ha_sample", "role_change")]
    real = rows.decode_lines

    def fail(data: bytes, kind: str) -> Any:
        if kind == "role_change":
            raise OSError("no space left on device")
        return real(data, kind)

    monkeypatch.setattr(rows, "decode_lines", fail)
    with pytest.raises(OSError, match="no space"):
        take(tmp_path / "in", tmp_path / "out", *ranges)
    assert list((tmp_path / "out").iterdir()) == []
