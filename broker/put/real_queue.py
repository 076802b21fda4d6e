"""Where a message that was laid by (delayed, timed, half of a transaction) really belongs."""

from broker.store.mapped_file import is_file_name
from broker.store.record import property_value
from broker.store.settings import NamedTopic, TopicLike
from broker.topics import TopicTable


def real_queue(properties: bytes) -> tuple[str, int] | None:
    """REAL_TOPIC and REAL_QID; None: they are not there, or name what can be no queue."""
    topic = property_value(properties, b"REAL_TOPIC")
    queue_id = property_value(properties, b"REAL_QID")
    if not topic or not queue_id or not queue_id.isdigit() or len(queue_id) > 9:
        return None
    name = topic.decode("utf-8", "replace")
    return (name, int(queue_id)) if is_file_name(name) else None


def destination(topics: TopicTable, name: str) -> TopicLike:
    """It may have been deleted meanwhile: then nobody can read what goes there."""
    return topics.get(name) or NamedTopic(name)
