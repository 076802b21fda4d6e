"""Client batches in the store: the same bytes as one by one, in one file, all or nothing."""

import struct
from pathlib import Path

import pytest

from broker.store.batch import Item, StoredBatch, put_batch
from broker.store.message_store import MessageStore
from broker.store.querying import find_by_key
from broker.store.record import decode, host_bytes, tags_code
from tests.unit.store_parts import BORN_HOST, FILE_BYTES, TOPIC, bodies, crash, open_store, put
from tests.unit.test_index import FOREVER

SHARED = b"CLUSTER\x01c"


def items(count: int, first: int = 0) -> list[Item]:
    return [
        (number, b"item %d" % number, b"UNIQ_KEY\x01AC%04X\x02TAGS\x01t%d\x02" % (number, number % 3))
        for number in range(first, first + count)
    ]


def put_items(store: MessageStore, batch: list[Item], host: bytes = BORN_HOST) -> StoredBatch:
    return put_batch(store, TOPIC, 0, batch, SHARED, 0, 7, host, 0, 5_000)


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
    assert stored == StoredBatch([offset for offset, _, _ in ends], ends[-1][1], 1)
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
    while store.dispatch(100):
        pass
    assert bodies(store)[before:] == [b"item %d" % number for number in range(10)]
    store.close()


def test_what_cannot_be_stored_leaves_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put_items(store, items(3))
    end, bad = store.commit_log.max_offset, [*items(3, 3), (1 << 40, b"flag", b"")]
    with pytest.raises(struct.error):
        put_items(store, bad)
    with pytest.raises(ValueError, match="does not fit"):
        put_items(store, [(0, b"x" * 1_000, b"")] * 5)
    assert store.commit_log.max_offset == end
    assert put_items(store, items(2, 3)).queue_offset == 3
    store.set_confirm_offset(FOREVER)
    assert bodies(store) == [b"item %d" % number for number in range(5)]
    assert store.put_messages == 5
    assert store.put_bytes == store.commit_log.max_offset
    store.close()
