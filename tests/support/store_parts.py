"""What the tests of the store and of its handlers share: small files, one topic, a fake connection."""

import struct
from pathlib import Path

from broker.message.record import Record, decode, tags_code
from broker.metadata.topics import Topic
from broker.store.message_store import MessageStore, StoreConfig
from broker.store.offline import offline_store
from broker.store.queue.consume_queue import UNIT_BYTES
from broker.store.queue.queue_table import BatchTopics
from broker.store.queue.reading import GetResult
from keelmq.remoting.operations.route import TopicConfig

FILE_BYTES = 4_096
QUEUE_FILE_BYTES = 200
BORN_HOST = bytes((10, 0, 0, 1, 0, 0, 0x12, 0x34))
TOPIC = Topic(TopicConfig(topic_name="TopicA", read_queue_nums=4, write_queue_nums=4))


def new_store(root: Path, topics: BatchTopics | None = None, **settings: int) -> MessageStore:
    """A store that is not loaded yet; without topics it is as offline_store() makes it."""
    sizes = {
        "commit_log_file_bytes": FILE_BYTES,
        "consume_queue_file_bytes": QUEUE_FILE_BYTES,
        "index_slots": 100,
        "index_entries": 1_000,
    } | settings
    config = StoreConfig(root=root, **sizes)  # type: ignore[arg-type]
    if topics is None:
        return offline_store(config)
    return MessageStore(
        config, topics=topics, on_queue=lambda topic, queue_id: None, on_sync_fault=lambda fault: None
    )


def open_store(
    root: Path, topics: BatchTopics | None = None, *, master: bool = True, **settings: int
) -> MessageStore:
    store = new_store(root, topics, **settings)
    store.load()
    if master:
        store.become_master()
    return store


def put(
    store: MessageStore, body: bytes = b"body", *, queue_id: int = 0, tags: str = ""
) -> tuple[int, int, int]:
    properties = b"TAGS\x01" + tags.encode() if tags else b""
    return store.put(TOPIC, queue_id, body, properties, 0, 0, 1, BORN_HOST, 0, tags_code(properties))


def put_many(store: MessageStore, count: int, *, queues: int = 2) -> None:
    """Messages 0, 1, 2 ... round the queues, confirmed."""
    for index in range(count):
        put(store, b"message %d" % index, queue_id=index % queues)
    store.set_confirm_offset(store.commit_log.max_offset)


def damage_unit(
    root: Path, index: int, place: tuple[int, int] = (2**62, 1_000), *, topic: str = "TopicA"
) -> None:
    """Makes a unit of queue 0 name other bytes: without `place` (offset, size) some that the log does not
    have."""
    with (root / "consumequeue" / topic / "0" / "0".zfill(20)).open("r+b") as file:
        file.seek(index * UNIT_BYTES)
        file.write(struct.pack(">qi", *place))


def records_in(result: GetResult) -> list[Record]:
    """What was read, however many views there are."""
    raw, found, at = b"".join(result.views), list[Record](), 0
    while at < len(raw):
        found.append(decode(raw, at))
        at += found[-1].size
    return found


def bodies(store: MessageStore, queue_id: int = 0, offset: int = 0) -> list[bytes]:
    """All confirmed bodies of a queue, read as a consumer does."""
    first, found = offset, list[bytes]()
    while True:
        result = store.get("TopicA", queue_id, offset, 32, 1 << 20, None)
        for record in records_in(result):
            assert record.queue_offset == len(found) + first
            found.append(record.body)
        if not result.views:
            return found
        offset = result.next_begin_offset


def cut_demoted(store: MessageStore, offset: int) -> None:
    """Truncates the log of a master at a record boundary, as a master that was demoted does, and is elected
    again."""
    store.become_slave()
    store.cutter.truncate(offset)
    store.become_master()


def crash(store: MessageStore) -> None:
    """As after kill -9: the abort file stays, nothing is written any more."""
    store.close(clean=False)


class FakePeer:
    """A connection as the hot handlers see it."""

    def __init__(self, connection_id: int = 1) -> None:
        self.connection_id = connection_id
        self.address = "10.0.0.1:4660"
        self.address_bytes = BORN_HOST
        self.is_tls, self.certificate_names = False, ()
        self.sent: list[bytes] = []
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def is_paused(self) -> bool:
        return False

    def send(self, frame: bytes) -> bool:
        self.sent.append(frame)
        return not self.closing

    def write_parts(self, parts: list[bytes | memoryview]) -> bool:
        return self.send(b"".join(parts))
