"""Who can take over a mastership that is handed over: those who have the log, by what they acked. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeirLink:
    """A connected member of the SyncStateSet, and how much of the log it says it has."""

    broker_id: int
    ack_offset: int


def choose_heir(links: Iterable[HeirLink], wanted: int | None) -> int | None:
    """The wanted one if it can be, else the one with the longest log, the smallest id among equals."""
    able = [link for link in links if wanted in (None, link.broker_id)]
    best = max(able, key=lambda link: (link.ack_offset, -link.broker_id), default=None)
    return None if best is None else best.broker_id


def equals(links: Iterable[HeirLink], end_offset: int) -> frozenset[int]:
    """Those who have every byte of a log that ends there, and does not grow."""
    return frozenset(link.broker_id for link in links if link.ack_offset >= end_offset)
