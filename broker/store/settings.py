"""What a MessageStore is told: its place, the sizes of its files, and what put() needs of a topic."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from broker.delay.levels import DelayLevels
from broker.store.batch_queue import BATCH_UNIT_BYTES
from broker.store.consume_queue import UNIT_BYTES
from broker.store.index import ENTRIES_DEFAULT, SLOTS_DEFAULT
from broker.store.record import topic_bytes

BATCH_FILE_BYTES: Final = 300_000 * BATCH_UNIT_BYTES


class TopicLike(Protocol):
    """What put() needs of a topic; broker/topics.py has the real one."""

    name: str
    topic_raw: bytes


class NamedTopic:
    """A topic of which nothing but the name counts: one of the broker's own, or one that is gone."""

    __slots__ = ("name", "topic_raw")

    def __init__(self, name: str) -> None:
        self.name = name
        self.topic_raw = topic_bytes(name)


@dataclass(frozen=True)
class StoreConfig:
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
    delay_levels: DelayLevels = field(default_factory=DelayLevels)
