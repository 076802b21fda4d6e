"""Which replica can take over a mastership that is handed over, by how much of the log it has acknowledged.
Pure."""

from collections.abc import Iterable

import msgspec


class TransferCandidate(msgspec.Struct, frozen=True):
    """A connected member of the SyncStateSet, and the end of the log that it acknowledged."""

    broker_id: int
    ack_offset: int


def choose_transfer_target(links: Iterable[TransferCandidate], wanted: int | None) -> int | None:
    """Returns the wanted replica if it is a candidate; with wanted None the one with the longest log, and of
    equal ones the one with the smallest id. None: there is no such candidate."""
    able = [link for link in links if wanted in (None, link.broker_id)]
    best = max(able, key=lambda link: (link.ack_offset, -link.broker_id), default=None)
    return None if best is None else best.broker_id


def fully_replicated(links: Iterable[TransferCandidate], end_offset: int) -> frozenset[int]:
    """Returns the candidates that have every byte of a log that ends at end_offset and does not grow."""
    return frozenset(link.broker_id for link in links if link.ack_offset >= end_offset)
