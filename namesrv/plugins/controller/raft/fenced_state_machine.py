"""FencedStateMachine: applies log entries: event batches, leadership claims, membership changes. Pure.

Deterministic: all members apply the same entries in the same order and come to the same state.

    Batch("claim",  term n)            from now on only batches of term n are applied (fencing)
    Batch("events", term n, items)     refused as a whole if n is not the claimed term
    Batch("welcome", term n, member)   a rejoin: the incarnation, the id of the only item, may vote now
    Batch("members", term n, leader)   a membership change (membership/member_list.py)
    item = (None, event | None)        without event: a read through the log, whose result is None

Older releases could have a request id in place of the first None, which no program used: it is ignored.
"""

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from namesrv.plugins.controller.raft.api import StateMachine
from namesrv.plugins.controller.raft.codec import Number

Item = tuple[str | None, bytes | None]


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """One raft entry."""

    kind: Literal["claim", "events", "welcome", "members"]
    term: Number
    member: str
    items: tuple[Item, ...] = ()


_batch_decoder = msgspec.msgpack.Decoder(Batch)


def encode_batch(batch: Batch) -> bytes:
    """Returns the batch as MessagePack, the content of one log entry."""
    return msgspec.msgpack.encode(batch)


def decode_batch(data: bytes) -> Batch:
    """Parses a batch. Raises msgspec.MsgspecError, which ends the process: of a newer version, or corrupt."""
    return _batch_decoder.decode(data)


class FencedStateMachine:
    """Adds the claimed term and the members to a StateMachine.

    `rejoined`: member -> incarnation of its directory. `used_ids`: ids that are or were members; a new
    directory of such an id is not fresh. `used_ids_of(change)` returns the new `used_ids`; None: the change
    is void.
    """

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self.claimed_term = 0
        self.rejoined: dict[str, str] = {}
        self.used_ids: set[str] = set()
        self.used_ids_of: Callable[[bytes], tuple[str, ...] | None] = lambda _change: None

    def apply(self, data: bytes) -> list[object] | None:
        """Returns the results in the order of the items; None: fenced, nothing was applied."""
        batch = decode_batch(data)
        if batch.kind == "claim":
            if batch.term <= self.claimed_term:
                return None
            self.claimed_term = batch.term
            return []
        if batch.term != self.claimed_term:
            return None
        if batch.kind == "welcome":
            self.rejoined.update((batch.member, incarnation or "") for incarnation, _ in batch.items)
            return []
        if batch.kind == "members":
            used_ids = self.used_ids_of(batch.items[0][1] or b"")
            self.used_ids.update(used_ids or ())
            return None if used_ids is None else [None]
        return [None if event is None else self._machine.apply(event) for _, event in batch.items]

    def restore(
        self,
        claimed_term: int,
        state: bytes,
        rejoined: Iterable[tuple[str, str]] = (),
        used_ids: Iterable[str] = (),
    ) -> None:
        """Replaces everything by the content of a snapshot."""
        self.used_ids = set(used_ids)
        self.claimed_term, self.rejoined = claimed_term, dict(rejoined)
        self._machine.restore(state)

    def state(self) -> bytes:
        """Returns StateMachine.snapshot()."""
        return self._machine.snapshot()
