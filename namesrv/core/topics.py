"""TopicTable: the queue data of each topic at each brokerName, and static topics' mappings. Pure.

Both directions are stored, topic -> brokerName and brokerName -> topics, so that removing a broker reads only
its own topics. Equal queue data of one broker share one object.

Invariants: check_invariants().
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from keelmq.remoting.codes import PERM_READ, PERM_WRITE
from keelmq.remoting.operations.route import QueueData
from namesrv.core.values import QueueNums

UNIT_FLAG, UNIT_SUB_FLAG = 1, 2
"""topicSysFlag bits: the topic belongs to a unit; some unit subscribes to it."""

TOPICS_PER_BROKER_MAX = 200_000
"""Our brokers create at most 50,000, and register in parts what does not fit into one frame."""
PAIRS_MAX = 5_000_000
"""Pairs of topic and brokerName: a thousand brokers with five thousand topics each."""
NAME_CHARS_MAX = 1_024
"""RocketMQ's longest topics, retry topics of pop, have less than 400."""

_NOTHING: AbstractSet[str] = frozenset()


class TopicTable(msgspec.Struct):
    """`version` grows with every change that a route can show."""

    version: int = 0
    pair_count: int = 0
    _queues: dict[str, dict[str, QueueData]] = msgspec.field(default_factory=dict)
    _of_broker: dict[str, set[str]] = msgspec.field(default_factory=dict)
    _mappings: dict[str, dict[str, Mapping[str, Any]]] = msgspec.field(default_factory=dict)
    _ordered: dict[str, set[str]] = msgspec.field(default_factory=dict)
    """brokerName -> its topics that are ordered."""

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[str]:
        return iter(self._queues)

    def queues(self, topic: str) -> Mapping[str, QueueData]:
        """Returns brokerName -> queue data; empty for an unknown topic."""
        return self._queues.get(topic, {})

    def mappings(self, topic: str) -> Mapping[str, Mapping[str, Any]]:
        """Returns brokerName -> TopicQueueMappingInfo; empty unless the topic is static."""
        return self._mappings.get(topic, {})

    def is_ordered(self, topic: str) -> bool:
        """Returns whether some broker's configuration calls the topic ordered."""
        return any(topic in self._ordered.get(name, _NOTHING) for name in self.queues(topic))

    def of_broker(self, broker_name: str) -> frozenset[str]:
        """Returns the topics of this brokerName; empty for an unknown one."""
        return frozenset(self._of_broker.get(broker_name, ()))

    def view(self, broker_name: str) -> AbstractSet[str]:
        """Returns the topics of this brokerName without copying them: valid until the next change."""
        return self._of_broker.get(broker_name, _NOTHING)

    def with_flags(self, *, present: int, absent: int = 0) -> list[str]:
        """Returns the topics whose topicSysFlag, at some broker, has a bit of `present`, none of `absent`."""
        return [
            topic
            for topic, queues in self._queues.items()
            if any(
                each.topic_sys_flag & present and not each.topic_sys_flag & absent for each in queues.values()
            )
        ]

    def refuse(self, broker_name: str, topics: AbstractSet[str]) -> str | None:
        """Returns why these topics must not be added to those of the broker; None: they may."""
        own = self._of_broker.get(broker_name, _NOTHING)
        new = topics - own
        if len(own) + len(new) > TOPICS_PER_BROKER_MAX:
            return f"{broker_name} would have more than {TOPICS_PER_BROKER_MAX} topics: delete some"
        if self.pair_count + len(new) > PAIRS_MAX:
            return f"all brokers together would have more than {PAIRS_MAX} topics: delete some"
        if any(len(topic) > NAME_CHARS_MAX for topic in new):
            return f"a topic has a name of more than {NAME_CHARS_MAX} characters"
        return None

    def update(
        self, broker_name: str, topics: Mapping[str, QueueNums], *, changed: bool, keeps_write: bool
    ) -> None:
        """Stores the topics of a registration. `changed` False: adds only missing topics."""
        own = self._of_broker.get(broker_name, _NOTHING)
        made: dict[tuple[int, int, int, int], QueueData] = {}
        for topic in topics if changed else topics.keys() - own:
            nums = topics[topic]
            perm = nums.perm if keeps_write else nums.perm & ~PERM_WRITE
            key = (nums.read_queue_nums, nums.write_queue_nums, perm, nums.topic_sys_flag)
            queue = made.get(key)
            if queue is None:
                queue = made[key] = _queue_data(broker_name, *key)
            self.put(topic, queue)

    def put(self, topic: str, queue: QueueData) -> None:
        """Sets the queue data of the topic at queue.broker_name. Equal data does not change `version`."""
        queues = self._queues.setdefault(topic, {})
        known = queues.get(queue.broker_name)
        if known == queue:
            return
        queues[queue.broker_name] = queue
        if known is None:
            self._of_broker.setdefault(queue.broker_name, set()).add(topic)
            self.pair_count += 1
        self.version += 1

    def update_mappings(
        self, broker_name: str, mappings: Mapping[str, Mapping[str, Any]], *, changed: bool
    ) -> None:
        """Stores the mappings of static topics of a registration. Call it after update()."""
        own = self._of_broker.get(broker_name, _NOTHING)
        for topic, mapping in mappings.items():
            known = self.mappings(topic).get(broker_name)
            if topic in own and known != mapping and (changed or known is None):
                self._mappings.setdefault(topic, {})[broker_name] = mapping
                self.version += 1

    def update_ordered(self, broker_name: str, topics: AbstractSet[str], ordered: AbstractSet[str]) -> None:
        """Stores which of a registration's topics are ordered."""
        known = self._ordered.get(broker_name, _NOTHING)
        new = known - topics | (ordered & topics)
        if new == known:
            return
        if new:
            self._ordered[broker_name] = set(new)
        else:
            del self._ordered[broker_name]
        self.version += 1

    def remove(self, topic: str, broker_name: str) -> None:
        """Removes the topic at one broker, and the topic itself if that was its last one. Safe to repeat."""
        queues = self._queues.get(topic)
        if queues is None or queues.pop(broker_name, None) is None:
            return
        self.pair_count -= 1
        if not queues:
            del self._queues[topic]
        own = self._of_broker[broker_name]
        own.discard(topic)
        if not own:
            del self._of_broker[broker_name]
        self._remove_ordered(broker_name, topic)
        mappings = self._mappings.get(topic)
        if mappings is not None and mappings.pop(broker_name, None) is not None and not mappings:
            del self._mappings[topic]
        self.version += 1

    def _remove_ordered(self, broker_name: str, topic: str) -> None:
        ordered = self._ordered.get(broker_name)
        if ordered is not None:
            ordered.discard(topic)
            if not ordered:
                del self._ordered[broker_name]

    def remove_all(self, topics: Iterable[str], broker_name: str) -> None:
        """Removes these topics at one broker. Safe to repeat."""
        for topic in topics:
            self.remove(topic, broker_name)

    def remove_broker(self, broker_name: str) -> None:
        """Removes every topic of this brokerName. Safe to repeat."""
        own = self._of_broker.pop(broker_name, _NOTHING)
        for topic in own:
            queues = self._queues[topic]
            del queues[broker_name]
            if not queues:
                del self._queues[topic]
            mappings = self._mappings.get(topic)
            if mappings is not None and mappings.pop(broker_name, None) is not None and not mappings:
                del self._mappings[topic]
        self._ordered.pop(broker_name, None)
        self.pair_count -= len(own)
        self.version += len(own)

    def clear_write(self, broker_name: str) -> int:
        """Removes the write permission. Returns the broker's number of topics, changed or not."""
        return self._map_perm(broker_name, clear=PERM_WRITE, add=0)

    def add_write(self, broker_name: str) -> int:
        """Adds read and write permission and keeps other bits (RocketMQ sets 6, which clears INHERIT).

        Returns the broker's number of topics.
        """
        return self._map_perm(broker_name, clear=0, add=PERM_READ | PERM_WRITE)

    def _map_perm(self, broker_name: str, *, clear: int, add: int) -> int:
        topics = self._of_broker.get(broker_name, _NOTHING)
        made: dict[int, tuple[QueueData, QueueData]] = {}  # by the id of the old data, which is kept with it
        for topic in topics:
            queue = self._queues[topic][broker_name]
            perm = queue.perm & ~clear | add
            if perm != queue.perm:
                if id(queue) not in made:
                    made[id(queue)] = queue, queue.model_copy(update={"perm": perm})
                self._queues[topic][broker_name] = made[id(queue)][1]
                self.version += 1
        return len(topics)

    def check_invariants(self) -> None:
        """Raises AssertionError if the two directions of the table are inconsistent."""
        pairs = {(topic, name) for topic, queues in self._queues.items() for name in queues}
        assert len(pairs) == self.pair_count
        assert pairs == {(topic, name) for name, topics in self._of_broker.items() for topic in topics}
        for topic, queues in self._queues.items():
            assert queues, f"topic {topic} without queue data"
            assert all(name == queue.broker_name for name, queue in queues.items()), topic
        assert all(self._of_broker.values()), "a broker with an empty set of topics"
        for name, ordered in self._ordered.items():
            assert ordered and ordered <= self._of_broker.get(name, _NOTHING), f"{name}: ordered topics"
        for topic, mappings in self._mappings.items():
            assert mappings, f"topic {topic} with an empty mapping"
            assert set(mappings) <= set(self._queues.get(topic, {})), (
                f"a mapping of {topic} without its topic"
            )


def _queue_data(
    broker_name: str, read_queue_nums: int, write_queue_nums: int, perm: int, topic_sys_flag: int
) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        read_queue_nums=read_queue_nums,
        write_queue_nums=write_queue_nums,
        perm=perm,
        topic_sys_flag=topic_sys_flag,
    )
