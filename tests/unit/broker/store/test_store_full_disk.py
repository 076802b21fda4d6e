"""Full disks, at the start and at the end. To look at a hole of a map is a SIGBUS on a full tmpfs."""

import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.app.assembly import close_store, flush_forever
from broker.store import store_flusher
from broker.store.index.index_file import IndexFile
from broker.store.log.mapped_file import MappedFile
from broker.store.queue.batch_queue import BATCH_UNIT_BYTES, BatchQueue
from broker.store.queue.consume_queue import UNIT_BYTES, ConsumeQueue
from tests.support.store_parts import bodies, open_store, put_many

MEMORY_FILES = Path("/dev/shm")
"""A tmpfs, where there is one; on another file system holes stay holes, whoever looks."""
UNITS_PER_FILE = 300_000


@pytest.fixture
def directory() -> Iterator[Path]:
    place = MEMORY_FILES if MEMORY_FILES.is_dir() else None
    path = Path(tempfile.mkdtemp(prefix="keelmq-sparse-", dir=place))
    yield path
    shutil.rmtree(path)


def blocks(directory: Path) -> int:
    return sum(path.stat().st_blocks for path in directory.rglob("*"))


@pytest.mark.parametrize("kind", [(ConsumeQueue, UNIT_BYTES), (BatchQueue, BATCH_UNIT_BYTES)])
def test_a_queue_takes_no_block_when_it_is_opened(
    directory: Path, kind: tuple[type[ConsumeQueue] | type[BatchQueue], int]
) -> None:
    queue_type, unit_bytes = kind
    queue = queue_type(directory / "0", "TopicA", 0, UNITS_PER_FILE * unit_bytes)
    for number in range(3):
        if isinstance(queue, BatchQueue):
            queue.append(number, 100 * number, 100, 5, 1, 1)
        else:
            queue.append(number, 100 * number, 100, 5)
    queue.sync()
    queue.close()
    before = blocks(directory)
    again = queue_type(directory / "0", "TopicA", 0, UNITS_PER_FILE * unit_bytes)
    again.load(log_min_offset=0)
    assert again.max_offset == 3
    assert blocks(directory) == before
    again.close()


def test_an_index_file_without_room_is_not_looked_at(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        IndexFile(directory / "20261122000000000", 1_000, 4_000)
    assert blocks(directory) == 0


@pytest.mark.parametrize("content", [b"", b"x" * 1_000])
def test_a_file_that_does_not_fit_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """ext4 keeps what it could reserve when posix_fallocate fails: the rest of the disk."""
    path = tmp_path / "next"
    if content:
        path.write_bytes(content)

    def fills_the_disk(descriptor: int, start: int, count: int) -> None:
        os.ftruncate(descriptor, count // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fills_the_disk)
    with pytest.raises(OSError, match="No space left"):
        MappedFile(path, 0, 1 << 20, allocate=True)
    assert (path.read_bytes() if path.exists() else b"") == content
    assert path.exists() == bool(content)


def test_a_hole_is_read_as_zeros_and_stays_one(directory: Path) -> None:
    file = MappedFile(directory / "00000000000000000000", 0, 1 << 20, allocate=False)
    assert file.read(500_000, 20) == bytes(20)
    assert blocks(directory) == 0
    file.close()


async def test_a_store_on_a_full_disk_is_closed_as_a_crash_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    store = open_store(tmp_path)
    put_many(store, 5)
    with monkeypatch.context() as patch:
        patch.setattr(store_flusher, "write_checkpoint", full)
        await close_store(store, is_trusted=True)
    assert "No space left on device; the next start checks its end" in caplog.text
    again = open_store(tmp_path)
    assert len(bodies(again, 0) + bodies(again, 1)) == 5
    await close_store(again, is_trusted=True)
    assert not (tmp_path / "abort").exists()


async def test_what_cannot_be_flushed_is_tried_again_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, tries = open_store(tmp_path), asyncio.Event()
    put_many(store, 5)
    left = [3]

    def full(*args: object) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(28, "No space left on device")
        asyncio.run_coroutine_threadsafe(told(), loop)

    async def told() -> None:
        tries.set()

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(store_flusher, "write_checkpoint", full)
    flushing = asyncio.create_task(flush_forever(store, lambda: 1))
    await asyncio.wait_for(tries.wait(), 10)
    flushing.cancel()
    assert caplog.text.count("stored messages cannot be made durable yet: [Errno 28]") == 1
    monkeypatch.undo()
    await asyncio.gather(flushing, return_exceptions=True)
    await close_store(store, is_trusted=True)
