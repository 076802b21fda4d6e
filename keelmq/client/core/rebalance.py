"""Assigns the queues of a topic to the members of a group.

Every member computes this itself, from the same two lists, so all members must sort and divide alike: queues
by broker name and id, members as plain text. Source: RocketMQ's AllocateMessageQueueAveragely.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from keelmq.client.core.queues import MessageQueue


@dataclass(frozen=True, slots=True)
class Changes:
    """The difference between two assignments, each sorted."""

    added: tuple[MessageQueue, ...]
    removed: tuple[MessageQueue, ...]


def allocate_averagely(
    client_id: str, client_ids: Collection[str], queues: Iterable[MessageQueue]
) -> tuple[MessageQueue, ...]:
    """Returns this member's adjacent queues; the first members get one more if the queues do not divide
    evenly. A member that is not in the list gets none. Duplicate ids (a client on two connections) count
    once."""
    members = sorted(set(client_ids))
    if client_id not in client_ids:
        return ()
    ordered = sorted(set(queues))
    position = members.index(client_id)
    size, rest = divmod(len(ordered), len(members))
    start = position * size + min(position, rest)
    return tuple(ordered[start : start + size + (position < rest)])


def changes(current: Collection[MessageQueue], wanted: Collection[MessageQueue]) -> Changes:
    """Returns the queues that `wanted` adds to `current`, and those that it removes."""
    return Changes(tuple(sorted(set(wanted) - set(current))), tuple(sorted(set(current) - set(wanted))))
