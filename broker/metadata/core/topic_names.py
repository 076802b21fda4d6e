"""Names of the topics that a broker derives from other names, and how long a name may be. Pure.

Source: RocketMQ 5.3.3 KeyBuilder, PopAckConstants.
"""

from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"
REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
REVIVE_QUEUES: Final = 8
NAME_BYTES_MAX: Final = 255
"""A topic has a directory of its name."""
PLAIN_NAME_BYTES_MAX: Final = 127
"""Records with a longer topic have version 2, which old clients cannot read."""


def name_bytes_max(topic: str) -> int:
    """Returns the length limit for this topic's name: only groups with long names may have long ones."""
    return NAME_BYTES_MAX if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else PLAIN_NAME_BYTES_MAX


def reply_topic(cluster_name: str) -> str:
    """Returns the topic of replies to requests (324, 325). Clients derive the same name."""
    return f"{cluster_name}_REPLY_TOPIC"


def revive_topic(cluster_name: str) -> str:
    """Returns the topic that holds the checkpoints and acknowledgements of pop in this cluster."""
    return f"{REVIVE_PREFIX}{cluster_name}"


def retry_topic(group: str, topic: str) -> str:
    """Returns the pop retry topic of the group for this topic: v1, RocketMQ's default."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def retry_topics(group: str, topic: str) -> tuple[str, str]:
    """Returns the v1 and the v2 name. A group that was moved here may have messages in either."""
    return retry_topic(group, topic), f"{RETRY_PREFIX}{group}+{topic}"


def can_be_retried(group: str, topic: str) -> bool:
    """Returns whether the names of the topics for messages that the group popped and did not acknowledge are
    short enough."""
    retry = topic if topic.startswith(RETRY_PREFIX) else retry_topic(group, topic)
    return all(len(name.encode()) <= NAME_BYTES_MAX for name in (retry, DLQ_PREFIX + group))
