"""Which queues a consumer works on, decided by the broker (400). Pure.

A pulling group shares the queues out; in pop mode everybody may take from every queue (queue id -1), or each
consumer also from the queues of the next few. Source: RocketMQ 5.3.3 QueryAssignmentProcessor,
AllocateMessageQueueAveragely, AllocateMessageQueueAveragelyByCircle.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

ANY_QUEUE: Final = -1


class Queue(NamedTuple):
    topic: str
    broker_name: str
    queue_id: int


Strategy = Callable[[int, Sequence[Queue], int], list[Queue]]
"""(number of this consumer, queues in order, number of consumers) -> its queues"""


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
    """clients and queues in order. Nothing for a client that is not there."""
    if client_id not in clients:
        return []
    return strategy(clients.index(client_id), queues, len(clients))


def for_pop(
    client_id: str, clients: Sequence[str], queues: Sequence[Queue], strategy: Strategy, share: int
) -> list[Queue]:
    """share: popShareQueueNum."""
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
