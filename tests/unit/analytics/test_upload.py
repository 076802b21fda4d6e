"""Upload: the target follows the source, on a disk and on an object store."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pa_fs
import pytest

from analytics.compaction.storage import LocalStorage, RemoteStorage, Storage, open_storage
from analytics.errors import AnalyticsError
from analytics.upload import SCRATCH, Upload, keep_up
from tests.unit.analytics.s3 import s3_server

FOLDER = "ha_sample/dt=2026-01-01/hour=00"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "telemetry" / FOLDER).mkdir(parents=True)
    return tmp_path / "telemetry"


@pytest.fixture(params=["disk", "s3"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "disk":
        yield LocalStorage(tmp_path / "target")
        return
    with s3_server() as url, open_storage(url % "telemetry") as storage:
        assert isinstance(storage, RemoteStorage)
        pa_fs.FileSystem.from_uri(url % "")[0].create_dir("bucket")
        yield storage


def there(target: Storage) -> dict[str, bytes]:
    return {each.name: target.read(f"{FOLDER}/{each.name}") for each in target.files(FOLDER)}


def test_it_follows(source: Path, target: Storage) -> None:
    folder, upload = source / FOLDER, Upload(source, target)
    (folder / "a-1.jsonl").write_bytes(b"one\n")
    (folder / "a-2.jsonl.open").write_bytes(b"two\nthr")
    (folder / "notes.txt").write_bytes(b"?")
    assert upload.once().files == 2
    assert there(target) == {"a-1.jsonl": b"one\n", "a-2.jsonl.open": b"two\n"}, "whole lines"
    assert (again := upload.once()).files == 0 and again.files_there == 2
    with (folder / "a-2.jsonl.open").open("ab") as file:
        file.write(b"ee\n")
    assert upload.once().files == 1
    assert there(target)["a-2.jsonl.open"] == b"two\nthree\n"
    (folder / "a-2.jsonl.open").rename(folder / "a-2.jsonl")
    assert upload.once().files == 1
    assert there(target) == {"a-1.jsonl": b"one\n", "a-2.jsonl": b"two\nthree\n"}
    (folder / "a-1.jsonl").unlink()
    upload.once()
    assert "a-1.jsonl" in there(target), "what the source's retention deletes is kept"


def test_what_killed_processes_left_is_deleted(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    for name in ("old", "new"):
        (target / f"{SCRATCH}{name}").mkdir(parents=True)
        (target / f"{SCRATCH}{name}" / "a-1.jsonl").write_bytes(b"half")
    os.utime(target / f"{SCRATCH}old", (0, 0))
    Upload(source, LocalStorage(target)).once()
    assert [path.name for path in target.iterdir()] == [f"{SCRATCH}new"], "another process may be writing it"


def test_a_new_process_knows_what_is_there(source: Path, target: Storage) -> None:
    (source / FOLDER / "a-1.jsonl").write_bytes(b"one\n")
    (source / FOLDER / "a-2.jsonl.open").write_bytes(b"two\n")
    Upload(source, target).once()
    (source / FOLDER / "a-2.jsonl.open").rename(source / FOLDER / "a-2.jsonl")
    done = Upload(source, target).once()
    assert (done.files, done.files_there) == (1, 1)
    assert set(there(target)) == {"a-1.jsonl", "a-2.jsonl"}


def test_not_a_telemetry_directory(tmp_path: Path) -> None:
    with pytest.raises(AnalyticsError, match=r"is not a telemetry directory.*storePathRootDir"):
        Upload(tmp_path, LocalStorage(tmp_path / "target")).once()


def test_errors_are_told_and_tried_again(source: Path, tmp_path: Path) -> None:
    (source / FOLDER / "a-1.jsonl").write_bytes(b"one\n")
    target, told, stopped = tmp_path / "target", list[str](), threading.Event()
    target.write_text("a file where a folder should be")

    def progress(text: str) -> None:
        told.append(text)
        if len(told) == 1:
            target.unlink()
        stopped.set()

    keep_up(Upload(source, LocalStorage(target)), every_ms=10, stopped=stopped, progress=progress)
    assert told[0].startswith("cannot copy: ") and "the next attempt" in told[0]
    assert told[1] == "1 files, 0.0 MB copied; 0 were there"
    assert (target / FOLDER / "a-1.jsonl").read_bytes() == b"one\n"


def test_the_last_look_must_succeed(source: Path, tmp_path: Path) -> None:
    (source / FOLDER / "a-1.jsonl").write_bytes(b"one\n")
    (tmp_path / "target").write_text("")
    stopped = threading.Event()
    stopped.set()
    upload = Upload(source, LocalStorage(tmp_path / "target"))
    with pytest.raises(AnalyticsError, match="not everything was copied"):
        keep_up(upload, every_ms=10, stopped=stopped, progress=print)
