"""asyncio clients of a KeelMQ or RocketMQ cluster: producers, consumers and their errors.

Programs import these names from `keelmq`. docs/client.md shows all of them; `keelmq.blocking` has the same
clients without asyncio, keelmq.client.admin the AdminClient.
"""

from keelmq.client.cluster.queue_reader import PullError, PullErrorKind, PullResult, PullStatus
from keelmq.client.cluster.routes import RouteError
from keelmq.client.consumer.consume_message_service import ReconsumeLater
from keelmq.client.consumer.damage import DamagedMessageError
from keelmq.client.consumer.lite_pull_consumer import LitePullConsumer
from keelmq.client.consumer.pull_consumer import PullConsumer
from keelmq.client.consumer.push_consumer import PushConsumer
from keelmq.client.consumer.settings import ConsumeFromWhere, ConsumerSettings, DamagedPolicy, MessageModel
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.send_result import SendError, SendErrorKind, SendResult, SendStatus
from keelmq.client.core.window import Limits
from keelmq.client.hooks import ClientHook, ConsumeTrace, SendTrace, TransactionTrace
from keelmq.client.message import DamagedRecord, Message, MessageExt
from keelmq.client.producer.producer import Producer
from keelmq.client.producer.request_reply import NoReply, ReplyMessage
from keelmq.client.producer.transaction import Transaction, TransactionProducer, TransactionState
from keelmq.client.tracing import TraceHook
from keelmq.runtime.tls.contexts import TlsSettings
from keelmq.security.signer import Credentials

Consumer = LitePullConsumer
"""The consumer that most programs need, under its short name."""

__all__ = [
    "ClientHook",
    "ConsumeFromWhere",
    "ConsumeTrace",
    "Consumer",
    "ConsumerSettings",
    "Credentials",
    "DamagedMessageError",
    "DamagedPolicy",
    "DamagedRecord",
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
    "RouteError",
    "SendError",
    "SendErrorKind",
    "SendResult",
    "SendStatus",
    "SendTrace",
    "TlsSettings",
    "TraceHook",
    "Transaction",
    "TransactionProducer",
    "TransactionState",
    "TransactionTrace",
]
