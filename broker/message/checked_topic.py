"""The topic that decides who may see or move a stored message."""

from typing import Final

from broker.message.record import property_value

WAITING: Final = frozenset(
    {
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "rmq_sys_wheel_timer",
    }
)
"""Topics of the broker, where messages wait for their own one."""


def checked_topic(topic: str, properties: bytes) -> str:
    """Returns the topic to ask Caller.check_topic() about: REAL_TOPIC, if the message waits for it. Elsewhere
    that is a property of the client's."""
    real = property_value(properties, b"REAL_TOPIC") if topic in WAITING else None
    return topic if not real else real.decode("utf-8", "replace")
