"""Sends messages that a consumer could not handle back to the broker, which redelivers them later (36).

If the broker does not accept one, a copy goes to the group's retry topic at any broker; if that fails too,
the caller keeps the message. A message counts as consumed only when a broker has it.
"""

import logging

from keelmq.client.cluster.queue_reader import PullError, QueueReader
from keelmq.client.consumer.process_queue import RETRY_PREFIX
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.send_result import SendError
from keelmq.client.message import (
    INNER_BATCH_FLAGS,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    UNIQ_KEY,
    MessageExt,
    encode_pairs,
)
from keelmq.client.producer.compression import COMPRESS_OVER_BYTES, compressed
from keelmq.client.producer.send_attempt import PendingSend
from keelmq.client.producer.sender import Sender
from keelmq.remoting.operations.clients import CONSUMER_SEND_MSG_BACK, SendBackRequest
from keelmq.runtime.clock import now_ms

logger = logging.getLogger(__name__)

SEND_BACK_TIMEOUT_MS = 5_000
COPY_TIMEOUT_MS = 5_000
FIRST_RETRY_LEVEL = 3
GROUP_RETRIES = 16
"""The brokers' default for a group without its own configuration."""


class SendBack:
    """Sends messages of one group back, or copies of them to its retry topic."""

    def __init__(self, reader: QueueReader, sender: Sender, group: str, *, max_reconsume_times: int) -> None:
        self._reader, self._sender, self._group = reader, sender, group
        self._max_reconsume_times = max_reconsume_times

    async def back(self, message: MessageExt, delay_level: int) -> bool:
        """Sends a message back (CONSUMER_SEND_MSG_BACK, 36). False: no broker accepted it. `delay_level` 0:
        the broker chooses, longer each time; below 0: to the dead-letter queue."""
        topic = _stored_topic(message, self._group)
        header = SendBackRequest(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=_origin(message),
            origin_topic=message.topic,
            unit_mode=False,
            max_reconsume_times=self._max_reconsume_times if self._max_reconsume_times >= 0 else None,
        )
        queue = MessageQueue(topic, message.broker_name, message.queue_id)
        try:
            await self._reader.ask(
                queue, CONSUMER_SEND_MSG_BACK, header, timeout_ms=SEND_BACK_TIMEOUT_MS, master_only=True
            )
        except PullError as error:
            logger.warning("cannot send message %s back: %s", message.msg_id, error)
            level = delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
            maximum = self._max_reconsume_times if self._max_reconsume_times >= 0 else GROUP_RETRIES
            return await self.copy(
                message, reconsume_times=message.reconsume_times + 1, maximum=maximum, level=level
            )
        return True

    async def copy(self, message: MessageExt, *, reconsume_times: int, maximum: int, level: int = 0) -> bool:
        """Sends a copy to the retry topic; above `maximum` the broker moves it to the dead-letter queue.
        False: no broker accepted it."""
        pairs = dict(message.properties)
        pairs[RETRY_TOPIC] = message.topic
        pairs[ORIGIN_MESSAGE_ID] = pairs.get(ORIGIN_MESSAGE_ID) or message.offset_msg_id
        pairs["RECONSUME_TIME"] = str(reconsume_times)
        pairs["MAX_RECONSUME_TIMES"] = str(maximum)
        pairs.pop("DELAY", None)
        if level > 0:
            pairs["DELAY"] = str(level)
        body, sys_flag = await compressed(message.body, COMPRESS_OVER_BYTES)
        pending_send = PendingSend(
            topic=RETRY_PREFIX + self._group,
            body=body,
            sys_flag=sys_flag,
            flag=message.flag,
            properties=encode_pairs(pairs),
            unique_key=pairs.get(UNIQ_KEY, ""),
            deadline_ms=now_ms() + COPY_TIMEOUT_MS,
            reconsume_times=reconsume_times,
            max_reconsume_times=maximum,
        )
        try:
            await self._sender.deliver(pending_send, None)
        except SendError as error:
            logger.warning("cannot send message %s to the retry topic: %s", message.msg_id, error)
            return False
        return True


def _origin(message: MessageExt) -> str:
    """Returns the id of the original message. All messages of an inner batch share one CommitLog offset, so
    their UNIQ_KEY identifies them."""
    if message.sys_flag & INNER_BATCH_FLAGS == INNER_BATCH_FLAGS:
        return message.msg_id
    return message.properties.get(ORIGIN_MESSAGE_ID) or message.offset_msg_id


def _stored_topic(message: MessageExt, group: str) -> str:
    """Returns the topic whose route has the broker that stored the message: both topics are at that broker,
    and the original one is older."""
    return (
        RETRY_PREFIX + group
        if message.reconsume_times and RETRY_TOPIC in message.properties
        else message.topic
    )
