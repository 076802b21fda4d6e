"""Client batches in the store: the same bytes as one by one, in one file, all or nothing."""

import struct
from pathlib import Path

import pytest

from broker.message.batch_records import ITEMS_MAX, RECORDS_BYTES_MAX
from broker.message.record import decode, host_bytes, tag_code, tags_code
from broker.store.client_batch import StoredBatch, put_batch
from broker.store.log.mapped_file import MappedFile
from broker.store.message_store import MessageStore
from broker.store.querying import find_by_key
from broker.store.queue.consume_queue import UNIT_BYTES
from tests.support.batch_parts import item
from tests.support.store_parts import BORN_HOST, FILE_BYTES, TOPIC, bodies, crash, open_store, put
from tests.unit.broker.store.test_index import FOREVER

SHARED = b"CLUSTER\x01c"


Item = tuple[int, bytes, bytes]


def items(count: int, first: int = 0) -> list[Item]:
    return [
        (number, b"item %d" % number, b"UNIQ_KEY\x01AC%04X\x02TAGS\x01t%d\x02" % (number, number % 3))
        for number in range(first, first + count)
    ]


def put_items(store: MessageStore, batch: list[Item], host: bytes = BORN_HOST) -> StoredBatch:
    body = b"".join(item(body, own, flag) for flag, body, own in batch)
    return put_batch(store, TOPIC, 0, body, SHARED, 0, 7, host, 0, 5_000)


@pytest.mark.parametrize("host", [BORN_HOST, host_bytes("fd00::1", 9)])
def test_the_same_bytes_as_one_by_one(tmp_path: Path, host: bytes) -> None:
    batch, single = open_store(tmp_path / "batch"), open_store(tmp_path / "single")
    put(batch)
    put(single)
    stored = put_items(batch, items(10), host)
    ends = []
    for flag, body, own in items(10):
        text = own + SHARED
        ends.append(single.put(TOPIC, 0, body, text, flag, 0, 7, host, 0, tags_code(text), 5_000))
    last = items(10)[-1][2]
    assert stored == StoredBatch([offset for offset, _, _ in ends], ends[-1][1], 1, last)
    begin = stored.offsets[0]
    assert batch.commit_log.view(begin, 1 << 20) == single.commit_log.view(begin, 1 << 20)
    for store in (batch, single):
        store.set_confirm_offset(FOREVER)
        assert bodies(store)[1:] == [b"item %d" % number for number in range(10)]
        tagged = store.get("TopicA", 0, 0, 32, 1 << 20, frozenset({tags_code(b"TAGS\x01t1")}))
        assert tagged.message_count == 3
        assert [decode(view).body for view in find_by_key(store, "TopicA", "AC0004", 9, 0, FOREVER)] == [
            b"item 4"
        ]
        store.close()


def test_a_batch_never_spans_two_files(tmp_path: Path) -> None:
    """store.md pitfall 16: and is there once."""
    store = open_store(tmp_path)
    while store.commit_log.max_offset < FILE_BYTES - 500:
        put(store)
    before = store.queues.get("TopicA", 0).next_offset
    stored = put_items(store, items(10))
    assert stored.offsets[0] == FILE_BYTES
    assert stored.queue_offset == before
    crash(store)
    store = open_store(tmp_path)
    store.set_confirm_offset(FOREVER)
    while store.dispatcher.dispatch(100):
        pass
    assert bodies(store)[before:] == [b"item %d" % number for number in range(10)]
    store.close()


