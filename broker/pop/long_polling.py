"""Long polling of pops: pops that found nothing, and notifications, wait here for the next message.

A request of a group can be answered from any queue of the topic and from the group's retry topics. When a
queue grows, the requests of each group are tried in their order of arrival until one finds nothing: a message
wakes one consumer, not all. Source: RocketMQ 5.3.3 PopLongPollingService.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from broker.core.deadlines import Deadlines
from broker.metadata.core.topic_names import retry_topics
from broker.metadata.topics import TopicTable
from broker.stats.rpc_latency import TimedPeer
from broker.store.message_store import MessageStore
from keelmq.remoting.operation import Peer

logger = logging.getLogger(__name__)

WAITERS_MAX: Final = 100_000
LOOKED_AT_MAX: Final = 4_096
"""Waiting requests whose connection is checked in one round of expire()."""


class PollingKey(NamedTuple):
    """The queue for which a request waits. queue_id -1: any queue."""

    group: str
    topic: str
    queue_id: int


class Waiter(msgspec.Struct, eq=False):
    """A waiting request. serve: tries to answer it, True: it is answered. give_up: answers that there is no
    message."""

    key: PollingKey
    peer: Peer
    deadline_ms: int
    serve: Callable[[], bool]
    give_up: Callable[[], None]


class PopLongPolling:
    """Owned by the event loop's thread."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        call_soon: Callable[[Callable[[], None]], object],
        *,
        per_key_max: int,
    ) -> None:
        """call_soon: the event loop's. per_key_max: popPollingSize, waiting requests of one key."""
        self._store, self._topics, self._call_soon = store, topics, call_soon
        self._per_key_max = per_key_max
        self._grown_topics: set[str] = set()
        self._waiters: dict[PollingKey, OrderedDict[Waiter, None]] = {}
        self._watched: dict[str, dict[int, Callable[[], None]]] = {}  # topic -> queueId -> callback
        self._keys: dict[str, set[PollingKey]] = {}  # by each topic that can answer them
        self._deadlines: Deadlines[Waiter] = Deadlines()

    def __len__(self) -> int:
        return len(self._deadlines)

    def count_at(self, key: PollingKey) -> int:
        """Returns how many requests wait with this key."""
        return len(self._waiters.get(key, ()))

    def add(self, waiter: Waiter) -> bool:
        """Lets a request wait. False: too many wait already. No message is missed: the caller has read the
        queue in the same turn of the event loop (broker-ops pitfall 19)."""
        queue = self._waiters.setdefault(waiter.key, OrderedDict())
        if len(queue) >= self._per_key_max or len(self._deadlines) >= WAITERS_MAX:
            return False
        queue[waiter] = None
        if isinstance(waiter.peer, TimedPeer):
            waiter.peer.is_long_polling = True
        self._deadlines.add(waiter)
        key = waiter.key
        for topic in (key.topic, *retry_topics(key.group, key.topic)):
            self._keys.setdefault(topic, set()).add(key)
            self.watch(topic)
        return True

    def watch(self, topic: str) -> None:
        """Watches all queues of the topic, if a request waits that it can answer; also those from which only
        some requests can be answered."""
        if topic not in self._keys:
            return
        config = self._topics.get(topic)
        watched = self._watched.setdefault(topic, {})
        for queue_id in range(config.read_queue_nums if config is not None else 1):
            if queue_id not in watched:

                def grown(topic: str = topic, queue_id: int = queue_id) -> None:
                    self._grown(topic, queue_id)

                end = self._store.max_queue_offset(topic, queue_id)
                if self._store.wait_for(topic, queue_id, end, grown):
                    watched[queue_id] = grown

    def _grown(self, topic: str, queue_id: int) -> None:
        """Called by the store in the middle of a write, so requests are answered in the loop's next turn."""
        del self._watched[topic][queue_id]
        if not self._grown_topics:
            self._call_soon(self._serve_grown)
        self._grown_topics.add(topic)

    def _serve_grown(self) -> None:
        topics, self._grown_topics = self._grown_topics, set()
        for topic in sorted(topics):
            for key in sorted(self._keys.get(topic, ())):
                self.serve(key)
            self.watch(topic)

    def free(self, group: str, topic: str) -> None:
        """Called when a queue that was popped in order is no longer blocked for this group."""
        for key in list(self._keys.get(topic, ())):
            if key.group == group:
                self.serve(key)

    def serve(self, key: PollingKey) -> None:
        """Tries the requests of this key in order, until one finds nothing."""
        queue = self._waiters.get(key)
        while queue:
            waiter = next(iter(queue))
            try:
                if not waiter.peer.is_closing() and not waiter.serve():
                    break
            except Exception:
                logger.exception("a waiting pop of %s for %s failed: it is answered without messages",
                                 key.group, key.topic)  # fmt: skip
                waiter.give_up()
            queue.pop(waiter, None)
            self._deadlines.discard(waiter)
        self._forget_if_empty(key)

    def expire(self, now_ms: int) -> None:
        """Answers the requests whose timeout has passed, and drops those whose connection is closed; each
        call checks LOOKED_AT_MAX connections. Called several times a second."""
        gone = [each for each in self._deadlines.sample(LOOKED_AT_MAX) if each.peer.is_closing()]
        for waiter in (*self._deadlines.expired(now_ms), *gone):
            if not self._deadlines.discard(waiter):
                continue
            self._waiters[waiter.key].pop(waiter, None)
            self._forget_if_empty(waiter.key)
            if not waiter.peer.is_closing():
                waiter.give_up()

    def _forget_if_empty(self, key: PollingKey) -> None:
        if self._waiters.get(key):
            return
        self._waiters.pop(key, None)
        for topic in (key.topic, *retry_topics(key.group, key.topic)):
            keys = self._keys.get(topic, set())
            keys.discard(key)
            if not keys and self._keys.pop(topic, None) is not None:
                self._stop_watching(topic)

    def _stop_watching(self, topic: str) -> None:
        for queue_id, grown in self._watched.pop(topic, {}).items():
            self._store.stop_waiting(topic, queue_id, grown)
