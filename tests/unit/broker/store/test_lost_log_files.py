"""Files of the CommitLog that are missing: the start names them, and what it says to do works."""

import os
import subprocess
from pathlib import Path

import pytest

from broker.store.log.mapped_file import StoreError, file_name
from broker.store.message_store import MessageStore
from broker.store.whole_reading import DamagedRecordError
from tests.support.file_damage import content_of
from tests.support.store_parts import crash, open_store, put, records_in

FILE_BYTES = 4_096
COUNT = 60


def filled(root: Path, *, clean: bool) -> list[int]:
    """Returns the log offset of each message."""
    store = open_store(root, commit_log_file_bytes=FILE_BYTES)
    offsets = [put(store, b"%0200d" % number)[0] for number in range(COUNT)]
    store.set_confirm_offset(store.commit_log.max_offset)
    while store.dispatcher.dispatch(100):
        pass
    store.flush_checkpoint()
    if clean:
        store.close()
    else:
        crash(store)
    return offsets


def readable(store: MessageStore) -> set[int]:
    found = set()
    for offset in range(COUNT):
        try:
            result = store.get("TopicA", 0, offset, 1, 1 << 20, None, decodes=True)
        except DamagedRecordError:
            continue
        found.update(record.queue_offset for record in records_in(result))
    return found


def log_file(root: Path, number: int) -> Path:
    return root / "commitlog" / file_name(number * FILE_BYTES)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", [{1}, {1, 2}])
def test_a_missing_file_is_named_and_zeros_in_its_place_bring_back_the_rest(
    tmp_path: Path, lost: set[int], clean: bool
) -> None:
    offsets = filled(tmp_path, clean=clean)
    for number in lost:
        log_file(tmp_path, number).unlink()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError) as refused:
        open_store(tmp_path, commit_log_file_bytes=FILE_BYTES)
    assert sorted(tmp_path.rglob("*")) == before
    text, first = str(refused.value), log_file(tmp_path, 1)
    assert f"{first} is missing" in text if len(lost) == 1 else f"{first} and 1 behind it are missing" in text
    assert f"{FILE_BYTES}..{(1 + len(lost)) * FILE_BYTES}" in text
    command = text.partition("(truncate")[2].partition(")")[0].split()
    for number in lost:
        subprocess.run(["truncate", *command[:-1], log_file(tmp_path, number)], check=True)
    store = open_store(tmp_path, commit_log_file_bytes=FILE_BYTES)
    whole = {number for number, offset in enumerate(offsets) if offset // FILE_BYTES not in lost}
    assert 0 < len(whole) < COUNT and readable(store) == whole
    assert store.damage, "a read, or the scan of a start, has found it: it is healed from a replica"
    store.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("size", [1, 1_000, 1_024, FILE_BYTES - 600])
@pytest.mark.parametrize("number", [0, 1])
def test_a_short_file_is_named_and_serves_its_rest_when_it_has_its_size(
    tmp_path: Path, number: int, size: int, clean: bool
) -> None:
    offsets = filled(tmp_path, clean=clean)
    os.truncate(log_file(tmp_path, number), size)
    before = content_of(tmp_path)
    with pytest.raises(StoreError) as refused:
        open_store(tmp_path, commit_log_file_bytes=FILE_BYTES)
    assert content_of(tmp_path) == before
    text, begin = str(refused.value), number * FILE_BYTES
    assert f"{log_file(tmp_path, number)} has {size} of {FILE_BYTES} bytes" in text
    assert f"{begin + size}..{begin + FILE_BYTES} were there" in text
    command = text.partition("(truncate")[2].partition(")")[0].split()
    subprocess.run(["truncate", *command], check=True)
    store = open_store(tmp_path, commit_log_file_bytes=FILE_BYTES)
    ends, lost = [*offsets[1:], store.commit_log.max_offset], range(begin + size, begin + FILE_BYTES)
    whole = {each for each, at in enumerate(offsets) if ends[each] <= lost.start or at >= lost.stop}
    assert len(whole) < COUNT and readable(store) >= whole
    assert store.damage and put(store)[2] == COUNT
    store.close()


@pytest.mark.parametrize(
    ("kept", "said"),
    [(1, "and {} behind it are missing"), (0, "and {} behind it are missing"), (-1, "is missing")],
)
def test_missing_files_at_the_end_are_named(
    tmp_path: Path, kept: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, clean=True)
    files = sorted((tmp_path / "commitlog").iterdir())
    for path in files[kept:]:
        path.unlink()
    store = open_store(tmp_path, commit_log_file_bytes=FILE_BYTES)
    first, *others = files[kept:]
    assert f"{first} {said.format(len(others))}" in caplog.text
    assert "restore the files from a copy" in caplog.text
    store.close()
