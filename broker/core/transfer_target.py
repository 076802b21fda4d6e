"""Which replica can take over the mastership in a hand-over, by the acknowledged part of the log, and which
one is next if the controllers refuse it. Pure."""

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec


class TransferCandidate(msgspec.Struct, frozen=True):
    """A connected member of the SyncStateSet, and the end of the log that it acknowledged."""

    broker_id: int
    ack_offset: int


class Transfer(NamedTuple):
    """One attempt of a hand-over. needs_room: the controllers refuse it if this replica's disk is full."""

    broker_id: int
    needs_room: bool


def next_transfer(
    links: Collection[TransferCandidate],
    refused: Collection[Transfer],
    *,
    wanted: int | None = None,
    for_room: bool = False,
) -> Transfer | None:
    """Returns the next attempt after those that the controllers refused; None: there is none left.

    A replica with room is preferred. One without is tried when all with room were refused, but not if this
    broker hands over because its own disk is full (for_room). `wanted` is tried once, with or without room.
    """
    for needs_room in (for_room,) if wanted is not None else (True,) if for_room else (True, False):
        left = [link for link in links if Transfer(link.broker_id, needs_room) not in refused]
        target = choose_transfer_target(left, wanted)
        if target is not None:
            return Transfer(target, needs_room)
    return None


def choose_transfer_target(links: Iterable[TransferCandidate], wanted: int | None) -> int | None:
    """Returns the wanted replica if it is a candidate; with wanted None the one with the longest log, and of
    equal ones the one with the smallest id. None: there is no such candidate."""
    able = [link for link in links if wanted in (None, link.broker_id)]
    best = max(able, key=lambda link: (link.ack_offset, -link.broker_id), default=None)
    return None if best is None else best.broker_id


def fully_replicated(links: Iterable[TransferCandidate], end_offset: int) -> frozenset[int]:
    """Returns the candidates that have every byte of a log that ends at end_offset and does not grow."""
    return frozenset(link.broker_id for link in links if link.ack_offset >= end_offset)
