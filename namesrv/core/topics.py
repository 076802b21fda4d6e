"""TopicTable: the queue data of each topic at each brokerName, and static topics' mappings. Pure.

Each brokerName has its topics (BrokerTopics), and each topic the brokerNames that may have it. The former
decides. So a broker leaves in one small step, however many topics it has, and all of its routes end at the
same moment, as RocketMQ's do (it holds a lock meanwhile). Its name remains listed at topics that it no longer
has; these entries are invisible, and sweep() removes them in slices.

Invariants: check_invariants().
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any, Final

import msgspec

from keelmq.remoting.codes import PERM_READ, PERM_WRITE
from keelmq.remoting.operations.route import QueueData, WipeExplanation
from namesrv.core.broker_topics import BrokerTopics, Key, Kind, PermChange, key_of
from namesrv.core.values import QueueNums

UNIT_FLAG, UNIT_SUB_FLAG = 1, 2
"""topicSysFlag bits: the topic belongs to a unit; some unit subscribes to it."""

TOPICS_PER_BROKER_MAX = 200_000
"""Our brokers create at most 50,000, and register in parts what does not fit into one frame."""
PAIRS_MAX = 5_000_000
"""Pairs of topic and brokerName: a thousand brokers with five thousand topics each."""
NAME_CHARS_MAX = 1_024
"""RocketMQ's longest topics, retry topics of pop, have less than 400."""
SLICE_TOPICS: Final = 4_000
"""Topics between two yields: 1 to 2 ms."""

_NOTHING: AbstractSet[str] = frozenset()

Names = Generator[None, None, Collection[str]]


class _Gone(msgspec.Struct, eq=False):
    """The topics of a removed broker whose names are not swept yet."""

    broker_name: str
    topics: Iterator[str]


