"""The batches that are kept: of one that was not finished nothing is left, as if it had never been there."""

from pathlib import Path

from analytics.live.batches import HOUR_MS, Batch, Batches
from analytics.live.files import GrowingFiles
from analytics.live.positions import Range
from analytics.tables import MASTER_SAMPLE
from keelmq.remoting.records import HaSample, encode_record

HOUR = 490_000
NAME = "ha_sample/dt=2025-11-24/hour=16/n-1.jsonl"


def sample(second: int) -> bytes:
    return encode_record(
        HaSample(
            ts=HOUR * HOUR_MS + second * 1_000, cluster_name="C", broker_name="b", broker_id=1, role="master",
            master_epoch=1 + second // 60, max_offset=1, confirm_offset=1,
        )
    )  # fmt: skip


def take(root: Path, batches: Batches, number: int, *seconds: int) -> Batch:
    path = root / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    start = path.stat().st_size if path.exists() else 0
    with path.open("ab") as file:
        file.writelines(map(sample, seconds))
    ranges = [Range(NAME, start, path.stat().st_size)]
    batch, _ = batches.take(GrowingFiles(root), ranges, number, HOUR * HOUR_MS + 300_000)
    return batch


def epochs(batches: Batches) -> list[int]:
    return sorted(batches.epochs["master_epoch"].to_pylist())


def test_a_batch_that_was_not_finished_is_gone(tmp_path: Path) -> None:
    root, live = tmp_path / "in", tmp_path / "live"
    batches = Batches(live, newest=-1)
    first = take(root, batches, 0, 1, 2)
    take(root, batches, 1, 61, 62)
    (live / "records" / "batch=7").mkdir()
    assert epochs(batches) == [1, 2]
    again = Batches(live, newest=0)
    assert list(again) == [first] and epochs(again) == [1]
    assert [path.name for path in (live / "records").iterdir()] == ["batch=0"]
    assert [path.name for path in (live / "batches").iterdir()] == ["0.json"]


def test_what_a_batch_says_of_its_rows(tmp_path: Path) -> None:
    batches = Batches(tmp_path / "live", newest=-1)
    batch = take(tmp_path / "in", batches, 0, 1, 61, 100_000_000)
    start = HOUR * HOUR_MS
    assert batch.minutes == [start, start + 60_000], "a year ahead: it is counted only"
    assert batch.rows == {"master_sample": 3} and batch.hours == {HOUR: start + 61_000}
    assert (
        len(batches.paths(MASTER_SAMPLE, {start})) == 1
        and batches.paths(MASTER_SAMPLE, {start + 120_000}) == []
    )
    assert batches.masters_within({start, start + 60_000}) == 3


def test_old_batches_are_forgotten_but_the_newest(tmp_path: Path) -> None:
    batches = Batches(tmp_path / "live", newest=-1)
    for number in range(3):
        take(tmp_path / "in", batches, number, number * 60)
    batches.forget(HOUR * HOUR_MS + 60_000)
    assert [each.number for each in batches] == [1, 2] and epochs(batches) == [2, 3]
    batches.forget(HOUR * HOUR_MS + 10 * HOUR_MS)
    assert [each.number for each in batches] == [2] and epochs(batches) == []
