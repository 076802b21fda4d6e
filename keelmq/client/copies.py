"""Copies of stored messages, to be sent again."""

from keelmq.client.message import (
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    Message,
    MessageExt,
)

WAITING_TOPICS = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")
"""Topics in which delayed messages and timers wait."""
BROKERS_PROPERTIES = frozenset(
    (
        "UNIQ_KEY", "WAIT", "TAGS", "KEYS", "MSG_REGION", "TRACE_ON", "CLUSTER", "DELAY", "REAL_TOPIC",
        "REAL_QID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "TRAN_MSG", "PGROUP", "__transactionId__", "POP_CK",
        "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "INNER_NUM", "INNER_BASE",
        "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID", "MIN_OFFSET", "MAX_OFFSET", "RECONSUME_TIME", "CONSUME_START_TIME",
    )
)  # fmt: skip
"""Properties that are not copied to a message that is sent again: brokers and clients write them."""
DLQ_PREFIX, RETRY_PREFIX = "%DLQ%", "%RETRY%"


def copy_of(old: MessageExt) -> Message:
    """Returns a message with the same topic, body, tags, keys and properties. The topic of a delayed message
    is the one that it was sent to; properties that brokers write are left out. ValueError: its body could not
    be inflated."""
    if old.body_error:
        raise ValueError(old.body_error)
    own = {key: text for key, text in old.properties.items() if key not in BROKERS_PROPERTIES}
    real = old.properties.get("REAL_TOPIC")
    topic = real if real and old.topic in WAITING_TOPICS else old.topic
    keys = tuple((old.keys or "").split())
    return Message(topic, old.body, tags=old.tags, keys=keys, properties=own, flag=old.flag)


def original_topic(message: MessageExt) -> str:
    """Returns the topic that a DLQ message was sent to, "" if it does not name it."""
    named = message.properties.get("DLQ_ORIGIN_TOPIC") or message.properties.get(RETRY_TOPIC) or ""
    return "" if named.startswith((DLQ_PREFIX, RETRY_PREFIX)) else named


def copy_of_dlq_message(message: MessageExt, group: str, *, to_topic: bool) -> Message:
    """Returns a message that the group consumes again as if it were new: in the group's retry topic, which no
    other group reads. to_topic: in its original topic instead, which every group reads. ValueError: it does
    not name its topic, or its body could not be inflated."""
    topic = original_topic(message)
    if not topic:
        raise ValueError("it does not say which topic it was sent to")
    copy = copy_of(message)
    properties = dict(copy.properties)
    if to_topic:
        return Message(
            topic, copy.body, tags=copy.tags, keys=copy.keys, properties=properties, flag=copy.flag
        )
    properties[RETRY_TOPIC] = topic
    properties[ORIGIN_MESSAGE_ID] = message.properties.get(ORIGIN_MESSAGE_ID) or message.offset_msg_id
    return Message(
        RETRY_PREFIX + group, copy.body, tags=copy.tags, keys=copy.keys, properties=properties, flag=copy.flag
    )
