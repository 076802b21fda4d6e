"""ClientRegistry: the connected clients, the groups they are in, and the subscriptions of each group. Pure.

A member of a group is a connection: a client that reconnects is a new member, and the end of its old
connection does not affect the new one (broker-ops pitfall 7).

Bounded, and shared: memberships belong to a user, or without authentication to an address. When there is no
room, an owner below the average gets a place from the largest owner; others are not registered. Source:
RocketMQ 5.3.3 ConsumerManager, ConsumerGroupInfo, ProducerManager.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import msgspec

from broker.clients.core.agreement import Agreement
from broker.filter.core.subscription import MessageFilter, weight_of
from keelmq.remoting.address_text import host_of
from keelmq.remoting.operation import ANYBODY, Caller

EXPIRED_AT_ONCE: Final = 2_000
"""Connections that one step of expire() removes: 5 ms."""
REGISTRATIONS_MAX: Final = 200_000
"""Memberships, of connections in groups."""
SUBSCRIPTIONS_MAX: Final = 1_024
"""Topics of one group."""
SUBSCRIPTION_CHARS_MAX: Final = 8_388_608
"""Of all topics and expressions together, those of SQL92 counted eightfold. They use 170 MB at most."""
BROADCASTING: Final = "BROADCASTING"


@dataclass(frozen=True, slots=True)
class Client:
    """One connection, as its heartbeats describe it. version: that of the client library. caller: who signed
    them."""

    connection_id: int
    client_id: str
    address: str
    language: str
    version: int
    caller: Caller = field(default=ANYBODY, compare=False)

    @property
    def owner(self) -> str:
        """The user, or without authentication the host."""
        return self.caller.user or host_of(self.address)


class Subscription(msgspec.Struct, frozen=True):
    topic: str
    sub_string: str
    expression_type: str
    version: int
    message_filter: MessageFilter | None  # None: the expression is illegal

    @property
    def chars(self) -> int:
        """The length of its texts, of SQL92 eightfold."""
        text = len(self.topic) + len(self.expression_type)
        return text + weight_of(self.sub_string, self.expression_type)


class Consumer(msgspec.Struct, frozen=True):
    """One group in a heartbeat. subscriptions None: the heartbeat has none (withoutSub)."""

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: tuple[Subscription, ...] | None


class ConsumerGroup(msgspec.Struct):
    """A consumer group, as the newest heartbeat of any member describes it."""

    members: dict[int, Client] = msgspec.field(default_factory=dict)  # by connection id
    subscriptions: dict[str, Subscription] = msgspec.field(default_factory=dict)  # by topic
    chars: int = 0
    """Of the subscriptions' texts."""
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""

    @property
    def client_ids(self) -> list[str]:
        """Sorted, without duplicates: a client that reconnects has two connections for a moment, and a
        duplicate would break the clients' rebalance."""
        return sorted({client.client_id for client in self.members.values()})


class _Known(msgspec.Struct):
    """A connection that has sent heartbeats. owner: who has sent the first one."""

    owner: str
    client_id: str = ""
    user: str = ""
    seen_ms: int = 0
    consumers: set[str] = msgspec.field(default_factory=set)
    producers: set[str] = msgspec.field(default_factory=set)

    @property
    def count(self) -> int:
        """Its memberships."""
        return len(self.consumers) + len(self.producers)


