"""Agreement: consumer groups whose members subscribe differently, and topics they have all left. Pure.

Clients distribute the queues of a topic among all members of their group, also among those that do not
subscribe to it: the queues of such members are not consumed. A broker filters with one expression for each
topic and group, that of the newest heartbeat, so of two expressions each hides messages from the other's
members. Invariant: a group has no entry unless a member with subscriptions is online.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final, Protocol

import msgspec

from broker.filter.core.subscription import tags_of

TAG_TYPES: Final = ("TAG", "")
RETRY_PREFIX: Final = "%RETRY%"
"""Members subscribe to it on their own."""
DROPPED_MAX: Final = 64
"""Topics of one group."""


class Subscribed(Protocol):
    """A subscription of a heartbeat."""

    @property
    def topic(self) -> str: ...

    @property
    def sub_string(self) -> str: ...

    @property
    def expression_type(self) -> str: ...


class _Group(msgspec.Struct):
    """prints: connection id -> hash of its member's subscriptions. kinds: how often each hash occurs.
    dropped: topics with a subscription since the group came online that are not in the newest heartbeat."""

    prints: dict[int, int] = msgspec.field(default_factory=dict)
    kinds: Counter[int] = msgspec.field(default_factory=Counter)
    dropped: set[str] = msgspec.field(default_factory=set)


class Agreement:
    """The cost of a call grows with the subscriptions of one heartbeat, not with the number of members."""

    def __init__(self) -> None:
        self.groups: dict[str, _Group] = {}
        self.differing: set[str] = set()
        """Groups whose members subscribe differently."""
        self.dropping: set[str] = set()
        """Groups that have dropped topics."""

    def heard(
        self, name: str, connection_id: int, subscriptions: Iterable[Subscribed], gone: Collection[str]
    ) -> None:
        """A member has sent its subscriptions. gone: topics that the group's table had before."""
        own = [each for each in subscriptions if not each.topic.startswith(RETRY_PREFIX)]
        group = self.groups.setdefault(name, _Group())
        self._forget(group, connection_id)
        group.prints[connection_id] = kind = _print_of(own)
        group.kinds[kind] += 1
        dropped = {each for each in gone if not each.startswith(RETRY_PREFIX)}
        group.dropped.update(sorted(dropped)[: max(DROPPED_MAX - len(group.dropped), 0)])
        group.dropped.difference_update(each.topic for each in own)
        self._compare(name, group)

    def left(self, name: str, connection_id: int) -> None:
        """A member has left its group."""
        group = self.groups.get(name)
        if group is None:
            return
        self._forget(group, connection_id)
        if not group.prints:
            del self.groups[name]
            group.dropped.clear()
        self._compare(name, group)

    def dropped(self, name: str) -> list[str]:
        """Returns the topics that no member subscribes to any more, sorted; empty while the members differ,
        since the next heartbeat brings a topic back."""
        group = self.groups.get(name)
        return [] if group is None or name in self.differing else sorted(group.dropped)

    def _compare(self, name: str, group: _Group) -> None:
        for names, is_so in ((self.differing, len(group.kinds) > 1), (self.dropping, bool(group.dropped))):
            if is_so:
                names.add(name)
            else:
                names.discard(name)

    @staticmethod
    def _forget(group: _Group, connection_id: int) -> None:
        kind = group.prints.pop(connection_id, None)
        if kind is not None:
            group.kinds[kind] -= 1
            if not group.kinds[kind]:
                del group.kinds[kind]


def _print_of(subscriptions: Iterable[Subscribed]) -> int:
    """Returns a hash that is equal for equal topics and expressions; the order of tags does not count."""
    return hash(
        frozenset(
            (each.topic, frozenset(tags_of(each.sub_string)))
            if each.expression_type in TAG_TYPES
            else (each.topic, each.expression_type, each.sub_string)
            for each in subscriptions
        )
    )
