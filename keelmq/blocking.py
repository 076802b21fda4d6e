"""The clients for programs without asyncio: `from keelmq.blocking import BlockingProducer`.

They take the same arguments as the asyncio clients; calls block. See keelmq/client/blocking.py.
"""

from keelmq.client.blocking import (
    BlockingConsumer,
    BlockingLitePullConsumer,
    BlockingProducer,
    BlockingPullConsumer,
    BlockingPushConsumer,
    BlockingTransaction,
    BlockingTransactionProducer,
)
from keelmq.client.lifecycle import ClientClosed

__all__ = [
    "BlockingConsumer",
    "BlockingLitePullConsumer",
    "BlockingProducer",
    "BlockingPullConsumer",
    "BlockingPushConsumer",
    "BlockingTransaction",
    "BlockingTransactionProducer",
    "ClientClosed",
]
