"""The real topic and queue of a scheduled message: a delayed one, a timer, or a half message."""

from broker.message.record import property_value
from broker.metadata.topics import TopicTable
from broker.store.log.mapped_file import is_file_name
from broker.store.settings import NamedTopic, TopicLike


def real_queue(properties: bytes) -> tuple[str, int] | None:
    """Returns REAL_TOPIC and REAL_QID; None: they are absent or illegal."""
    topic = property_value(properties, b"REAL_TOPIC")
    queue_id = property_value(properties, b"REAL_QID")
    if not topic or not queue_id or not queue_id.isdigit() or len(queue_id) > 9:
        return None
    name = topic.decode("utf-8", "replace")
    return (name, int(queue_id)) if is_file_name(name) else None


def destination(topics: TopicTable, name: str) -> TopicLike:
    """Returns the topic, or just its name if it was deleted meanwhile: then the message cannot be read."""
    return topics.get(name) or NamedTopic(name)
