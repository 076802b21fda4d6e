"""asyncio clients of a KeelMQ or RocketMQ cluster: producers, consumers, and AdminClient (client.admin).

docs/client.md shows all of them; client.blocking has the same without asyncio.
"""

from client.consumer import PullConsumer
from client.core.queues import MessageQueue
from client.core.window import Limits
from client.hooks import ClientHook, ConsumeTrace, SendTrace, TransactionTrace
from client.listening import ReconsumeLater
from client.lite_consumer import LitePullConsumer
from client.message import Message, MessageExt
from client.producer import Producer
from client.push_consumer import PushConsumer
from client.reading import PullError, PullErrorKind, PullResult, PullStatus
from client.replies import NoReply, ReplyMessage
from client.sending import SendError, SendErrorKind, SendResult, SendStatus
from client.settings import ConsumeFromWhere, ConsumerSettings, MessageModel
from client.tracing import TraceHook
from client.transaction import Transaction, TransactionProducer, TransactionState

__all__ = [
    "ClientHook",
    "ConsumeFromWhere",
    "ConsumeTrace",
    "ConsumerSettings",
    "Limits",
    "LitePullConsumer",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "NoReply",
    "Producer",
    "PullConsumer",
    "PullError",
    "PullErrorKind",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "ReconsumeLater",
    "ReplyMessage",
    "SendError",
    "SendErrorKind",
    "SendResult",
    "SendStatus",
    "SendTrace",
    "TraceHook",
    "Transaction",
    "TransactionProducer",
    "TransactionState",
    "TransactionTrace",
]
