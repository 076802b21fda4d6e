"""Which clients are there, in which groups, and what each group subscribes to. Pure.

A member of a group is a connection: a client that comes back on a new one is a new member, and what ends an
old connection never touches the new one (broker-ops pitfall 7). Bounded: what would be too many is not
registered. Source: RocketMQ 5.3.3 ConsumerManager, ConsumerGroupInfo, ProducerManager.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from broker.filter.core.subscription import Wanted

REGISTRATIONS_MAX: Final = 200_000
"""Memberships, of connections in groups."""
SUBSCRIPTIONS_MAX: Final = 1_024
"""Topics of one group."""
BROADCASTING: Final = "BROADCASTING"


@dataclass(frozen=True, slots=True)
class Client:
    """One connection as its heartbeat introduced it. version: of its library."""

    connection_id: int
    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class Subscription:
    topic: str
    sub_string: str
    expression_type: str
    version: int
    wanted: Wanted | None  # None: the text is no expression


@dataclass(frozen=True, slots=True)
class Consumer:
    """One group in a heartbeat. subscriptions None: the heartbeat says nothing about them."""

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: tuple[Subscription, ...] | None


@dataclass(slots=True)
class ConsumerGroup:
    """What the newest heartbeat of any member said."""

    members: dict[int, Client] = field(default_factory=dict)  # by connection id
    subscriptions: dict[str, Subscription] = field(default_factory=dict)  # by topic
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""

    @property
    def client_ids(self) -> list[str]:
        """Each once: a client that changes its connection is there twice for a moment, and doubles break the
        clients' averaging."""
        return sorted({client.client_id for client in self.members.values()})


@dataclass(slots=True)
class _Known:
    """A connection that heartbeats came on."""

    client_id: str = ""
    seen_ms: int = 0
    consumers: set[str] = field(default_factory=set)
    producers: set[str] = field(default_factory=set)


