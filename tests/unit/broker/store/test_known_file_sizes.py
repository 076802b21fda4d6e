"""The checkpoint has the sizes of files that the broker was configured with: a file that is the only one of
its kind, and has lost its end, is no wrong size then. Another size is refused as before."""

import os
import struct
from pathlib import Path

import pytest

from broker.store.log.checkpoint import (
    FileSizes,
    StoreCheckpoint,
    read_checkpoint,
    read_file_sizes,
    write_checkpoint,
)
from broker.store.log.mapped_file import StoreError
from tests.support.file_damage import changed, content_of
from tests.support.store_parts import FILE_BYTES, bodies, crash, open_store, put, put_many
from tests.unit.broker.store.test_inner_batch import confirm, open_batches, put_items
from tests.unit.broker.store.test_inner_batch import items as batch_of

ONLY = "0" * 20
QUEUE_BYTES = 2_000


def filled(root: Path, *, clean: bool = True) -> None:
    """One file of each kind, none of which is full."""
    store = open_store(root, consume_queue_file_bytes=QUEUE_BYTES)
    put_many(store, 5, queues=1)
    store.flush_checkpoint()
    store.close(clean=clean)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((f"commitlog/{ONLY}", size) for size in (3_584, 1_024, FILE_BYTES - 1)),
        *((f"consumequeue/TopicA/0/{ONLY}", size) for size in (20, 100, 1_000, 999)),
    ],
)
def test_the_only_file_has_lost_its_end(tmp_path: Path, name: str, size: int, clean: bool) -> None:
    filled(tmp_path, clean=clean)
    whole = (tmp_path / name).stat().st_size
    os.truncate(tmp_path / name, size)
    store = open_store(tmp_path, consume_queue_file_bytes=QUEUE_BYTES)
    assert bodies(store) == [b"message %d" % number for number in range(5)]
    assert put(store)[2] == 5 and (tmp_path / name).stat().st_size == whole
    store.close()


def test_the_only_file_of_batches_has_lost_its_end(tmp_path: Path) -> None:
    store = open_batches(tmp_path)
    put_items(store, batch_of(2, 0))
    confirm(store)
    store.flush_checkpoint()
    store.close()
    os.truncate(tmp_path / "batchconsumequeue" / "Batches" / "0" / ONLY, 46 * 2)
    store = open_batches(tmp_path)
    assert store.queues.get("Batches", 0).next_offset == 2
    store.close()


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("commit_log_file_bytes", "mappedFileSizeCommitLog"),
        ("consume_queue_file_bytes", "mappedFileSizeConsumeQueue"),
    ],
)
def test_another_size_is_refused(tmp_path: Path, setting: str, key: str) -> None:
    filled(tmp_path)
    sizes = {"commit_log_file_bytes": FILE_BYTES, "consume_queue_file_bytes": QUEUE_BYTES}
    before = content_of(tmp_path)
    for other in (sizes[setting] * 2, sizes[setting] * 1_000):
        with pytest.raises(StoreError, match=f"set {key}={sizes[setting]}"):
            open_store(tmp_path, **{**sizes, setting: other})
        assert content_of(tmp_path) == before
    (tmp_path / "checkpoint").unlink()
    os.truncate(tmp_path / "commitlog" / ONLY, 3_584)
    with pytest.raises(StoreError, match="set mappedFileSizeCommitLog=3584"):
        open_store(tmp_path, **sizes)


def test_no_size_of_a_damaged_checkpoint_is_used(tmp_path: Path) -> None:
    path, sizes = tmp_path / "checkpoint", FileSizes(1 << 30, 6_000_000, 13_800_000)
    values = StoreCheckpoint(1, 2, 3, 4, 5, file_sizes=sizes)
    write_checkpoint(path, values)
    assert read_checkpoint(path) == values and read_file_sizes(path) == sizes
    raw = path.read_bytes()
    for bit in range(80 * 8):
        content = bytearray(raw)
        content[bit // 8] ^= 1 << bit % 8
        changed(path, bytes(content))
        assert read_file_sizes(path) == FileSizes(), bit
        if bit >= 48 * 8:  # the rest counts
            assert read_checkpoint(path) == StoreCheckpoint(1, 2, 3, 4, 5)
    for size in (0, 79, 80, 4_095):
        changed(path, raw[:size])
        assert read_file_sizes(path) == FileSizes()
    path.unlink()
    assert read_file_sizes(path) == FileSizes()


def test_rocketmq_has_written_the_checkpoint_since(tmp_path: Path) -> None:
    """With another size, perhaps: it leaves our bytes as they are."""
    path = tmp_path / "checkpoint"
    write_checkpoint(path, StoreCheckpoint(1, 2, 3, 4, 5, file_sizes=FileSizes(1, 2, 3)))
    changed(path, struct.pack(">qqqqq", 9, 9, 9, 9, 9) + path.read_bytes()[40:])
    assert read_file_sizes(path) == FileSizes()
    changed(path, bytes(48) + path.read_bytes()[48:])
    assert read_file_sizes(path) == FileSizes()


def test_a_checkpoint_of_an_earlier_release_knows_no_size(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_checkpoint(path, StoreCheckpoint(1, 2, 3, 4, 5))
    changed(path, path.read_bytes()[:48].ljust(4_096, b"\0"))
    assert read_checkpoint(path) == StoreCheckpoint(1, 2, 3, 4, 5) and read_file_sizes(path) == FileSizes()


def test_the_sizes_follow_the_settings(tmp_path: Path) -> None:
    """Without a file of the kind there is nothing that another size would not fit."""
    filled(tmp_path)
    (tmp_path / "consumequeue" / "TopicA" / "0" / ONLY).unlink()
    store = open_store(tmp_path, consume_queue_file_bytes=4_000)
    store.flush_checkpoint()
    crash(store)
    assert read_file_sizes(tmp_path / "checkpoint") == store.config.file_sizes
    assert store.config.file_sizes[:2] == (FILE_BYTES, 4_000)