def test_what_cannot_be_stored_leaves_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_items(store, items(3))
    end, bad = store.commit_log.max_offset, [*items(3, 3), (0, b"zero", b"a\x01\0\x02")]
    with pytest.raises(ValueError, match="zero byte"):
        put_items(store, bad)
    with pytest.raises(struct.error):
        put_batch(store, TOPIC, 1 << 40, item(b"queue"), SHARED, 0, 7, BORN_HOST, 0, 5_000)
    with pytest.raises(ValueError, match=f"{ITEMS_MAX + 1} items"):
        put_items(store, [(0, b"", b"")] * (ITEMS_MAX + 1))
    with pytest.raises(ValueError, match="does not fit"):
        put_items(store, [(0, b"x" * 1_000, b"")] * 5)
    with pytest.raises(ValueError, match=f"more than {RECORDS_BYTES_MAX} bytes"):  # of 26 KB
        put_batch(store, TOPIC, 0, item(b"") * 1_200, bytes([65]) * 30_000, 0, 7, BORN_HOST, 0, 5_000)
    assert store.commit_log.max_offset == end
    assert put_items(store, items(2, 3)).queue_offset == 3
    store.set_confirm_offset(FOREVER)
    assert bodies(store) == [b"item %d" % number for number in range(5)]
    assert store.put_messages == 5
    assert store.put_bytes == store.commit_log.max_offset
    store.close()


def test_a_batch_is_seen_as_a_whole_wherever_a_file_of_its_queue_ends(tmp_path: Path) -> None:
    """A confirmOffset within it shows none of it; a replica, or a master that forgot its units, agrees."""
    store = open_store(tmp_path, consume_queue_file_bytes=7 * UNIT_BYTES)
    put_items(store, items(5))
    stored = put_items(store, items(20, 5))
    store.set_confirm_offset(stored.offsets[3])
    assert store.max_queue_offset("TopicA", 0) == 5
    store.set_confirm_offset(stored.end)
    assert bodies(store) == [b"item %d" % number for number in range(25)]
    queue = store.find_queue("TopicA", 0)
    assert queue is not None and queue.put_bytes == stored.end
    units = list(queue.units(0, 25))
    store.become_slave()
    queue.truncate(0)
    store.dispatcher.dispatch_offset = 0
    while store.dispatcher.dispatch(4):
        pass
    assert list(queue.units(0, 25)) == units
    store.close()


def test_a_batch_without_room_in_its_queue_is_dispatched_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, consume_queue_file_bytes=7 * UNIT_BYTES)
    real, calls = MappedFile.reserve, 0

    def full(file: MappedFile, start: int, count: int) -> None:
        nonlocal calls
        calls += "consumequeue" in file.path.parts
        if calls == 2:
            raise OSError(28, "No space left on device")
        real(file, start, count)

    monkeypatch.setattr(MappedFile, "reserve", full)
    stored = put_items(store, items(20))
    store.set_confirm_offset(stored.end)
    assert "No space left" in store.dispatcher.dispatch_fault
    assert store.max_queue_offset("TopicA", 0) == 7
    while store.dispatcher.dispatch(100):
        pass
    assert bodies(store) == [b"item %d" % number for number in range(20)]
    assert store.dispatcher.dispatch_fault == ""
    store.close()


def test_what_all_items_share_counts_as_their_own(tmp_path: Path) -> None:
    """The index and the queue read properties as a replica does, that has the records alone."""
    stores = [open_store(tmp_path / "m"), open_store(tmp_path / "s", master=False)]
    body = item(b"one", b"KEYS\x01own") + item(b"two", b"TAGS\x01B")
    end = put_batch(stores[0], TOPIC, 0, body, b"TAGS\x01A\x02KEYS\x01shared", 0, 7, BORN_HOST, 0, 5_000).end
    piece = stores[0].commit_log.view(0, end)
    stores[1].commit_log.receive_view()[:end] = piece
    stores[1].commit_log.received(end)
    for store in stores:
        store.set_confirm_offset(end)
        while store.dispatcher.dispatch(9):
            pass
        queue = store.find_queue("TopicA", 0)
        assert queue is not None
        assert [unit[2] for unit in queue.units(0, 2)] == [tag_code("A"), tag_code("B")]
        assert len(find_by_key(store, "TopicA", "shared", 9, 0, FOREVER)) == 2
        assert find_by_key(store, "TopicA", "own", 9, 0, FOREVER) == []
    piece.release()
    for store in stores:
        store.close()
