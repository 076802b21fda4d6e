"""A MessageStore without a broker around it: for repair, benchmarks and tests of the store."""

from collections.abc import Callable

from broker.store.message_store import MessageStore
from broker.store.settings import StoreConfig


class NoTopics:
    """BatchTopics of a store that knows no topic: a queue is a BatchQueue only if its files or its first
    record show it."""

    on_batch_topic: Callable[[str], None] | None = None

    def is_batch(self, name: str) -> bool:
        """Returns False: no topic is known here."""
        return False


def _ignore(topic: str, queue_id: int) -> None:
    """Does nothing: there is no topic table."""


def _checked_by_the_store(fault: str) -> None:
    """The fault is logged and latched: every later write and sync raises it."""


def offline_store(config: StoreConfig) -> MessageStore:
    """The store of these files, not loaded yet."""
    return MessageStore(config, topics=NoTopics(), on_queue=_ignore, on_sync_fault=_checked_by_the_store)
