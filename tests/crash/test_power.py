"""The power layer forgets what was not synced, and nothing else; a store on it keeps what it has promised.
`make power` cuts the power of whole groups again and again."""

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.log.mapped_file import MappedFile
from keelmq.runtime.durable_file import replace_file
from tests.crash.power import Outcome, power_failure
from tests.crash.power_layer import PowerLayer, restore
from tests.support.slices import share
from tests.support.store_parts import bodies, open_store, put


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PowerLayer]:
    made = PowerLayer(tmp_path / "store", tmp_path / "image")
    monkeypatch.setattr(os, "fsync", made.sync)
    monkeypatch.setattr(os, "fdatasync", made.sync)
    yield made
    made.close()


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def left_of(tmp_path: Path) -> dict[str, bytes]:
    restore(tmp_path / "store", tmp_path / "image")
    root = tmp_path / "store"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_unsynced_content_and_names_are_lost(tmp_path: Path, layer: PowerLayer) -> None:
    root = tmp_path / "store"
    for name in ("synced", "name-only", "deleted", "content-only"):
        with (root / name).open("wb") as file:
            file.write(b"old")
            file.flush()
            if name != "name-only":
                os.fsync(file)
        if name != "content-only":
            sync_directory(root)
    (root / "content-only").rename(root / "content-only-2")
    (root / "deleted").unlink()
    (root / "new-directory").mkdir()
    with (root / "synced").open("r+b") as file:
        file.write(b"new")
    assert left_of(tmp_path) == {"synced": b"old", "name-only": b"", "deleted": b"old"}


def test_what_is_written_through_a_map_is_durable_when_it_is_synced(
    tmp_path: Path, layer: PowerLayer
) -> None:
    file = MappedFile(tmp_path / "store" / ("0" * 20), 0, 4_096, allocate=True)
    sync_directory(tmp_path / "store")
    file.view[:3] = b"one"
    file.sync()
    file.view[3:6] = b"two"
    file.close()
    assert left_of(tmp_path) == {"0" * 20: b"one" + bytes(4_093)}


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, layer: PowerLayer) -> None:
    path = tmp_path / "store" / "meta"
    replace_file(path, b"first", keep_backup=False)
    replace_file(path, b"second", keep_backup=False)
    replace_file(path, b"third", keep_backup=False, durable=False)
    assert left_of(tmp_path) == {"meta": b"second"}


@pytest.mark.parametrize("seed", range(share(40)))
def test_a_store_has_what_it_has_flushed(tmp_path: Path, layer: PowerLayer, seed: int) -> None:
    """What was flushed is there after each of several power failures, and the numbers have no gap."""
    dice, sent, flushed = random.Random(seed), list[bytes](), 0
    for _ in range(3):
        store = open_store(tmp_path / "store")
        store.set_confirm_offset(store.commit_log.max_offset)
        while store.dispatcher.dispatch(1_000):
            pass
        found = bodies(store)
        assert found == sent[: len(found)] and len(found) >= flushed, (len(found), flushed, len(sent))
        sent = found
        for _ in range(dice.randrange(60)):
            sent.append(b"%d of seed %d" % (len(sent), seed))
            put(store, sent[-1])
            if dice.random() < 0.1:
                store.set_confirm_offset(store.commit_log.max_offset)
                (store.flush_checkpoint if dice.random() < 0.5 else store.flush)()
                flushed = len(sent)
        store.close(clean=False)
        restore(tmp_path / "store", tmp_path / "image")
        layer.power_on()


def test_the_judge_knows_what_is_allowed() -> None:
    assert Outcome(9, 1, 0, 10).problems("SYNC_FLUSH") == ["1 acknowledged messages are lost"]
    assert Outcome(9, 1, 0, 10).problems("ASYNC_FLUSH") == []
    assert "9000 ms before" in Outcome(9, 1, 0, 9_000).problems("ASYNC_FLUSH")[0]
    assert Outcome(9, 0, 2, 0).problems("ASYNC_FLUSH") == ["2 messages are damaged"]


@pytest.mark.cluster
@pytest.mark.timeout(180)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_all_replicas_lose_their_power_at_once(tmp_path: Path, flush: str) -> None:
    done = asyncio.run(power_failure(tmp_path, flush, random.Random(7)))
    print(f"{flush}: {done}")
    assert done.problems(flush) == []
