"""The interfaces of a broker's metadata to its store, and to its replicas while it is master."""

from collections.abc import Collection, Iterator
from typing import Protocol

from broker.metadata.queue_ends import Ends
from broker.store.message_store import MessageStore


class LocalQueues(Protocol):
    """The log and the queues of this broker."""

    def log_end(self) -> int:
        """Returns the log's maxOffset."""
        ...

    def queue_end(self, topic: str, queue_id: int) -> int:
        """Returns the offset that the queue's next message gets; 0: there is no such queue."""
        ...

    def queue_end_before(self, topic: str, queue_id: int, log_offset: int) -> int:
        """Returns the result of queue_end() when the log ended at log_offset."""
        ...

    def emptied(self) -> Iterator[Ends]:
        """Yields the ends of the queues that have lost all their messages to retention, in slices. Retention
        may continue in between."""
        ...

    def go_on_from(self, topic: str, queue_id: int, end: int) -> None:
        """Makes the queue's next message get an offset of at least `end`."""
        ...


class StoreQueues:
    """LocalQueues of a MessageStore."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def log_end(self) -> int:
        return self._store.commit_log.max_offset

    def queue_end(self, topic: str, queue_id: int) -> int:
        queue = self._store.find_queue(topic, queue_id)
        return 0 if queue is None else queue.next_offset

    def queue_end_before(self, topic: str, queue_id: int, log_offset: int) -> int:
        queue = self._store.find_queue(topic, queue_id)
        return 0 if queue is None else queue.end_before(log_offset)

    def emptied(self) -> Iterator[Ends]:
        log = self._store.commit_log
        while True:
            begin = log.min_offset
            yield from self._store.queues.emptied(begin)
            if log.min_offset == begin:
                return

    def go_on_from(self, topic: str, queue_id: int, end: int) -> None:
        self._store.queues.go_on_from(topic, queue_id, end)


class Replicas(Protocol):
    """The replicas of one master (HaService). Metadata gets it at the beginning of each term."""

    def metadata_members(self, epoch: int) -> Collection[int] | None:
        """Returns the replicas whose copies count in the term of `epoch`; None: that term is over."""
        ...

    def metadata_caught_up(self, slave_id: int) -> None:
        """Called when this replica has all metadata."""
        ...


class NoReplicas:
    """Replicas of a master without controllers: slaves copy its metadata, and no change waits for them."""

    def metadata_members(self, epoch: int) -> Collection[int] | None:
        return ()

    def metadata_caught_up(self, slave_id: int) -> None:
        """Does nothing: no code depends on it."""