class TopicTable(msgspec.Struct):
    """`version` grows with every change that a route can show."""

    version: int = 0
    pair_count: int = 0
    _names: dict[str, set[str]] = msgspec.field(default_factory=dict)
    """topic -> brokerNames that may have it: with those of _gone that are not swept."""
    _brokers: dict[str, BrokerTopics] = msgspec.field(default_factory=dict)
    _gone: list[_Gone] = msgspec.field(default_factory=list)

    def __len__(self) -> int:
        """How many topics there are. Those of a removed broker count until they are swept."""
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        """All topics. Valid until the next change."""
        return (topic for topic in self._names if self._has(topic)) if self._gone else iter(self._names)

    def _has(self, topic: str) -> bool:
        return any(True for _ in self._at(topic))

    def _at(self, topic: str) -> Iterator[BrokerTopics]:
        for name in self._names.get(topic, _NOTHING):
            broker = self._brokers.get(name)
            if broker is not None and topic in broker.kinds_of:
                yield broker

    def queues(self, topic: str) -> Mapping[str, QueueData]:
        """Returns brokerName -> queue data; empty for an unknown topic."""
        return {broker.broker_name: broker.kinds_of[topic].queue for broker in self._at(topic)}

    def mappings(self, topic: str) -> Mapping[str, Mapping[str, Any]]:
        """Returns brokerName -> TopicQueueMappingInfo; empty unless the topic is static."""
        return {
            broker.broker_name: broker.mappings[topic]
            for broker in self._at(topic)
            if topic in broker.mappings
        }

    def is_ordered(self, topic: str) -> bool:
        """Returns whether some broker's configuration calls the topic ordered."""
        return any(topic in broker.ordered for broker in self._at(topic))

    def of_broker(self, broker_name: str) -> frozenset[str]:
        """Returns the topics of this brokerName; empty for an unknown one."""
        return frozenset(self.view(broker_name))

    def view(self, broker_name: str) -> AbstractSet[str]:
        """Returns the topics of this brokerName without copying them: valid until the next change."""
        return self._kinds_of(broker_name).keys()

    def _kinds_of(self, broker_name: str) -> Mapping[str, Kind]:
        broker = self._brokers.get(broker_name)
        return {} if broker is None else broker.kinds_of

    # -- names, in slices --------------------------------------------------------------------------------

    def names(self, broker_names: Iterable[str] | None = None) -> Names:
        """Returns the topics of these brokers, None: of all, as they are at its first step.

        In slices: the topics of a broker that leaves meanwhile stay in the answer, because its BrokerTopics
        no longer changes. A topic that is created or deleted meanwhile may be in it.
        """
        if broker_names is None and not self._gone:
            return list(self._names)
        chosen = self._brokers.keys() if broker_names is None else {*broker_names} & self._brokers.keys()
        return (yield from _united([(self._brokers[name], None) for name in chosen]))

    def with_flags(self, *, present: int, absent: int = 0) -> Names:
        """As names(), of the topics whose topicSysFlag, at some broker, has a bit of `present` and none of
        `absent`. Visits only brokers that have such topics."""
        kinds = [(each, each.kinds_with(present=present, absent=absent)) for each in self._brokers.values()]
        return (yield from _united([(broker, found) for broker, found in kinds if found]))

    # -- changes -----------------------------------------------------------------------------------------

    def refuse(self, broker_name: str, topics: AbstractSet[str]) -> str | None:
        """Returns why these topics must not be added to those of the broker; None: they may."""
        own = self._kinds_of(broker_name)
        new = set(topics).difference(own)
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
        chosen = topics if changed else set(topics).difference(self._kinds_of(broker_name))
        if not chosen:
            return
        broker, kinds = self._broker(broker_name), dict[Key, Kind]()
        kinds_of = broker.kinds_of
        for topic in chosen:
            nums = topics[topic]
            perm = nums.perm if keeps_write else nums.perm & ~PERM_WRITE
            key = nums.read_queue_nums, nums.write_queue_nums, perm, nums.topic_sys_flag
            kind = kinds.get(key)
            if kind is None:
                kind = kinds[key] = broker.kind(key)
            if kinds_of.get(topic) is not kind:
                self._put(broker, topic, kind)

    def put(self, topic: str, queue: QueueData) -> None:
        """Sets the queue data of the topic at queue.broker_name. Equal data does not change `version`."""
        broker = self._broker(queue.broker_name)
        self._put(broker, topic, broker.kind(key_of(queue)))

    def _broker(self, broker_name: str) -> BrokerTopics:
        broker = self._brokers.get(broker_name)
        if broker is None:
            broker = self._brokers[broker_name] = BrokerTopics(broker_name)
        return broker

    def _put(self, broker: BrokerTopics, topic: str, kind: Kind) -> None:
        before = len(broker.kinds_of)
        if not broker.put(topic, kind):
            return
        if len(broker.kinds_of) > before:
            self._names.setdefault(topic, set()).add(broker.broker_name)
            self.pair_count += 1
        self.version += 1

    def update_mappings(
        self, broker_name: str, mappings: Mapping[str, Mapping[str, Any]], *, changed: bool
    ) -> None:
        """Stores the mappings of static topics of a registration. Call it after update()."""
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        for topic, mapping in mappings.items():
            known = broker.mappings.get(topic)
            if topic in broker.kinds_of and known != mapping and (changed or known is None):
                broker.mappings[topic] = mapping
                self.version += 1

    def update_ordered(self, broker_name: str, topics: AbstractSet[str], ordered: AbstractSet[str]) -> None:
        """Stores which of a registration's topics are ordered. Call it after update()."""
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        new = broker.ordered - topics | (ordered & topics)
        if new != broker.ordered:
            broker.ordered = new
            self.version += 1

    def remove(self, topic: str, broker_name: str) -> None:
        """Removes the topic at one broker, and the topic itself if that was its last one. Safe to repeat."""
        broker = self._brokers.get(broker_name)
        if broker is None or not broker.remove(topic):
            return
        self.pair_count -= 1
        if not broker.kinds_of:
            del self._brokers[broker_name]
        self._forget(topic, broker_name)
        self.version += 1

    def _forget(self, topic: str, broker_name: str) -> None:
        names = self._names.get(topic)
        if names is not None:
            names.discard(broker_name)
            if not names:
                del self._names[topic]

    def remove_all(self, topics: Iterable[str], broker_name: str) -> None:
        """Removes these topics at one broker. Safe to repeat."""
        for topic in topics:
            self.remove(topic, broker_name)

    def remove_broker(self, broker_name: str) -> None:
        """Removes every topic of this brokerName at once; sweep() does the rest. Safe to repeat."""
        broker = self._brokers.pop(broker_name, None)
        if broker is not None:
            self._gone.append(_Gone(broker_name, iter(broker.kinds_of)))
            self.pair_count -= len(broker.kinds_of)
            self.version += 1

    def sweep(self, topics_max: int = SLICE_TOPICS) -> bool:
        """Forgets the names of removed brokers of up to topics_max topics. Returns whether more are left.
        Changes nothing that a reply shows; no request needs to wait for it."""
        while topics_max > 0 and self._gone:
            gone = self._gone[-1]
            broker = self._brokers.get(gone.broker_name)
            have = {} if broker is None else broker.kinds_of  # it may have registered again
            swept = 0
            for topic in islice(gone.topics, topics_max):
                swept += 1
                if topic not in have:
                    self._forget(topic, gone.broker_name)
            if swept < topics_max:
                self._gone.pop()
            topics_max -= swept
        return bool(self._gone)

    def clear_write(self, broker_name: str) -> PermChange:
        """Removes the write permission of every topic of the broker."""
        return self._map_perm(broker_name, clear=PERM_WRITE, add=0)

    def explain_clear_write(self, broker_name: str) -> Generator[None, None, WipeExplanation]:
        """Returns what clear_write() would change. In slices: a topic that changes meanwhile is returned as
        before or after."""
        topics, alone = [], []
        names = list(self._kinds_of(broker_name))
        for at in range(0, len(names), SLICE_TOPICS):
            for topic in names[at : at + SLICE_TOPICS]:
                writable = [name for name, queue in self.queues(topic).items() if queue.perm & PERM_WRITE]
                if broker_name in writable:
                    topics.append(topic)
                    alone += [topic] if len(writable) == 1 else []
            yield
        return WipeExplanation(topics=sorted(topics), nowhere_else=sorted(alone))

    def add_write(self, broker_name: str) -> PermChange:
        """Adds read and write permission to every topic of the broker, and keeps other bits (RocketMQ sets 6,
        which clears INHERIT)."""
        return self._map_perm(broker_name, clear=0, add=PERM_READ | PERM_WRITE)

    def _map_perm(self, broker_name: str, *, clear: int, add: int) -> PermChange:
        broker = self._brokers.get(broker_name)
        if broker is None:
            return PermChange()
        change = broker.map_perm(clear=clear, add=add)
        self.version += bool(change.changed)
        return change

    def check_invariants(self) -> None:
        """Raises AssertionError if the two directions of the table are inconsistent."""
        pairs = {(topic, name) for name, broker in self._brokers.items() for topic in broker.kinds_of}
        assert len(pairs) == self.pair_count
        named = {(topic, name) for topic, names in self._names.items() for name in names}
        assert pairs <= named, "a topic without the name of its broker"
        assert self._gone or pairs == named, "a name of a broker that has not the topic"
        assert all(self._names.values()), "a topic without a name"
        for name, broker in self._brokers.items():
            assert broker.broker_name == name
            assert broker.kinds_of, f"broker {name} without a topic"
            broker.check_invariants()


def _united(brokers: Sequence[tuple[BrokerTopics, AbstractSet[Kind] | None]]) -> Names:
    """Returns the topics of all brokers; of a broker with kinds, only the topics of these kinds."""
    found, left = set[str](), SLICE_TOPICS
    for broker, kinds in brokers:
        topics = list(broker.kinds_of)
        for at in range(0, len(topics), SLICE_TOPICS):
            some = topics[at : at + SLICE_TOPICS]
            found.update(
                some if kinds is None else (each for each in some if broker.kinds_of.get(each) in kinds)
            )
            left -= len(some)
            if left <= 0:
                left = SLICE_TOPICS
                yield
    return found
