"""Each protection, switched off: what the checkers must notice. Test the testers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from namesrv.plugins.controller.raft import proposals
from namesrv.plugins.controller.raft.api import Applied
from namesrv.plugins.controller.raft.guard import Guard
from namesrv.plugins.controller.raft.journal import Journal
from namesrv.plugins.controller.raft.ledger import Ledger, _batch_decoder
from namesrv.plugins.controller.raft.member import Member
from namesrv.plugins.controller.raft.replica import Replica
from tests.sim.raft.disk import Disk


@dataclass(frozen=True)
class Mutant:
    """`weather`: fields of Weather in which it shows; `seeds`: enough of them."""

    patches: tuple[tuple[Any, str, Any], ...]
    weather: dict[str, Any] = field(default_factory=dict)
    seeds: range = range(1, 60)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for owner, name, value in self.patches:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield


def _nothing(*_: object, **__: object) -> None: ...


def _message(_self: object, *arguments: Any) -> Any:
    """The message as it came: the first argument that is one."""
    return next(each for each in arguments if not isinstance(each, str | int | float))


def _forget_vote(journal: Journal, term: int, voted_for: str | None) -> None:
    journal._term, journal._voted_for = term, voted_for


def _acknowledge_at_once(member: Member, other: str, ack: Any) -> bool:
    from namesrv.plugins.controller.raft.codec import encode

    return member.links is not None and member.links.send(other, encode(ack))


def _leads_so_active(replica: Replica, leads: bool, term: int) -> None:
    replica._set_epoch(term if leads else None)


def _without_fence(ledger: Ledger, data: bytes) -> list[object] | None:
    batch = _batch_decoder.decode(data)
    if batch.kind == "claim":
        ledger.claimed_term = max(batch.term, ledger.claimed_term)
        return []
    return [ledger._apply_item(request_id, event) for request_id, event in batch.items]


def _without_answers(ledger: Ledger, request_id: str | None, event: bytes | None) -> object:
    return None if event is None else ledger._machine.apply(event)


async def _local_barrier(replica: Replica) -> Any:
    from namesrv.plugins.controller.raft.api import NotActive

    return Applied(None) if replica.is_active else NotActive(None)


STORMY = {"fault_every_s": 0.4}
CROWD = {"in_flight": 24, "clients": 16}
MUTANTS: dict[str, Mutant] = {
    "rule 1": Mutant(
        ((Guard, "_commit_of_snapshot_frame", lambda _self, index: index),),
        {"compaction_entries": 12, "power_cuts": 0, "blackouts": 0},
    ),
    "rule 2": Mutant(
        ((Guard, "_of_this_term", _message),), {"duplicates": 0.2, "members": 5, "cuts": 8} | STORMY | CROWD
    ),
    "rule 3": Mutant(((Guard, "_trim", _message),), {"duplicates": 0.05}),
    "rule 4": Mutant(
        ((Guard, "_reset_aim", lambda _self, index: index),),
        {"append_bytes": 100, "compaction_entries": 5_000, "cuts": 8} | CROWD,
    ),
    "rule 5": Mutant(((Guard, "_tell_term", _nothing), (Guard, "_hinted", _nothing)), STORMY),
    "rule 6": Mutant(((Guard, "_first_vote", _message),), {"duplicates": 0.3, "members": 5} | STORMY),
    "fsync": Mutant(((Disk, "syncs_lie", True),), {"blackouts": 4}),
    "vote": Mutant(((Journal, "setCurrentTerm", _forget_vote),), {"kills": 8} | STORMY),
    "acknowledge before fsync": Mutant(((Member, "_hold", _acknowledge_at_once),), {"power_cuts": 8}),
    "claim": Mutant(((Replica, "_on_state", _leads_so_active),), {"kills": 6}),
    "fence": Mutant(((Ledger, "apply", _without_fence),), STORMY),
    "answers": Mutant(((Ledger, "_apply_item", _without_answers),), STORMY),
    "barrier": Mutant(((Replica, "barrier", _local_barrier),), STORMY),
    "unknown is unknown": Mutant(
        ((proposals, "NEVER_APPLIED", frozenset((-1, 1, 2, 3, 4, 5, 6, 7))),), STORMY
    ),
    "align": Mutant(((Journal, "align", _nothing),), {"compaction_entries": 12, "kills": 8, "power_cuts": 8}),
}
