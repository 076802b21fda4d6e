"""Memberships: in which groups the clients of this proxy are, and when brokers are told again. Pure.

Brokers show the members of gRPC beside those of remoting (203, 204), and forget those they do not hear of. A
proxy knows a client from its calls, so one that has just started tells of a client with its next call.
"""

from collections import OrderedDict
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

MEMBERSHIPS_MAX: Final = 50_000
"""Of all clients. Further ones are not shown."""
OF_CLIENT_MAX: Final = 1_024
"""Memberships of a client, and topics of one."""
AGAIN_MS: Final = 30_000
"""Between two heartbeats for a membership, as RocketMQ's clients of remoting send theirs."""
SILENT_MS: Final = 120_000
"""A client that has sent nothing for so long is forgotten here and at the brokers."""

S = TypeVar("S")
"""Who signs for a client."""


class Membership(NamedTuple):
    """Of a client in a group, at a group of brokers. is_consumer: else it produces, and the group has the
    topic's name."""

    group: str
    broker_name: str
    is_consumer: bool = True


Filter = tuple[str, str]
"""An expression, and its type."""


class Told(msgspec.Struct):
    """What the broker is told of a membership, and when it was told last. topics: that a consumer receives.
    is_push: whether it is a push consumer."""

    at_ms: int
    is_push: bool = False
    topics: dict[str, Filter] = msgspec.field(default_factory=dict)


class _Client(msgspec.Struct, Generic[S]):
    """signs: for the heartbeats at its end and between its calls."""

    signs: S
    heard_ms: int
    told: dict[Membership, Told] = msgspec.field(default_factory=dict)


class Memberships(Generic[S]):
    def __init__(self) -> None:
        self._clients: OrderedDict[str, _Client[S]] = OrderedDict()  # the one heard of last is at the end
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def joins(
        self,
        client_id: str,
        signs: S,
        membership: Membership,
        topic: str,
        wanted: Filter | None = None,
        *,
        now_ms: int,
    ) -> Told | None:
        """The client receives from the topic, with the filter, or sends to it. Returns what the broker is to
        be told now; None: nothing."""
        self._forget_silent(now_ms)
        client = self._clients.get(client_id)
        if client is None:
            if self._count >= MEMBERSHIPS_MAX:
                return None
            client = self._clients[client_id] = _Client(signs, now_ms)
        self._clients.move_to_end(client_id)
        client.heard_ms, client.signs = now_ms, signs
        told = client.told.get(membership)
        if told is None:
            if self._count >= MEMBERSHIPS_MAX or len(client.told) >= OF_CLIENT_MAX:
                return None
            told = client.told[membership] = Told(now_ms - AGAIN_MS)
            self._count += 1
        if wanted is not None and told.topics.get(topic) != wanted:
            if len(told.topics) >= OF_CLIENT_MAX:
                told.topics.clear()
            told.topics[topic] = wanted
            told.at_ms = now_ms - AGAIN_MS
        return _due(told, now_ms)

    def heard(self, client_id: str, now_ms: int) -> list[tuple[Membership, Told]]:
        """The client has sent a heartbeat. Returns what brokers are to be told now."""
        client = self._clients.get(client_id)
        if client is None:
            return []
        self._clients.move_to_end(client_id)
        client.heard_ms = now_ms
        return [(each, told) for each, told in client.told.items() if _due(told, now_ms) is not None]

    def signs(self, client_id: str) -> S | None:
        """Returns who signs for the client; None: it is in no group."""
        client = self._clients.get(client_id)
        return None if client is None else client.signs

    def ended(self, client_id: str) -> list[tuple[Membership, Told]]:
        """The client ends. Returns where brokers know it."""
        client = self._clients.pop(client_id, None)
        if client is None:
            return []
        self._count -= len(client.told)
        return list(client.told.items())

    def _forget_silent(self, now_ms: int) -> None:
        while self._clients:
            client_id, client = next(iter(self._clients.items()))
            if client.heard_ms + SILENT_MS > now_ms:
                break
            self.ended(client_id)


def _due(told: Told, now_ms: int) -> Told | None:
    """A failed heartbeat is repeated with the next one that is due."""
    if told.at_ms + AGAIN_MS > now_ms:
        return None
    told.at_ms = now_ms
    return told
