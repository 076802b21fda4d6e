"""GrowingFiles: whole lines of files that grow, are renamed, cut or deleted."""

import os
from pathlib import Path

import pytest

from analytics.live.files import GrowingFiles, kind_of

FOLDER = "ha_sample/dt=2026-01-01/hour=00"
NAME = f"{FOLDER}/n-1.jsonl"
HOURS = (490_896, 490_896)


def write(root: Path, name: str, data: bytes) -> Path:
    path = root / FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def read(files: GrowingFiles, start: int, end: int) -> bytes:
    return b"".join(files.chunks(NAME, start, end))


def test_a_half_line_waits(tmp_path: Path) -> None:
    path = write(tmp_path, "n-1.jsonl.open", b"one\ntwo\nthr")
    files = GrowingFiles(tmp_path)
    assert files.whole_lines(*HOURS) == {NAME: 8}
    with path.open("ab") as file:
        file.write(b"ee\n")
    assert files.whole_lines(*HOURS) == {NAME: 14}
    assert read(files, 8, 14) == b"three\n"


def test_a_file_without_a_line_end(tmp_path: Path) -> None:
    write(tmp_path, "n-1.jsonl.open", b"x" * 200_000)
    assert GrowingFiles(tmp_path).whole_lines(*HOURS) == {NAME: 0}


def test_its_name_does_not_change_when_its_hour_ends(tmp_path: Path) -> None:
    path = write(tmp_path, "n-1.jsonl.open", b"one\ntwo\n")
    files = GrowingFiles(tmp_path)
    assert files.whole_lines(*HOURS) == {NAME: 8}
    path.rename(path.with_suffix(""))
    assert files.whole_lines(*HOURS) == {NAME: 8}
    assert read(files, 4, 8) == b"two\n"


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_closed_file_beside_a_copy_from_when_it_grew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reversed: bool
) -> None:
    """In whatever order the system lists them."""
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: sorted(listed(path), reverse=is_reversed))
    write(tmp_path, "n-1.jsonl", b"one\ntwo\n")
    write(tmp_path, "n-1.jsonl.open", b"one\ntw")
    assert GrowingFiles(tmp_path).whole_lines(*HOURS) == {NAME: 8}


def test_a_cut_is_at_a_line_end(tmp_path: Path) -> None:
    long = b"y" * 100_000 + b"\n"
    write(tmp_path, "n-1.jsonl", b"one\ntwo\n" + long + b"z\n")
    files = GrowingFiles(tmp_path)
    assert files.cut(NAME, 0, 6) == 4
    assert files.cut(NAME, 4, 8) == 8
    assert files.cut(NAME, 8, 50) == 8 + len(long), "a batch has at least one line"
    assert files.cut(NAME, 8, 8 + len(long) + 1) == 8 + len(long)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    path = write(tmp_path, "n-1.jsonl", b"one\n")
    files = GrowingFiles(tmp_path)
    assert files.whole_lines(*HOURS) == {NAME: 4}
    path.unlink()
    assert read(files, 0, 4) == b""
    assert files.cut(NAME, 0, 4) == 0
    assert files.whole_lines(*HOURS) == {}


def test_chunks_are_whole_lines(tmp_path: Path) -> None:
    lines = [b"%d %s\n" % (number, b"x" * 99_999) for number in range(300)]
    write(tmp_path, "n-1.jsonl", b"".join(lines))
    files = GrowingFiles(tmp_path)
    end = files.whole_lines(*HOURS)[NAME]
    chunks = list(files.chunks(NAME, len(lines[0]), end))
    assert len(chunks) > 2
    assert all(chunk.endswith(b"\n") for chunk in chunks)
    assert b"".join(chunks) == b"".join(lines[1:])


def test_several_nodes_other_files_and_other_hours(tmp_path: Path) -> None:
    write(tmp_path / "a" / "telemetry", "n-1.jsonl", b"one\n")
    write(tmp_path / "b" / "c" / "telemetry", "n-1.jsonl.open", b"two\nthree\n")
    write(tmp_path / "b" / "c" / "telemetry", "n-2.jsonl.gz", b"zzz\n")
    write(tmp_path / "b" / "elsewhere", "n-3.jsonl", b"zzz\n")
    files = GrowingFiles(tmp_path)
    assert files.whole_lines(*HOURS) == {
        f"a/telemetry/{FOLDER}/n-1.jsonl": 4,
        f"b/c/telemetry/{FOLDER}/n-1.jsonl": 10,
    }
    assert files.whole_lines(HOURS[0] + 1, HOURS[0] + 3) == {}
    assert kind_of(f"a/telemetry/{FOLDER}/n-1.jsonl") == kind_of(NAME) == "ha_sample"
