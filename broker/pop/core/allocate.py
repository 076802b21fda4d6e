"""Queue assignment by the broker (400). Pure.

In pull mode a queue belongs to one consumer. In pop mode every consumer pops from every queue (queue id -1),
or from its own queues and those of the next popShareQueueNum consumers. Source: RocketMQ 5.3.3
QueryAssignmentProcessor, AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

ANY_QUEUE: Final = -1


class Queue(NamedTuple):
    """A queue of one broker. queue_id ANY_QUEUE: all of that broker."""

    topic: str
    broker_name: str
    queue_id: int


Strategy = Callable[[int, Sequence[Queue], int], list[Queue]]
"""(index of this consumer, sorted queues, number of consumers) -> its queues"""


def _averagely(index: int, queues: Sequence[Queue], consumers: int) -> list[Queue]:
    each, more = divmod(len(queues), consumers)
    start = index * each + min(index, more)
    return list(queues[start : start + each + (index < more)])


def _by_circle(index: int, queues: Sequence[Queue], consumers: int) -> list[Queue]:
    return list(queues[index::consumers])


STRATEGIES: Final[dict[str, Strategy]] = {"AVG": _averagely, "AVG_BY_CIRCLE": _by_circle}


def for_pull(
    client_id: str, clients: Sequence[str], queues: Sequence[Queue], strategy: Strategy
) -> list[Queue]:
    """Returns the queues of a client; none if it is not in `clients`. clients and queues are sorted."""
    if client_id not in clients:
        return []
    return strategy(clients.index(client_id), queues, len(clients))


def for_pop(
    client_id: str, clients: Sequence[str], queues: Sequence[Queue], strategy: Strategy, share: int
) -> list[Queue]:
    """Returns the queues from which a client pops. share: popShareQueueNum."""
    if share <= 0 or share >= len(clients) - 1:
        brokers = sorted({(queue.topic, queue.broker_name) for queue in queues})
        return [Queue(topic, broker_name, ANY_QUEUE) for topic, broker_name in brokers]
    if client_id not in clients or not queues:
        return []
    index = clients.index(client_id)
    if len(clients) > len(queues):
        return [queues[index % len(queues)]]
    found: list[Queue] = []
    for step in range(share + 1):
        found += strategy((index + step) % len(clients), queues, len(clients))
    return found
