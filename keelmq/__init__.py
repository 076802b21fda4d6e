"""The public names of KeelMQ's clients: `from keelmq import Producer, Consumer, Message`.

The names of keelmq.client, and `keelmq.blocking`, which has the same clients without asyncio. Each is
imported at its first use, so brokers and name servers, which import other parts of this package, never load a
client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keelmq import blocking
    from keelmq.client import (
        ClientHook,
        ConsumeFromWhere,
        Consumer,
        ConsumerSettings,
        ConsumeTrace,
        Credentials,
        DamagedMessageError,
        DamagedPolicy,
        DamagedRecord,
        Limits,
        LitePullConsumer,
        Message,
        MessageExt,
        MessageModel,
        MessageQueue,
        NoReply,
        Producer,
        PullConsumer,
        PullError,
        PullErrorKind,
        PullResult,
        PullStatus,
        PushConsumer,
        ReconsumeLater,
        ReplyMessage,
        RouteError,
        SendError,
        SendErrorKind,
        SendResult,
        SendStatus,
        SendTrace,
        TlsSettings,
        TraceHook,
        Transaction,
        TransactionProducer,
        TransactionState,
        TransactionTrace,
    )

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
    "blocking",
]


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use (PEP 562). Raises AttributeError."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "blocking":
        value = import_module("keelmq.blocking")
    else:
        value = getattr(import_module("keelmq.client"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
