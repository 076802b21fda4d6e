"""Renewals: for which clients and at which brokers messages of push consumers are renewed, and when. Pure.

Brokers know what a client has popped (its id is the `owner` in the checkpoints), so a proxy needs to know
only which clients live: for a client that reaches another proxy, that one renews, from its first call on. The
invisible time counts from the last sign of life of the client, so a dead client's messages are visible again
at the end of it, whatever happens to the proxies.

Brokers renew what a proxy has said to be delivered, some time after its answer was written: if a proxy dies
between a pop and its answer, nobody holds the messages, and they are visible again after their first
invisible time.
"""

import heapq
from collections import OrderedDict
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from keelmq.remoting.operations.pop import DELIVERED_MAX

PLACES_MAX: Final = 50_000
"""Places of all clients. Messages of further ones are visible again after their first invisible time."""
CLIENT_PLACES_MAX: Final = 1_024
PAUSE_MS: Final = 1_000
"""Between two requests for one place, at least."""
DELIVERED_AFTER_MS: Final = 1_000
"""This long after an answer was written without an error, its client has it."""
NEVER: Final = 1 << 62


S = TypeVar("S")
"""What a request has to say about its client: who signs it."""


class Place(NamedTuple):
    """Where a client has popped messages. topic: the subscribed one."""

    group: str
    topic: str
    broker_name: str


class Renewal(NamedTuple, Generic[S]):
    """A request to make: the messages of a client at a place stay invisible for invisible_ms from now.
    delivered: times of pops whose messages the client has, which the broker does not know yet."""

    client_id: str
    place: Place
    sender: S
    invisible_ms: int
    delivered: tuple[int, ...] = ()


class _Client(msgspec.Struct, Generic[S]):
    """places: when to make the next request for each. answers: {time of a pop: when its answer was written},
    while the broker does not know that it was delivered."""

    heard_ms: int
    sender: S
    places: dict[Place, int]
    answers: dict[Place, dict[int, int]] = msgspec.field(default_factory=dict)


class Renewals(Generic[S]):
    def __init__(self, invisible_ms: int) -> None:
        """invisible_ms: of pops for push consumers."""
        self._invisible_ms = invisible_ms
        self._clients: OrderedDict[str, _Client[S]] = OrderedDict()  # the one heard of last is at the end
        self._due: list[tuple[int, str, Place]] = []  # heap; an entry is stale if the place has another time
        self._places = 0

    def __len__(self) -> int:
        return self._places

    def heard(self, client_id: str, now_ms: int) -> None:
        """The client has sent something, so it lives."""
        client = self._clients.get(client_id)
        if client is not None:
            client.heard_ms = now_ms
            self._clients.move_to_end(client_id)

    def receives(self, client_id: str, place: Place, sender: S, now_ms: int) -> bool:
        """The client receives from a place, and may hold messages that it got there by another proxy. Returns
        False: there is no room for a further place."""
        if self._has(client_id, place):
            self._heard_of(client_id, sender, now_ms)
            return True
        is_added = self._add(client_id, place, sender, now_ms)
        self._schedule(client_id, place, now_ms)
        return is_added

    def answered_pop(self, client_id: str, place: Place, pop_ms: int, sender: S, now_ms: int) -> bool:
        """The answer to a pop, with messages, was written. Returns False: they are not renewed, as there is
        no room for the place, or too many answers wait to be told to the broker."""
        if not self._has(client_id, place) and not self._add(client_id, place, sender, now_ms):
            return False
        self._heard_of(client_id, sender, now_ms)
        answers = self._clients[client_id].answers.setdefault(place, {})
        if len(answers) >= DELIVERED_MAX:
            return False
        answers.setdefault(pop_ms, now_ms)
        self._schedule(client_id, place, now_ms + DELIVERED_AFTER_MS)
        return True

    def _has(self, client_id: str, place: Place) -> bool:
        client = self._clients.get(client_id)
        return client is not None and place in client.places

    def _heard_of(self, client_id: str, sender: S, now_ms: int) -> None:
        """A client may sign with another password from now on."""
        self.heard(client_id, now_ms)
        client = self._clients.get(client_id)
        if client is not None:
            client.sender = sender

    def _add(self, client_id: str, place: Place, sender: S, now_ms: int) -> bool:
        client = self._clients.get(client_id) or _Client(now_ms, sender, {})
        if self._places >= PLACES_MAX or len(client.places) >= CLIENT_PLACES_MAX:
            return False
        client.places[place] = NEVER
        self._clients[client_id] = client
        self._places += 1
        return True

    def answered(self, renewal: Renewal[S], visible_in_ms: int | None, now_ms: int) -> None:
        """The broker has carried out a request. visible_in_ms: of the client's first message there; None: it
        has none."""
        client = self._clients.get(renewal.client_id)
        if client is not None and (answers := client.answers.get(renewal.place)) is not None:
            for pop_ms in renewal.delivered:
                answers.pop(pop_ms, None)
            if answers:
                first_ms = min(answers.values()) + DELIVERED_AFTER_MS
                self._schedule(renewal.client_id, renewal.place, max(first_ms, now_ms + PAUSE_MS))
            else:
                del client.answers[renewal.place]
        if visible_in_ms is not None:
            pause_ms = max(visible_in_ms - self._invisible_ms // 2, PAUSE_MS)
            self._schedule(renewal.client_id, renewal.place, now_ms + pause_ms)

    def failed(self, renewal: Renewal[S], now_ms: int) -> None:
        """No broker has carried out a request."""
        self._schedule(renewal.client_id, renewal.place, now_ms + PAUSE_MS)

    def sender_of(self, client_id: str) -> S | None:
        """Returns who signs for the client; None: nothing is renewed for it."""
        client = self._clients.get(client_id)
        return None if client is None else client.sender

    def ended(self, client_id: str) -> list[Place]:
        """The client ends: its messages are not renewed any more. Returns where it may have some."""
        client = self._clients.pop(client_id, None)
        if client is None:
            return []
        self._places -= len(client.places)
        return list(client.places)

    def next_due(self, now_ms: int) -> Renewal[S] | None:
        """Returns a request that is to be made now; answered() or failed() follow. None: there is none."""
        self._forget_silent(now_ms)
        while self._due and self._due[0][0] <= now_ms:
            at_ms, client_id, place = heapq.heappop(self._due)
            client = self._clients.get(client_id)
            if client is not None and client.places.get(place) == at_ms:
                client.places[place] = NEVER
                invisible_ms = client.heard_ms + self._invisible_ms - now_ms
                answers = client.answers.get(place, {})
                delivered = tuple(
                    pop_ms for pop_ms, at_ms in answers.items() if at_ms + DELIVERED_AFTER_MS <= now_ms
                )
                return Renewal(client_id, place, client.sender, invisible_ms, delivered)
        return None

    def _forget_silent(self, now_ms: int) -> None:
        """Messages of clients that were silent for the invisible time are visible, or were renewed by the
        proxy that has heard of them since."""
        while self._clients:
            client_id, client = next(iter(self._clients.items()))
            if client.heard_ms + self._invisible_ms > now_ms:
                break
            self.ended(client_id)

    def _schedule(self, client_id: str, place: Place, at_ms: int) -> None:
        """A time that is set already and is earlier stays."""
        client = self._clients.get(client_id)
        if client is not None and at_ms < client.places.get(place, 0):
            client.places[place] = at_ms
            heapq.heappush(self._due, (at_ms, client_id, place))
