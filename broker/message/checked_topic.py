"""The topic that decides who may see or move a stored message."""

from broker.message.record import property_value
from keelmq.security.core.contexts import WAITING_TOPICS


def checked_topic(topic: str, properties: bytes) -> str:
    """Returns the topic to ask Caller.check_topic() about: REAL_TOPIC, if the message waits for it. In other
    topics, the client has set that property."""
    real = property_value(properties, b"REAL_TOPIC") if topic in WAITING_TOPICS else None
    return topic if not real else real.decode("utf-8", "replace")
