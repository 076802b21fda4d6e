"""MessageQueue: a queue of a topic on one broker group, which producers choose and consumers share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """Ordered by topic, broker name and id (a number): all members of a group sort alike."""

    topic: str
    broker_name: str
    queue_id: int
