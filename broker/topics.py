"""The topic table: config/topics.json in memory, auto-creation, and adoption of the master's table.

Changes are durable before the call returns (a producer may be answered right after). Source: RocketMQ 5.3.3
TopicConfigManager; TBW102 is its template for topics that are created by their first message.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from broker.store.mapped_file import StoreError, sync_directory
from broker.store.record import TOPIC_V1_BYTES_MAX, topic_bytes
from remoting.clock import wall_ms
from remoting.command import BadRequest, body_bytes, decode_body
from remoting.operations.route import DataVersion, TopicConfig, TopicConfigSerializeWrapper

log = logging.getLogger(__name__)

AUTO_CREATE_TOPIC: Final = "TBW102"
PERM_INHERIT, PERM_WRITE, PERM_READ = 1, 2, 4
RETRY_PREFIX: Final = "%RETRY%"
SYSTEM_PREFIX: Final = "rmq_sys_"
NOT_FOR_CLIENTS: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


class Topic:
    """One topic as the data path reads it. queue_count: ids at or above it do not exist; open_queue_count:
    the same for a client's send, 0 where clients may not send at all."""

    __slots__ = (
        "config",
        "name",
        "open_queue_count",
        "perm",
        "queue_count",
        "read_queue_nums",
        "topic_raw",
        "write_queue_nums",
    )

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.name = config.topic_name
        self.perm = config.perm
        self.read_queue_nums = config.read_queue_nums
        self.write_queue_nums = config.write_queue_nums
        self.queue_count = max(config.read_queue_nums, config.write_queue_nums)
        is_open = self.perm & PERM_WRITE and self.name not in NOT_FOR_CLIENTS
        self.open_queue_count = self.queue_count if is_open else 0
        self.topic_raw = topic_bytes(config.topic_name)


def illegal_name(name: str) -> str | None:
    """Why a topic must not be called so; None: it may."""
    if not name:
        return "the specified topic is blank"
    if len(name.encode()) > TOPIC_V1_BYTES_MAX:
        return f"the specified topic is longer than topic max length {TOPIC_V1_BYTES_MAX}"
    if not _LEGAL_NAME.match(name):
        return "the specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None


