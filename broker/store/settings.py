"""Settings of a MessageStore: its directory and the sizes of its files; and a topic's settings for put()."""

from pathlib import Path
from typing import Protocol

import msgspec

from broker.message.delay_levels import DelayLevels
from broker.message.record import topic_bytes
from broker.store.index.message_index import ENTRIES_DEFAULT, SLOTS_DEFAULT
from broker.store.log.checkpoint import FileSizes
from broker.store.queue.batch_queue import BATCH_FILE_BYTES
from broker.store.queue.consume_queue import UNIT_BYTES


class TopicLike(Protocol):
    """The settings of a topic for put() (broker/metadata/topics.py). topic_raw: record.topic_bytes() of its
    name."""

    name: str
    topic_raw: bytes


class NamedTopic:
    """A topic without settings: one of the broker's own, or one that was deleted."""

    __slots__ = ("name", "topic_raw")

    def __init__(self, name: str) -> None:
        self.name = name
        self.topic_raw = topic_bytes(name)


class StoreConfig(msgspec.Struct, frozen=True):
    """root: storePathRootDir. File sizes are in bytes, index sizes in slots and entries. store_host: see
    record.host_bytes(). check_crc_on_recover, append_prop_crc, verify_prop_crc: checkCRCOnRecover,
    enabledAppendPropCRC, forceVerifyPropCRC. zeros_ahead: see CommitLog."""

    root: Path
    commit_log_file_bytes: int = 1 << 30
    consume_queue_file_bytes: int = 300_000 * UNIT_BYTES
    batch_queue_file_bytes: int = BATCH_FILE_BYTES
    store_host: bytes = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
    commit_log_path: Path | None = None
    check_crc_on_recover: bool = True
    append_prop_crc: bool = False
    verify_prop_crc: bool = False
    zeros_ahead: bool = False
    index_enable: bool = True
    index_slots: int = SLOTS_DEFAULT
    index_entries: int = ENTRIES_DEFAULT
    delay_levels: DelayLevels = msgspec.field(default_factory=DelayLevels)

    @property
    def file_sizes(self) -> FileSizes:
        """As a checkpoint has them."""
        return FileSizes(
            self.commit_log_file_bytes, self.consume_queue_file_bytes, self.batch_queue_file_bytes
        )
