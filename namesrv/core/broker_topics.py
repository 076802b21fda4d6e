"""BrokerTopics: the topics of one brokerName. Pure.

Topics with equal queue data share one Kind, so a change of all write permissions changes the few kinds, and a
step is not proportional to the topics. Invariants: check_invariants().
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any, Final

import msgspec

from keelmq.remoting.operations.route import QueueData

Key = tuple[int, int, int, int]
"""readQueueNums, writeQueueNums, perm, topicSysFlag."""

CHANGES_SHOWN: Final = 100
"""Topics that a PermChange names: the audit log shows no more."""


class Kind(msgspec.Struct, eq=False):
    """Queue data, and how many topics have it. `queue` is replaced, never changed in place."""

    queue: QueueData
    count: int = 0

    @property
    def key(self) -> Key:
        """Returns the values that make two kinds equal."""
        return key_of(self.queue)


def key_of(queue: QueueData) -> Key:
    """Returns the values of queue data without the brokerName."""
    return queue.read_queue_nums, queue.write_queue_nums, queue.perm, queue.topic_sys_flag


class PermChange(msgspec.Struct, frozen=True):
    """A change of the permissions of a broker's topics. topics: how many it has; changed: how many of them
    have another perm now. before, after: perm by topic, of the first CHANGES_SHOWN of them, sorted."""

    topics: int = 0
    changed: int = 0
    before: Mapping[str, int] = {}
    after: Mapping[str, int] = {}


class BrokerTopics(msgspec.Struct, eq=False):
    """Owned by a TopicTable."""

    broker_name: str
    kinds_of: dict[str, Kind] = msgspec.field(default_factory=dict)
    """Kinds by topic."""
    mappings: dict[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    """TopicQueueMappingInfo by topic, of static topics."""
    ordered: AbstractSet[str] = frozenset()
    _kinds: set[Kind] = msgspec.field(default_factory=set)
    _by_key: dict[Key, Kind] = msgspec.field(default_factory=dict)
    """Kinds by key; at most one of those that a change of permissions has made equal."""

    def kind(self, key: Key) -> Kind:
        """Returns what topics with this queue data share; put() keeps it."""
        found = self._by_key.get(key)
        return Kind(_queue_data(self.broker_name, key)) if found is None else found

    def put(self, topic: str, kind: Kind) -> bool:
        """Sets the queue data of a topic. Returns whether it has changed."""
        known = self.kinds_of.get(topic)
        if known is kind or (known is not None and known.key == kind.key):
            return False
        if not kind.count:
            self._kinds.add(kind)
            self._by_key[kind.key] = kind
        kind.count += 1
        self.kinds_of[topic] = kind
        if known is not None:
            self._one_less(known)
        return True

    def remove(self, topic: str) -> bool:
        """Removes a topic. Returns whether there was one."""
        kind = self.kinds_of.pop(topic, None)
        if kind is None:
            return False
        self._one_less(kind)
        self.mappings.pop(topic, None)
        if topic in self.ordered:
            self.ordered = self.ordered - {topic}
        return True

    def _one_less(self, kind: Kind) -> None:
        kind.count -= 1
        if not kind.count:
            self._kinds.discard(kind)
            if self._by_key.get(kind.key) is kind:
                del self._by_key[kind.key]

    def map_perm(self, *, clear: int, add: int) -> PermChange:
        """Changes the permission of every topic."""
        before: dict[Kind, int] = {}
        for kind in self._kinds:
            perm = kind.queue.perm & ~clear | add
            if perm != kind.queue.perm:
                before[kind] = kind.queue.perm
                kind.queue = kind.queue.model_copy(update={"perm": perm})
        if not before:
            return PermChange(len(self.kinds_of))
        self._by_key = {kind.key: kind for kind in self._kinds}
        changed = (topic for topic, kind in self.kinds_of.items() if kind in before)
        shown = sorted(islice(changed, CHANGES_SHOWN))
        return PermChange(
            len(self.kinds_of),
            sum(kind.count for kind in before),
            {topic: before[self.kinds_of[topic]] for topic in shown},
            {topic: self.kinds_of[topic].queue.perm for topic in shown},
        )

    def kinds_with(self, *, present: int, absent: int) -> set[Kind]:
        """Returns the kinds whose topicSysFlag has a bit of `present` and none of `absent`."""
        return {
            kind
            for kind in self._kinds
            if kind.queue.topic_sys_flag & present and not kind.queue.topic_sys_flag & absent
        }

    def check_invariants(self) -> None:
        """Raises AssertionError if kinds and topics are inconsistent."""
        counted: dict[Kind, int] = {}
        for kind in self.kinds_of.values():
            counted[kind] = counted.get(kind, 0) + 1
        assert counted == {kind: kind.count for kind in self._kinds}, "kinds and their topics differ"
        assert set(self._by_key.values()) <= self._kinds
        assert all(kind.key == key for key, kind in self._by_key.items())
        assert all(kind.queue.broker_name == self.broker_name for kind in self._kinds)
        assert self.ordered <= self.kinds_of.keys(), f"{self.broker_name}: ordered topics"
        assert self.mappings.keys() <= self.kinds_of.keys(), (
            f"{self.broker_name}: a mapping without its topic"
        )


def _queue_data(broker_name: str, key: Key) -> QueueData:
    read_queue_nums, write_queue_nums, perm, topic_sys_flag = key
    return QueueData(
        broker_name=broker_name,
        read_queue_nums=read_queue_nums,
        write_queue_nums=write_queue_nums,
        perm=perm,
        topic_sys_flag=topic_sys_flag,
    )
