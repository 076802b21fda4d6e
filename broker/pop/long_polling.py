"""Consumers that wait for the next message of a topic: pops that found nothing, and notifications.

A waiter of a group may be served by any of the topic's queues, and by the group's retry topics. When a queue
grows, the waiters of each group are tried in the order in which they came, until one finds nothing: a message
wakes one consumer, not all. Source: RocketMQ 5.3.3 PopLongPollingService.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.pop.core.handles import retry_topics
from broker.store.message_store import MessageStore
from broker.topics import TopicTable
from remoting.operation import Peer

logger = logging.getLogger(__name__)

WAITERS_MAX: Final = 100_000


class Place(NamedTuple):
    """queue_id -1: any."""

    group: str
    topic: str
    queue_id: int


@dataclass(slots=True, eq=False)
class Waiter:
    """serve: looks again; True: it is answered. give_up: its time is over."""

    place: Place
    peer: Peer
    deadline_ms: int
    serve: Callable[[], bool]
    give_up: Callable[[], None]


class Waiting:
    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        call_soon: Callable[[Callable[[], None]], object],
        *,
        per_place_max: int,
    ) -> None:
        """per_place_max: popPollingSize."""
        self._store, self._topics, self._call_soon = store, topics, call_soon
        self._per_place_max = per_place_max
        self._grown_topics: set[str] = set()
        self._waiters: dict[Place, deque[Waiter]] = {}
        self._watched: dict[tuple[str, int], Callable[[], None]] = {}
        self._places: dict[str, set[Place]] = {}  # by every topic that may serve them
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count_at(self, place: Place) -> int:
        return len(self._waiters.get(place, ()))

    def add(self, waiter: Waiter) -> bool:
        """False: too many wait already. What arrives from now on is seen: nothing ran since the caller looked
        (broker-ops pitfall 19)."""
        queue = self._waiters.setdefault(waiter.place, deque())
        if len(queue) >= self._per_place_max or self._count >= WAITERS_MAX:
            return False
        queue.append(waiter)
        self._count += 1
        place = waiter.place
        for topic in (place.topic, *retry_topics(place.group, place.topic)):
            self._places.setdefault(topic, set()).add(place)
            self._watch(topic)
        return True

    def _watch(self, topic: str) -> None:
        """All queues, also those that only some waiters want."""
        config = self._topics.get(topic)
        for queue_id in range(config.read_queue_nums if config is not None else 1):
            if (topic, queue_id) not in self._watched:

                def grown(topic: str = topic, queue_id: int = queue_id) -> None:
                    self._grown(topic, queue_id)

                end = self._store.max_queue_offset(topic, queue_id)
                if self._store.wait_for(topic, queue_id, end, grown):
                    self._watched[topic, queue_id] = grown

    def _grown(self, topic: str, queue_id: int) -> None:
        """Called by the store in the middle of its work: what waits is served when that is done."""
        del self._watched[topic, queue_id]
        if not self._grown_topics:
            self._call_soon(self._serve_grown)
        self._grown_topics.add(topic)

    def _serve_grown(self) -> None:
        topics, self._grown_topics = self._grown_topics, set()
        for topic in sorted(topics):
            for place in sorted(self._places.get(topic, ())):
                self.serve(place)
            if topic in self._places:
                self._watch(topic)

    def free(self, group: str, topic: str) -> None:
        """A queue gives this group messages again."""
        for place in list(self._places.get(topic, ())):
            if place.group == group:
                self.serve(place)

    def serve(self, place: Place) -> None:
        """Those that wait there look again, until one finds nothing."""
        queue = self._waiters.get(place)
        while queue:
            waiter = queue[0]
            try:
                if not waiter.peer.is_closing() and not waiter.serve():
                    break
            except Exception:
                logger.exception("a consumer of %s that waits for %s cannot be served, and is told that "
                                 "nothing came", place.group, place.topic)  # fmt: skip
                waiter.give_up()
            queue.popleft()
            self._count -= 1
        self._forget_if_empty(place)

    def expire(self, now_ms: int) -> None:
        """Once a second: those whose time is over, and those whose connection is gone."""
        for place, queue in list(self._waiters.items()):
            over = [each for each in queue if each.deadline_ms <= now_ms or each.peer.is_closing()]
            if not over:
                continue
            gone = set(map(id, over))
            self._waiters[place] = deque(each for each in queue if id(each) not in gone)
            self._count -= len(over)
            self._forget_if_empty(place)
            for waiter in over:
                if not waiter.peer.is_closing():
                    waiter.give_up()

    def _forget_if_empty(self, place: Place) -> None:
        if self._waiters.get(place):
            return
        self._waiters.pop(place, None)
        for topic in (place.topic, *retry_topics(place.group, place.topic)):
            places = self._places.get(topic, set())
            places.discard(place)
            if not places and self._places.pop(topic, None) is not None:
                self._stop_watching(topic)

    def _stop_watching(self, topic: str) -> None:
        for watched in [watched for watched in self._watched if watched[0] == topic]:
            self._store.stop_waiting(*watched, self._watched.pop(watched))