class TopicTable:
    """`topics` is read directly by the data path; every change goes through the methods."""

    def __init__(
        self,
        path: Path,
        *,
        broker_name: str,
        cluster_name: str,
        auto_create: bool = True,
        default_queue_nums: int = 8,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self.topics: dict[str, Topic] = {}
        self.data_version = DataVersion()
        self.auto_create = auto_create
        self.default_queue_nums = default_queue_nums
        self.on_change = on_change  # register to the name servers
        self._broker_name = broker_name
        self._cluster_name = cluster_name

    # -- file --------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file (or its .bak) and add the system topics. StoreError: both exist and are damaged."""
        wrapper = self._read()
        if wrapper is not None:
            self.data_version = wrapper.data_version
            self._put(wrapper.topic_config_table.values())
        for config in self._system_topics():
            self.topics.setdefault(config.topic_name, Topic(config))

    def _read(self) -> TopicConfigSerializeWrapper | None:
        paths = [self.path, self._backup]
        problems: list[str] = []
        for path in paths:
            try:
                raw = path.read_bytes()
                wrapper = decode_body(TopicConfigSerializeWrapper, raw)
            except FileNotFoundError:
                continue
            except (BadRequest, ValidationError) as error:
                problems.append(f"{path}: {error}")
                continue
            if isinstance(wrapper, TopicConfigSerializeWrapper):
                if problems:
                    log.warning("%s; using %s", problems[0], path)
                return wrapper
            problems.append(f"{path} is empty")
        if problems:
            raise StoreError("the topic table is damaged: " + "; ".join(problems))
        return None

    @property
    def _backup(self) -> Path:
        return self.path.with_name(self.path.name + ".bak")

    def _save(self) -> None:
        """Whole and durable: aside, synced, renamed; the version before stays as .bak."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_name(self.path.name + ".tmp")
        text = json.dumps(json.loads(body_bytes(self._stored())), indent="\t", ensure_ascii=False)
        with aside.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            os.replace(self.path, self._backup)
        os.replace(aside, self.path)
        sync_directory(self.path.parent)

    def _stored(self) -> dict[str, object]:
        table = {name: topic.config for name, topic in self.topics.items()}
        return {"dataVersion": self.data_version, "topicConfigTable": table}

    def _system_topics(self) -> list[TopicConfig]:
        inherit = PERM_INHERIT | PERM_READ | PERM_WRITE
        found = [
            _config("SELF_TEST_TOPIC", 1),
            _config("OFFSET_MOVED_EVENT", 1),
            _config("BenchmarkTest", 1024),
            _config(self._cluster_name, 16, inherit),
            _config(self._broker_name, 1, inherit),
        ]
        if self.auto_create:
            found.append(_config(AUTO_CREATE_TOPIC, self.default_queue_nums, inherit))
        return found

    # -- reading -----------------------------------------------------------------------------------------

    def get(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def wrapper(self) -> TopicConfigSerializeWrapper:
        """The whole table, as it is registered and as slaves copy it (21)."""
        table = {name: topic.config for name, topic in sorted(self.topics.items())}
        return TopicConfigSerializeWrapper(
            topic_config_table=table, data_version=self.data_version, mapping_data_version=DataVersion()
        )

    # -- changing ----------------------------------------------------------------------------------------

    def create_on_send(self, name: str, default_topic: str, queue_nums: int) -> Topic | None:
        """The topic of a first message, by its template's rules. None: there is none to inherit from."""
        if name.startswith(RETRY_PREFIX):
            return self.update(_config(name, 1))
        template = self.topics.get(default_topic)
        if template is None or not template.perm & PERM_INHERIT:
            return None
        if default_topic == AUTO_CREATE_TOPIC and not self.auto_create:
            return None
        count = min(queue_nums, template.write_queue_nums)
        if count <= 0:
            count = template.write_queue_nums
        return self.update(_config(name, count, template.perm & ~PERM_INHERIT))

    def update(self, config: TopicConfig) -> Topic:
        """Create or replace one topic. An unchanged one costs nothing."""
        topic = self.topics.get(config.topic_name)
        if topic is not None and topic.config == config:
            return topic
        self._put([config])
        self._changed()
        return self.topics[config.topic_name]

    def ensure_replicated(self, name: str, queue_id: int) -> Topic:
        """A replica met a record of this queue: the topic exists with it, whatever its real settings are
        (they come with the master's table)."""
        topic = self.topics.get(name)
        if topic is not None and queue_id < topic.queue_count:
            return topic
        count = max(queue_id + 1, topic.queue_count if topic else self.default_queue_nums)
        config = topic.config if topic else _config(name, count)
        self._put([config.model_copy(update={"read_queue_nums": count, "write_queue_nums": count})])
        self._save()  # not a new version: the master's table still counts as newer
        if self.on_change is not None:
            self.on_change()
        return self.topics[name]

    def adopt_queues(self, queue_ids: Iterable[tuple[str, int]]) -> None:
        """A new master has records of these queues: each exists, known to the old master's table or not."""
        for name, queue_id in sorted(queue_ids, key=lambda each: (each[0], -each[1])):
            self.ensure_replicated(name, queue_id)

    def set_state_version(self, master_epoch: int) -> None:
        """A new master's changes rank above everything of earlier epochs."""
        if self.data_version.state_version < master_epoch:
            self.data_version = self.data_version.model_copy(update={"state_version": master_epoch})
            self._changed()

    def apply_remote(self, wrapper: TopicConfigSerializeWrapper) -> bool:
        """Become the master's table. False: nothing to do, or it is of an older epoch than ours."""
        if wrapper.data_version == self.data_version:
            return False
        if wrapper.data_version.state_version < self.data_version.state_version:
            log.warning("topics of epoch %d ignored", wrapper.data_version.state_version)
            return False
        system = {config.topic_name for config in self._system_topics()}
        for name in self.topics.keys() - wrapper.topic_config_table.keys() - system:
            del self.topics[name]
        self._put(wrapper.topic_config_table.values())
        self.data_version = wrapper.data_version
        self._save()
        if self.on_change is not None:
            self.on_change()
        return True

    def _put(self, configs: Iterable[TopicConfig]) -> None:
        for config in configs:
            self.topics[config.topic_name] = Topic(config)

    def _changed(self) -> None:
        version = self.data_version
        self.data_version = DataVersion(
            counter=version.counter + 1, state_version=version.state_version, timestamp=wall_ms()
        )
        self._save()
        if self.on_change is not None:
            self.on_change()


def _config(name: str, queue_nums: int, perm: int = PERM_READ | PERM_WRITE) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queue_nums, write_queue_nums=queue_nums, perm=perm)
