"""The topic table: config/topics.json in memory, auto-creation, and adoption of the master's table.

A change is durable before it is answered (broker/metadata/file_store.py). A deleted topic leaves a tombstone,
the log offset of its deletion: an older record does not recreate the topic. Source: RocketMQ 5.3.3
TopicConfigManager; TBW102 is its template for topics that are created by their first message.
"""

import logging
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple

from broker.admission.auto_creation import AutoCreation
from broker.message.delay_levels import TIMER_TOPIC
from broker.message.record import topic_bytes
from broker.metadata.core.attributes import TOPIC_ATTRIBUTES, alter, without_effect
from broker.metadata.core.table import Update, Version
from broker.metadata.core.topic_names import (
    RETRY_PREFIX,
    REVIVE_PREFIX,
    REVIVE_QUEUES,
    SYSTEM_PREFIX,
    name_bytes_max,
    reply_topic,
    revive_topic,
)
from broker.metadata.encoded_rows import READ_WRITE, RowEncoder
from broker.metadata.file_store import FileStore
from broker.metadata.store import data_version, version_of
from keelmq.remoting.body import body_bytes
from keelmq.remoting.operations.broker_metadata import MetadataUpdate
from keelmq.remoting.operations.route import TopicConfig, TopicConfigSerializeWrapper
from keelmq.runtime.slices import Slices

log = logging.getLogger(__name__)

AUTO_CREATE_TOPIC: Final = "TBW102"
SLICE_NAMES: Final = 4_000
"""Names that one step of system_topics() checks: 1 to 2 ms."""
TOMBSTONES: Final = "deletedTopicTable"
"""A member of topics.json that is ours: RocketMQ's reader skips it."""
GUESSED: Final = "guessedTopicTable"
"""Also ours: topics that are known by their records only, with their rows in the present version, or {}."""
PERM_INHERIT, PERM_WRITE, PERM_READ = 1, 2, 4
QUEUE_TYPE, BATCH_CQ = "queue.type", "BatchCQ"
NOT_FOR_CLIENTS: Final = frozenset({
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT",
    TIMER_TOPIC,  # RocketMQ accepts sends to it, and would deliver them to any topic that they name
})  # fmt: skip
SYSTEM_TOPICS: Final = NOT_FOR_CLIENTS | {AUTO_CREATE_TOPIC, "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"}
_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


class Topic:
    """One topic as the data path reads it.

    queue_count: ids at or above it do not exist. open_queue_count: the same for a client's plain send; 0
    where clients may not send at all, or while the topic is not on disk. is_batch: a client's batch is stored
    as one record.
    """

    __slots__ = (
        "config", "is_batch", "is_retry", "name", "open_queue_count", "perm", "queue_count",
        "read_queue_nums", "topic_raw", "write_queue_nums",
    )  # fmt: skip

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.name = config.topic_name
        self.is_batch = config.attributes.get(QUEUE_TYPE) == BATCH_CQ
        self.is_retry = self.name.startswith(RETRY_PREFIX)
        self.perm = config.perm
        self.read_queue_nums = config.read_queue_nums
        self.write_queue_nums = config.write_queue_nums
        self.queue_count = max(config.read_queue_nums, config.write_queue_nums)
        self.topic_raw = topic_bytes(config.topic_name)
        self.open()

    def open(self) -> None:
        """Sends may take the fast path, if clients may send at all. The write bit is for routes only."""
        self.open_queue_count = 0 if self.is_retry or is_for_broker(self.name) else self.queue_count


def is_for_broker(name: str) -> bool:
    """Returns whether only the broker itself may write to this topic, because it acts on what it reads there.
    The topic of pop's checkpoints is named after the cluster."""
    return name in NOT_FOR_CLIENTS or name.startswith(REVIVE_PREFIX)


