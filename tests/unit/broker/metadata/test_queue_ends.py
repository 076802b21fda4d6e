"""Queues that retention has emptied: how far they count is written down, and a new master counts on."""

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from broker.metadata.ports import StoreQueues
from broker.metadata.queue_ends import Ends
from broker.store.message_store import MessageStore
from tests.support.handler_context import send_gate
from tests.support.metadata_parts import begin_term, open_metadata
from tests.support.store_parts import FILE_BYTES, bodies, open_store, put, put_many
from tests.unit.broker.admin.test_retention import make_old, retention_of

EMPTY = 7
"""The queue of these tests that has old messages only."""


def emptied_store(tmp_path: Path) -> MessageStore:
    """Queue 7 has three messages in the first file of the log, and the others have the rest."""
    store = open_store(tmp_path)
    for _ in range(3):
        put(store, b"old", queue_id=EMPTY)
    put_many(store, 200)
    store.flush()
    return store


def emptied(store: MessageStore) -> dict[tuple[str, int], int]:
    slices = store.queues.emptied(store.commit_log.min_offset)
    return {place: end for ends in slices for place, end in ends.items()}


async def test_ends_are_told_before_the_last_message_goes(tmp_path: Path) -> None:
    store, told = emptied_store(tmp_path), list[tuple[int, dict[tuple[str, int], int]]]()
    make_old(store, 1)

    async def on_emptied(ends: Ends) -> None:
        told.append((store.commit_log.min_offset, dict(ends)))

    retention = retention_of(store, send_gate(), lambda _: 0.1, on_emptied=on_emptied)
    await retention.clean()
    assert told == [(0, {("TopicA", EMPTY): 3})], "the others have later messages"
    assert store.commit_log.min_offset == FILE_BYTES
    assert emptied(store) == {("TopicA", EMPTY): 3}
    store.close()


async def test_a_master_writes_them_down_and_a_replica_counts_on(tmp_path: Path) -> None:
    master, replica = open_metadata(tmp_path / "1"), open_metadata(tmp_path / "2")
    await master.remember_ends({("TopicA", EMPTY): 3})
    assert not master.queue_ends.table.rows, "a slave writes nothing down"
    begin_term(master, 1)
    await master.remember_ends({("TopicA", EMPTY): 3, ("B", 0): 1})
    version = master.queue_ends.table.version
    await master.remember_ends({("TopicA", EMPTY): 2})
    assert master.queue_ends.table.version == version, "no lower number, no new version"
    update = master.queue_ends.updates_since(None)
    assert update is not None and replica.queue_ends.accept(update) is None

    store = open_store(tmp_path / "3")
    replica = open_metadata(tmp_path / "2", queues=StoreQueues(store))  # from its disk
    put(store, b"kept", queue_id=1)
    begin_term(replica, 2)
    assert sorted(replica.queue_ends.each()) == [("B", 0, 1), ("TopicA", EMPTY, 3)]
    put(store, b"new", queue_id=EMPTY)
    put(store, b"also", queue_id=1)
    store.set_confirm_offset(store.commit_log.max_offset)
    assert (store.min_queue_offset("TopicA", EMPTY), store.max_queue_offset("TopicA", EMPTY)) == (3, 4)
    assert bodies(store, EMPTY, 3) == [b"new"]
    assert store.max_queue_offset("TopicA", 1) == 2
    store.flush()
    store.close()
    store = open_store(tmp_path / "3")
    assert (store.min_queue_offset("TopicA", EMPTY), store.max_queue_offset("TopicA", EMPTY)) == (3, 4)
    store.close()


def test_a_number_that_is_known_already_changes_no_queue(tmp_path: Path) -> None:
    """A queue with messages, dispatched or not, knows better: what is told may be older, or of what was lost
    with a master."""
    store = open_store(tmp_path)
    put_many(store, 2, queues=1)
    put(store, b"not dispatched", queue_id=1)
    for queue_id in (0, 1):
        for end in (1, 9):
            store.queues.go_on_from("TopicA", queue_id, end)
        put(store, b"y", queue_id=queue_id)
    store.set_confirm_offset(store.commit_log.max_offset)
    assert [store.max_queue_offset("TopicA", queue_id) for queue_id in (0, 1)] == [3, 2]
    store.close()


async def test_a_new_master_writes_down_what_it_deleted_as_a_slave(tmp_path: Path) -> None:
    store = emptied_store(tmp_path / "s")
    metadata = open_metadata(tmp_path / "m", queues=StoreQueues(store))
    make_old(store, 1)
    await retention_of(store, send_gate(), lambda _: 0.1).clean()
    begin_term(metadata, 4)
    assert list(metadata.queue_ends.each()) == [("TopicA", EMPTY, 3)]
    assert metadata.queue_ends.table.version.state_version == 4
    store.close()


async def test_ends_of_many_queues_are_recorded_in_steps_while_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.metadata.service.ENDS_AT_ONCE", 2)
    metadata = open_metadata(tmp_path)
    metadata.write_in_background()
    begin_term(metadata, 1)
    work = asyncio.create_task(metadata.remember_ends({("TopicA", n): n + 1 for n in range(5)}))
    await asyncio.sleep(0)
    assert len(metadata.queue_ends.table.rows["TopicA"]) == 2
    entries = metadata.queue_ends.each()
    assert next(entries) == ("TopicA", 0, 1)
    await metadata.remember_ends({("TopicB", 7): 9, ("TopicA", 4): 9})
    await work
    assert metadata.queue_ends.is_saved and list(entries) == [("TopicA", 1, 2)], "as they were"
    ends = {("TopicA", n): n + 1 for n in range(4)} | {("TopicA", 4): 9, ("TopicB", 7): 9}
    found = {(topic, n): end for topic, n, end in open_metadata(tmp_path).queue_ends.each()}
    assert found == ends


async def test_on_a_full_disk_deleting_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metadata = open_metadata(tmp_path)
    metadata.write_in_background()
    begin_term(metadata, 1)
    with patch.object(metadata.queue_ends.file, "save", side_effect=OSError(28, "No space left on device")):
        await metadata.remember_ends({("TopicA", EMPTY): 3})
    assert "queueEnds.json: [Errno 28] No space left" in caplog.text
    assert not metadata.queue_ends.is_saved
    await metadata.remember_ends({("TopicA", EMPTY): 4})
    assert metadata.queue_ends.is_saved
    again = open_metadata(tmp_path)
    assert list(again.queue_ends.each()) == [("TopicA", EMPTY, 4)]


async def test_the_ends_are_written_by_a_thread_and_awaited(tmp_path: Path) -> None:
    metadata = open_metadata(tmp_path)
    metadata.write_in_background()
    begin_term(metadata, 1)
    writers: list[bool] = []
    save = metadata.queue_ends.file.save

    def spy(content: Mapping[str, Any], turn: int) -> bool:
        writers.append(threading.current_thread() is threading.main_thread())
        return save(content, turn)

    with patch.object(metadata.queue_ends.file, "save", side_effect=spy):
        await metadata.remember_ends({("TopicA", EMPTY): 3})
    assert writers == [False], "the event loop waits for no disk"
    assert list(open_metadata(tmp_path).queue_ends.each()) == [("TopicA", EMPTY, 3)]