class ClientRegistry:
    """Methods that may change the members of groups return the groups whose members must be notified."""

    def __init__(
        self,
        *,
        registrations_max: int = REGISTRATIONS_MAX,
        subscription_chars_max: int = SUBSCRIPTION_CHARS_MAX,
    ) -> None:
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[int, Client]] = {}
        self._known: dict[int, _Known] = {}
        self._producer_ids: dict[str, int] = {}  # client id -> its newest connection
        self._contested: set[str] = set()
        self._count = 0
        self._count_of: Counter[str] = Counter()  # by owner
        self.refused = 0
        """Memberships that were not registered, or were removed, because there are too many."""
        self._max = registrations_max
        self._chars = 0
        self._chars_max = subscription_chars_max
        self.agreement = Agreement()
        self.forgotten = 0
        """Groups whose subscriptions were forgotten, because there are too many."""

    def heartbeat(
        self, client: Client, consumers: Iterable[Consumer], producers: Iterable[str], *, now_ms: int
    ) -> list[str]:
        """Adds or updates a client in its groups. Returns the consumer groups that it joined, or whose
        subscriptions it changed, and those that others left for it."""
        known = self._known.setdefault(client.connection_id, _Known(client.owner))
        if known.client_id != client.client_id:  # a connection belongs to the client that it named last
            self._forget_producer(known, client.connection_id)
        known.seen_ms, known.client_id, known.user = now_ms, client.client_id, client.caller.user
        left: list[str] = []
        for name in producers:
            if name in known.producers or self._make_room(known, left):
                self._count_up(known, known.producers, name)
                self.producers.setdefault(name, {})[client.connection_id] = client
        if known.producers:
            self._producer_ids[client.client_id] = client.connection_id
        return [each.group for each in consumers if self._consumer(client, each, known, left)] + left

    def _consumer(self, client: Client, consumer: Consumer, known: _Known, left: list[str]) -> bool:
        joined = consumer.group not in known.consumers
        if joined and not self._make_room(known, left):
            return False
        self._count_up(known, known.consumers, consumer.group)
        group = self.consumers.setdefault(consumer.group, ConsumerGroup())
        group.members[client.connection_id] = client
        group.consume_type, group.message_model = consumer.consume_type, consumer.message_model
        group.consume_from_where = consumer.consume_from_where
        subscribed = False
        if consumer.subscriptions is not None:
            before = set(group.subscriptions)
            subscribed = _subscribe(group, consumer.subscriptions)
            gone = before - group.subscriptions.keys()
            self.agreement.heard(consumer.group, client.connection_id, consumer.subscriptions, gone)
            self._count_chars(group)
        return (joined or subscribed) and group.message_model != BROADCASTING

    def _count_chars(self, group: ConsumerGroup) -> None:
        """Above the limit the largest groups lose their subscriptions, down to three quarters of it. Their
        next heartbeat restores them."""
        chars = sum(each.chars for each in group.subscriptions.values())
        self._chars += chars - group.chars
        group.chars = chars
        if self._chars <= self._chars_max:
            return
        for each in sorted(self.consumers.values(), key=lambda each: -each.chars):
            if self._chars <= self._chars_max * 3 // 4:
                return
            self._chars -= each.chars
            each.chars = 0
            each.subscriptions.clear()
            self.forgotten += 1

    def _make_room(self, joining: _Known, left: list[str]) -> bool:
        """Returns whether there is room for one more membership of this connection. If there is none, the
        largest connection of the owner with the most memberships leaves its groups, which are added to
        `left`. An owner with the average or more is refused without a search: it could repeat that."""
        if self._count < self._max:
            return True
        if self._count_of[joining.owner] * len(self._count_of) >= self._count:
            self.refused += 1
            return False
        largest = max(self._count_of, key=self._count_of.__getitem__)
        of_largest = (each for each, known in self._known.items() if known.owner == largest)
        leaving = max(of_largest, key=lambda each: self._known[each].count)
        self.refused += self._known[leaving].count
        left += self.closed(leaving)
        return True

    def _count_up(self, known: _Known, groups: set[str], name: str) -> None:
        if name not in groups:
            groups.add(name)
            self._count += 1
            self._count_of[known.owner] += 1

    def _count_down(self, known: _Known, groups: set[str], name: str) -> None:
        groups.discard(name)
        self._count -= 1
        self._count_of[known.owner] -= 1
        if not self._count_of[known.owner]:
            del self._count_of[known.owner]

    def seen_ms(self, connection_id: int) -> int:
        """Returns when the last heartbeat of a member arrived."""
        return self._known[connection_id].seen_ms

    def unregister(
        self, connection_id: int, client_id: str, *, producer_group: str = "", consumer_group: str = ""
    ) -> list[str]:
        """Removes a client from a producer group and a consumer group; an empty name: from none."""
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
        """Removes a connection that was closed, or has sent no heartbeat for too long, from all groups."""
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

    def expire(self, *, now_ms: int, timeout_ms: int) -> tuple[list[str], bool]:
        """Removes connections without a heartbeat for timeout_ms, EXPIRED_AT_ONCE at most. Returns the
        consumer groups that they left, and whether there may be more such connections."""
        every = (each for each, known in self._known.items() if now_ms - known.seen_ms >= timeout_ms)
        silent = list(islice(every, EXPIRED_AT_ONCE))
        left = sorted({group for connection_id in silent for group in self.closed(connection_id)})
        return left, len(silent) == EXPIRED_AT_ONCE

    def _leave_producers(self, name: str, connection_id: int) -> None:
        members = self.producers[name]
        del members[connection_id]
        known = self._known[connection_id]
        self._count_down(known, known.producers, name)
        if not known.producers:
            self._forget_producer(known, connection_id)
        if not members:
            del self.producers[name]

    def _forget_producer(self, known: _Known, connection_id: int) -> None:
        """Forgets the producer, unless it has reconnected."""
        if self._producer_ids.get(known.client_id) == connection_id:
            del self._producer_ids[known.client_id]
            self._contested.discard(known.client_id)

    def _leave_consumers(self, name: str, connection_id: int) -> list[str]:
        group = self.consumers[name]
        del group.members[connection_id]
        known = self._known[connection_id]
        self._count_down(known, known.consumers, name)
        self.agreement.left(name, connection_id)
        if not group.members:
            self._chars -= group.chars
            del self.consumers[name]
            return []
        return [] if group.message_model == BROADCASTING else [name]

    # -- queries -----------------------------------------------------------------------------------------

    def groups_of(self, topic: str) -> list[str]:
        """Returns the online groups that subscribe to the topic: never topics (broker-ops pitfall 24)."""
        return sorted(name for name, group in self.consumers.items() if topic in group.subscriptions)

    def find_producer(self, client_id: str) -> int | None:
        """Returns the id of the newest connection of a producer; None: it is not online, or contested."""
        return None if client_id in self._contested else self._producer_ids.get(client_id)

    def contest(self, client_id: str) -> None:
        """Called when two users claim the id of a producer. The owner cannot be determined, so requests for
        this producer go to neither until the connection that has it leaves."""
        if client_id in self._producer_ids:
            self._contested.add(client_id)

    def user_of_producer(self, client_id: str) -> str:
        """Returns the user that signs for this producer; empty: it does not sign, or is not online."""
        connection_id = self._producer_ids.get(client_id)
        return "" if connection_id is None else self._known[connection_id].user

    def connections(self) -> dict[int, Client]:
        """Returns all producers and consumers by connection id."""
        return {each: client for members in self._each_members() for each, client in members.items()}

    def is_member(self, group: str, connection_id: int) -> bool:
        """Returns whether this connection is a consumer of the group."""
        found = self.consumers.get(group)
        return found is not None and connection_id in found.members

    def find(self, group: str, client_id: str) -> Client | None:
        """Returns the newest connection of this consumer; None: it is not online."""
        members = self.consumers[group].members if group in self.consumers else {}
        return next((each for each in reversed(members.values()) if each.client_id == client_id), None)

    def check_invariants(self) -> None:
        """Asserts the invariants, which hold between any two calls."""
        for members in self._each_members():
            assert members, "a group without members"
            assert members.keys() <= self._known.keys(), "a member without a connection"
        producing = {each for members in self.producers.values() for each in members}
        assert set(self._producer_ids.values()) <= producing, "a producer with a closed connection"
        assert self._count == sum(len(members) for members in self._each_members()) <= self._max
        counts = Counter[str]()
        for known in self._known.values():
            counts[known.owner] += known.count
        for group in self.consumers.values():
            assert group.chars == sum(each.chars for each in group.subscriptions.values())
        assert self._chars == sum(group.chars for group in self.consumers.values()) <= self._chars_max
        assert self._count_of == counts and all(self._count_of.values()), "an owner with another count"

    def _each_members(self) -> Iterator[dict[int, Client]]:
        yield from self.producers.values()
        yield from (group.members for group in self.consumers.values())


def _subscribe(group: ConsumerGroup, subscriptions: tuple[Subscription, ...]) -> bool:
    """Replaces subscriptions by newer versions, and removes topics that are not named any more. Returns
    whether the set of topics has changed (clients pitfall 22)."""
    named = {each.topic: each for each in subscriptions[:SUBSCRIPTIONS_MAX]}
    before = set(group.subscriptions)
    for topic in before - named.keys():
        del group.subscriptions[topic]
    for topic, subscription in named.items():
        known = group.subscriptions.get(topic)
        if known is None or subscription.version > known.version:
            group.subscriptions[topic] = subscription
    return before != named.keys()