def is_system(name: str, *others: str) -> bool:
    """Returns whether operators must not change this topic. others: named after cluster and broker."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX) or name in others


def illegal_name(name: str) -> str | None:
    """Returns why a topic must not have this name; None: it may."""
    if not name:
        return "the specified topic is blank"
    limit = name_bytes_max(name)
    if len(name.encode()) > limit:
        return f"the specified topic is longer than topic max length {limit}"
    if not _LEGAL_NAME.match(name):
        return "the specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None


class _Made(NamedTuple):
    """Topics of one version of the table, made before it is applied. known: the topics that existed then;
    others are not open."""

    version: Version
    topics: dict[str, Topic]
    known: Set[str]
    batches: Sequence[str]


NOTHING_MADE: Final = _Made(Version(-1), {}, frozenset(), ())


def _made_of(version: Version, rows: Mapping[str, TopicConfig], known: Set[str]) -> _Made:
    topics = {name: Topic(row) for name, row in rows.items()}
    for name, topic in topics.items():
        if name not in known:
            topic.open_queue_count = 0
    return _Made(version, topics, known, [name for name, topic in topics.items() if topic.is_batch])


class TopicTable(FileStore[TopicConfig]):
    """The data path reads `topics` directly; every change goes through the methods."""

    name: ClassVar[str] = "topics"
    what: ClassVar[str] = "the topic table"
    rows_max: ClassVar[int] = 50_000

    def __init__(
        self,
        path: Path,
        *,
        broker_name: str,
        cluster_name: str,
        auto_create: bool = True,
        default_queue_nums: int = 8,
        on_change: Callable[[], None] | None = None,
        trace_topic: str = "",
    ) -> None:
        super().__init__(path)
        self.topics: dict[str, Topic] = {}
        self.auto_create = auto_create
        self.default_queue_nums = default_queue_nums
        self.creation = AutoCreation("topic", "autoCreateTopicMax", "mqadmin updateTopic")
        self.unregistrable: Callable[[], str] = str
        """Why the name servers could not accept another topic; empty: they could."""
        self.on_change = on_change  # registers with the name servers
        self.revision = 0
        """Grows with every change of a row, also with those that have no version."""
        self.encoder = RowEncoder(
            self.table.rows, lambda: self.data_version, lambda: self.revision, _limited_text
        )
        self.on_batch_topic: Callable[[str], None] | None = None
        self.unwritten: set[str] = set()
        """New topics that are not on disk yet: replies to sends wait (broker/put/deferred_reply_peer.py)."""
        self.on_auto_create: Callable[[Version], None] | None = None  # a message waits for this version
        self._broker_name = broker_name
        self._cluster_name = cluster_name
        self._trace_topic = trace_topic
        self._made = NOTHING_MADE
        self._guessed: dict[str, TopicConfig | None] = {}  # known by records: the row of a version instead

    # -- JSON --------------------------------------------------------------------------------------------

    def row_of(self, value: Any) -> TopicConfig:
        """Returns the TopicConfig of RocketMQ's JSON."""
        return TopicConfig.model_validate(value)

    def json_of(self, row: TopicConfig) -> Any:
        """Returns the TopicConfig as RocketMQ's JSON."""
        return row.model_dump(by_alias=True, exclude_none=True, mode="json")

    def read_file(self, value: Mapping[str, Any]) -> tuple[dict[str, TopicConfig], dict[str, int]]:
        """Returns topics and tombstones of topics.json, and adopts its guessed topics."""
        table = value.get("topicConfigTable") or {}
        gone = {str(name): int(at) for name, at in (value.get(TOMBSTONES) or {}).items()}
        guessed = (value.get(GUESSED) or {}).items()
        self._guessed = {
            str(name): TopicConfig.model_validate(row) if row else None
            for name, row in guessed
            if name in table
        }
        return {name: TopicConfig.model_validate(config) for name, config in sorted(table.items())}, gone

    def file_of(
        self, rows: Mapping[str, TopicConfig], gone: Mapping[str, int], version: Version
    ) -> dict[str, Any]:
        """Returns the content of topics.json, without the guessed topics."""
        body = {
            "dataVersion": data_version(version).model_dump(by_alias=True),
            "topicConfigTable": self.texts(rows, lambda row: row.model_dump(by_alias=True, mode="json")),
        }
        return body | ({TOMBSTONES: dict(sorted(gone.items()))} if gone else {})

    def built_in(self) -> dict[str, TopicConfig]:
        """Returns the system topics of this broker."""
        inherit = PERM_INHERIT | PERM_READ | PERM_WRITE
        found = [
            *(_config(name, 1) for name in ("SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", TIMER_TOPIC)),
            _config("BenchmarkTest", 1024),
            _config("SCHEDULE_TOPIC_XXXX", 18),
            _config("RMQ_SYS_TRANS_HALF_TOPIC", 1),
            _config("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1),
            _config(reply_topic(self._cluster_name), 1),
            _config(revive_topic(self._cluster_name), REVIVE_QUEUES),
            _config(self._cluster_name, 16, inherit),
            _config(self._broker_name, 1, inherit),
        ]
        if self._trace_topic:
            found.append(_config(self._trace_topic, 1))
        if self.auto_create:
            found.append(_config(AUTO_CREATE_TOPIC, self.default_queue_nums, inherit))
        return {config.topic_name: config for config in found}

    def applied(self, keys: Iterable[str] | None) -> None:
        """Updates `topics`. Sends to a new topic leave the fast path until it is on disk."""
        self.revision += 1
        rows = self.table.rows
        if keys is None:
            self._all_applied()
            return
        for name in keys:
            if name in rows:
                if self._is_in_background and name not in self.topics:
                    self.unwritten.add(name)
                    self.when_saved(partial(self._written, (name,)))
                topic = self.topics[name] = Topic(rows[name])
                if name in self.unwritten:
                    topic.open_queue_count = 0
                if topic.is_batch and self.on_batch_topic is not None:
                    self.on_batch_topic(name)
            else:
                self.topics.pop(name, None)

    def _all_applied(self) -> None:
        """For a whole table, in one step: with the result of the thread of _reader()."""
        rows, made = self.table.rows, self._made
        self._made = NOTHING_MADE
        if made.version != self.table.version:
            made = _made_of(self.table.version, rows, rows.keys())
        lacking = rows.keys() - made.topics.keys()  # built-in ones
        made.topics.update((name, Topic(rows[name])) for name in lacking)
        doubtful = (made.known ^ self.topics.keys()) | lacking | self.unwritten
        if self._is_in_background and (added := made.topics.keys() - self.topics.keys()):
            self.unwritten |= added
            self.when_saved(partial(self._written, added))
        for name in doubtful & made.topics.keys():
            made.topics[name].open()
            if name in self.unwritten:
                made.topics[name].open_queue_count = 0
        self.topics.clear()
        self.topics.update(made.topics)
        if self.on_batch_topic is not None:
            for name in made.batches:
                self.on_batch_topic(name)

    def _reader(self) -> Callable[[MetadataUpdate], Update[TopicConfig]]:
        known = frozenset(self.topics)

        def read(received: MetadataUpdate) -> Update[TopicConfig]:
            update = self.from_wire(received)
            self._made = _made_of(update.version, update.rows, known)
            return update

        return read

    def _beside(self, update: Update[TopicConfig] | None) -> Any:
        return dict(self._guessed) if update is None else self._guessed_after(update)

    def _content(
        self, rows: Mapping[str, TopicConfig], gone: Mapping[str, int], version: Version, beside: Any
    ) -> Mapping[str, Any]:
        value = self.file_of(rows, gone, version)
        if beside:
            value[GUESSED] = {
                name: {} if row is None else self.json_of(row) for name, row in sorted(beside.items())
            }
        return value

    def _guessed_after(self, update: Update[TopicConfig]) -> dict[str, TopicConfig | None]:
        """Returns the guesses without those of topics that the update contains or deletes."""
        known = self._guessed if update.whole else {**update.rows, **update.gone}
        return {name: row for name, row in self._guessed.items() if name not in known}

    def _apply(self, update: Update[TopicConfig]) -> None:
        self._guessed = self._guessed_after(update)
        super()._apply(update)
        if self.on_change is not None:
            self.on_change()

    def _written(self, names: Collection[str], error: Exception | None) -> None:
        if error is not None:
            self.when_saved(partial(self._written, names))
            return
        self.unwritten.difference_update(names)
        for name in names:
            if name in self.topics:
                self.topics[name].open()

    # -- reading -----------------------------------------------------------------------------------------

    def get(self, name: str) -> Topic | None:
        """Returns the topic; None: there is none."""
        return self.topics.get(name)

    def is_batch(self, name: str) -> bool:
        """Returns whether the topic exists and stores a batch as one record."""
        topic = self.topics.get(name)
        return topic is not None and topic.is_batch

    def without_effect(self) -> dict[str, list[str]]:
        """Returns the attributes that this broker does not implement, by topic."""
        found = {
            name: without_effect(TOPIC_ATTRIBUTES, row.attributes)
            for name, row in self.table.rows.items()
            if row.attributes
        }
        return {f"topic {name}": why for name, why in sorted(found.items()) if why}

    def is_system(self, name: str) -> bool:
        """Like the function is_system(), with the names of this broker."""
        cluster = self._cluster_name
        return is_system(name, cluster, self._broker_name, reply_topic(cluster), self._trace_topic)

    def system_topics(self) -> Slices[list[str]]:
        """Returns the topics for which is_system() is true, in slices, unsorted. A topic that is created
        meanwhile is not included."""
        names, found = list(self.topics), list[str]()
        for at in range(0, len(names), SLICE_NAMES):
            found += filter(self.is_system, names[at : at + SLICE_NAMES])
            yield
        return found

    def full(self) -> str:
        """Returns why there is no room for another topic; empty: there is."""
        if len(self.topics) >= self.rows_max:
            return f"there are already {self.rows_max} topics: delete some"
        return self.unregistrable()

    # -- changing ----------------------------------------------------------------------------------------

    def create_on_send(self, name: str, default_topic: str, queue_nums: int) -> Topic | None:
        """Creates the topic of a first message, by the rules of its template. None: there is no template."""
        template = self.template_of(name, default_topic)
        if template is None:
            return None
        count = min(queue_nums, template.write_queue_nums)
        if count <= 0:
            count = template.write_queue_nums
        return self._created(_config(name, count, template.perm & ~PERM_INHERIT))

    def template_of(self, name: str, default_topic: str) -> TopicConfig | None:
        """Returns the settings for a topic that a message creates; None: it cannot be created."""
        if name.startswith(RETRY_PREFIX):
            return _config(name, 1)
        template = self.topics.get(default_topic)
        if template is None or not template.perm & PERM_INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self.auto_create:
            return None
        return template.config

    def ensure(self, name: str, queue_nums: int) -> Topic:
        """Returns the topic; creates it if there is none (broker-ops pitfall 25). OSError: it cannot be."""
        topic = self.topics.get(name)
        if topic is None and name.startswith("%") and (why := self.full()):
            raise OSError(why)
        return topic if topic is not None else self._created(_config(name, queue_nums))

    def ensure_queues(self, name: str, queue_nums: int) -> Topic:
        """Like ensure(), and adds queues to a topic that has fewer."""
        topic = self.ensure(name, queue_nums)
        if min(topic.read_queue_nums, topic.write_queue_nums) >= queue_nums:
            return topic
        counts = {
            "read_queue_nums": max(topic.read_queue_nums, queue_nums),
            "write_queue_nums": max(topic.write_queue_nums, queue_nums),
        }
        return self._created(topic.config.model_copy(update=counts))

    def _created(self, config: TopicConfig) -> Topic:
        topic = self.update(config)
        if self.on_auto_create is not None:
            self.on_auto_create(self.table.version)
        return topic

    def update(self, config: TopicConfig) -> Topic:
        """Creates or replaces one topic. An unchanged one gets no new version."""
        topic = self.topics.get(config.topic_name)
        if topic is not None and topic.config == config and config.topic_name not in self._guessed:
            return topic
        self.change({config.topic_name: config})
        return self.topics[config.topic_name]

    def alter(self, config: TopicConfig, changes: Mapping[str, str]) -> Version:
        """Creates or replaces a topic. changes: of its attributes. Raises ValueError if they are refused."""
        topic = self.topics.get(config.topic_name)
        if topic is None and (why := self.full()):
            raise ValueError(why)
        current = topic.config.attributes if topic is not None else {}
        attributes = alter(TOPIC_ATTRIBUTES, current, changes, creating=topic is None)
        self.update(config.model_copy(update={"attributes": attributes}))
        return self.table.version

    def delete(self, names: Iterable[str], log_offset: int) -> Version:
        """Deletes topics. Records below log_offset, the log's end, do not create them again."""
        gone = {name: max(log_offset, 1) for name in names if name in self.topics}
        return self.change({}, gone) if gone else self.table.version

    def ensure_replicated(self, name: str, queue_id: int, log_offset: int = sys.maxsize) -> Topic | None:
        """Returns the topic of a record at or behind log_offset, and adds it, or this queue, if unknown.
        None: the topic was deleted after the record.

        If the topic has fewer queues, it was shrunk after the record, or grown before it by a version that
        has not arrived yet. Until the master's table or settle() decides that, the queue can only be read.
        """
        topic = self.topics.get(name)
        if topic is not None and queue_id < topic.queue_count:
            return topic
        if topic is None and self.table.gone.get(name, 0) > log_offset:
            return None
        count = max(queue_id + 1, topic.queue_count if topic else self.default_queue_nums)
        config = topic.config if topic else _config(name, count)
        versioned = self._guessed.setdefault(name, topic.config if topic else None)
        write_count = count if versioned is None else versioned.write_queue_nums
        grown = config.model_copy(update={"read_queue_nums": count, "write_queue_nums": write_count})
        return self._replace({name: grown})[0]

    def guesses(self) -> dict[str, TopicConfig]:
        """Returns the rows that come from records, and differ from the present version."""
        return {name: self.table.rows[name] for name in sorted(self._guessed)}

    def settle(self, guesses: Mapping[str, TopicConfig]) -> None:
        """Ends these guesses: a master that was asked later has no newer version, so ours is correct.
        Raises OSError; the guesses are then settled in memory, but not in the file."""
        rows = {
            name: versioned
            for name, guess in guesses.items()
            if (versioned := self._guessed.get(name)) is not None and self.table.rows[name] is guess
        }
        if rows:
            for name in rows:
                del self._guessed[name]
            self._replace(rows)

    def _replace(self, rows: Mapping[str, TopicConfig]) -> list[Topic]:
        """Changes rows without a new version, so that the master's table is still newer."""
        self.table.rows.update(rows)
        self.revision += 1
        self.topics.update((name, Topic(row)) for name, row in rows.items())
        self._persist(Update(self.table.version, base=self.table.version))
        if self.on_change is not None:
            self.on_change()
        return [self.topics[name] for name in rows]

    def _unversioned(self) -> dict[str, TopicConfig]:
        return self.guesses()

    # -- a RocketMQ master's table -----------------------------------------------------------------------

    def apply_remote(
        self,
        wrapper: TopicConfigSerializeWrapper,
        source_epoch: int | None = None,
        *,
        guesses: Mapping[str, TopicConfig] = MappingProxyType({}),
    ) -> bool:
        """Adopts the table of a RocketMQ master. source_epoch: of the master that was asked; guesses: ours
        when it was asked. Returns False if it has no change, or if it is of an older epoch than ours."""
        theirs = version_of(wrapper.data_version)
        version = theirs._replace(state_version=max(theirs.state_version, source_epoch or 0))
        if version == self.table.version:
            self.settle(guesses)
            return False
        refusal = self.accept(self.to_wire(Update(version, wrapper.topic_config_table)))
        if refusal is not None:
            log.warning("topics of epoch %d ignored: %s", version.state_version, refusal)
        return refusal is None


def _limited_text(config: TopicConfig, permission: int) -> bytes:
    """Returns the topic without the permissions that brokerPermission withdraws."""
    if permission != READ_WRITE:
        config = config.model_copy(update={"perm": config.perm & permission})
    return body_bytes(config)


def _config(name: str, queue_nums: int, perm: int = PERM_READ | PERM_WRITE) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queue_nums, write_queue_nums=queue_nums, perm=perm)
