"""asyncio clients of a KeelMQ or RocketMQ cluster: Producer, PullConsumer, AdminClient."""

from client.consumer import PullConsumer, PullError, PullErrorKind, PullResult, PullStatus
from client.core.queues import MessageQueue
from client.message import Message, MessageExt
from client.producer import Producer, SendError, SendErrorKind, SendResult, SendStatus

__all__ = [
    "Message",
    "MessageExt",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PullError",
    "PullErrorKind",
    "PullResult",
    "PullStatus",
    "SendError",
    "SendErrorKind",
    "SendResult",
    "SendStatus",
]