class ClientRegistry:
    """Methods that may change who is in a group give the groups whose members should hear of it."""

    def __init__(self, *, registrations_max: int = REGISTRATIONS_MAX) -> None:
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[int, Client]] = {}
        self._known: dict[int, _Known] = {}
        self._producer_ids: dict[str, int] = {}  # client id -> its newest connection
        self._count = 0
        self._max = registrations_max

    def heartbeat(
        self, client: Client, consumers: Iterable[Consumer], producers: Iterable[str], *, now_ms: int
    ) -> list[str]:
        known = self._known.setdefault(client.connection_id, _Known())
        if known.client_id != client.client_id:  # a connection is of one client: of the one it names last
            self._forget_producer(known, client.connection_id)
        known.seen_ms, known.client_id = now_ms, client.client_id
        for name in producers:
            self._join(self.producers.setdefault(name, {}), known.producers, name, client)
            if not self.producers[name]:
                del self.producers[name]
        if known.producers:
            self._producer_ids[client.client_id] = client.connection_id
        return [consumer.group for consumer in consumers if self._consumer(client, consumer, known)]

    def _consumer(self, client: Client, consumer: Consumer, known: _Known) -> bool:
        group = self.consumers.setdefault(consumer.group, ConsumerGroup())
        joined = self._join(group.members, known.consumers, consumer.group, client)
        if client.connection_id not in group.members:
            if not group.members:
                del self.consumers[consumer.group]
            return False
        group.consume_type, group.message_model = consumer.consume_type, consumer.message_model
        group.consume_from_where = consumer.consume_from_where
        subscribed = consumer.subscriptions is not None and _subscribe(group, consumer.subscriptions)
        return (joined or subscribed) and group.message_model != BROADCASTING

    def _join(self, members: dict[int, Client], groups: set[str], name: str, client: Client) -> bool:
        """Is it a new member? It is none if there are too many."""
        if client.connection_id in members:
            members[client.connection_id] = client
            return False
        if self._count >= self._max:
            return False
        members[client.connection_id] = client
        groups.add(name)
        self._count += 1
        return True

    def unregister(
        self, connection_id: int, client_id: str, *, producer_group: str = "", consumer_group: str = ""
    ) -> list[str]:
        """Empty group: nothing of that kind."""
        client = self.producers.get(producer_group, {}).get(connection_id)
        if client is not None and client.client_id == client_id:
            self._leave_producers(producer_group, connection_id)
        group = self.consumers.get(consumer_group)
        if group is None or connection_id not in group.members:
            return []
        if group.members[connection_id].client_id != client_id:
            return []
        return self._leave_consumers(consumer_group, connection_id)

    def closed(self, connection_id: int) -> list[str]:
        """The connection is gone, or its client has been silent for too long."""
        known = self._known.get(connection_id)
        if known is None:
            return []
        for name in sorted(known.producers):
            self._leave_producers(name, connection_id)
        left = [
            name for group in sorted(known.consumers) for name in self._leave_consumers(group, connection_id)
        ]
        del self._known[connection_id]
        return left

    def expire(self, *, now_ms: int, timeout_ms: int) -> list[str]:
        silent = [each for each, known in self._known.items() if now_ms - known.seen_ms >= timeout_ms]
        return sorted({group for connection_id in silent for group in self.closed(connection_id)})

    def _leave_producers(self, name: str, connection_id: int) -> None:
        members = self.producers[name]
        del members[connection_id]
        known = self._known[connection_id]
        known.producers.discard(name)
        if not known.producers:
            self._forget_producer(known, connection_id)
        self._count -= 1
        if not members:
            del self.producers[name]

    def _forget_producer(self, known: _Known, connection_id: int) -> None:
        """Unless the client has come back on a newer connection."""
        if self._producer_ids.get(known.client_id) == connection_id:
            del self._producer_ids[known.client_id]

    def _leave_consumers(self, name: str, connection_id: int) -> list[str]:
        group = self.consumers[name]
        del group.members[connection_id]
        self._known[connection_id].consumers.discard(name)
        self._count -= 1
        if not group.members:
            del self.consumers[name]
            return []
        return [] if group.message_model == BROADCASTING else [name]

    # -- questions ---------------------------------------------------------------------------------------

    def groups_of(self, topic: str) -> list[str]:
        """Groups that are online and subscribe to it; groups, never topics (broker-ops pitfall 24)."""
        return sorted(name for name, group in self.consumers.items() if topic in group.subscriptions)

    def find_producer(self, client_id: str) -> int | None:
        """The newest connection of a client that produces."""
        return self._producer_ids.get(client_id)

    def find(self, group: str, client_id: str) -> Client | None:
        """The newest connection of this consumer."""
        members = self.consumers[group].members if group in self.consumers else {}
        return next((each for each in reversed(members.values()) if each.client_id == client_id), None)

    def check_invariants(self) -> None:
        for members in self._each_members():
            assert members, "a group without members"
            assert members.keys() <= self._known.keys(), "a member that nobody has heard of"
        producing = {each for members in self.producers.values() for each in members}
        assert set(self._producer_ids.values()) <= producing, "a producer by a connection that is gone"
        assert self._count == sum(len(members) for members in self._each_members()) <= self._max

    def _each_members(self) -> Iterator[dict[int, Client]]:
        yield from self.producers.values()
        yield from (group.members for group in self.consumers.values())


def _subscribe(group: ConsumerGroup, subscriptions: tuple[Subscription, ...]) -> bool:
    """Newer versions replace older ones, topics that are not named any more go. Has the set of topics
    changed (clients pitfall 22)?"""
    named = {each.topic: each for each in subscriptions[:SUBSCRIPTIONS_MAX]}
    before = set(group.subscriptions)
    for topic in before - named.keys():
        del group.subscriptions[topic]
    for topic, subscription in named.items():
        known = group.subscriptions.get(topic)
        if known is None or subscription.version > known.version:
            group.subscriptions[topic] = subscription
    return before != named.keys()
