"""Each protection, switched off: what the checkers must notice. Test the testers.

Not here: guard rules 2, 5 and 6, fencing by epoch. What they prevent needs so many coincidences that hundreds
of runs do not show it; unit tests show each with the real library (test_raft_guard.py,
test_raft_state_machine.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from namesrv.plugins.controller.raft import proposals
from namesrv.plugins.controller.raft.api import Committed
from namesrv.plugins.controller.raft.codec import NUMBER_MAX, LeaderVerified
from namesrv.plugins.controller.raft.guard import Guard
from namesrv.plugins.controller.raft.member import Member
from namesrv.plugins.controller.raft.membership.vote_eligibility import Joining
from namesrv.plugins.controller.raft.read_index import ReadIndex
from namesrv.plugins.controller.raft.replica import Replica
from namesrv.plugins.controller.raft.storage.journal import Journal
from tests.sim.raft.cluster import Script
from tests.sim.raft.disk import Disk
from tests.sim.raft.scripts import (
    divergent_tail,
    lost_disk,
    lost_disk_and_a_stale_leader,
    paused_with_old_answers,
    voter_restarts,
)


@dataclass(frozen=True)
class Mutant:
    """`conditions`: fields of Conditions in which it shows; `seeds`: enough of them."""

    patches: tuple[tuple[Any, str, Any], ...]
    conditions: dict[str, Any] = field(default_factory=dict)
    script: Script | None = None
    first_seed: int = 1  # one that showed it when this was written, so that the test is quick

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


_set_term = Journal.setCurrentTerm


def _forget_vote(journal: Journal, _term: int, _voted_for: str | None) -> None:
    _set_term(journal, 0, None)


def _write_only(journal: Journal) -> None:
    if journal._rewrite_due:
        journal._rewrite()
    elif journal._end != journal._written:
        journal._write()


_on_state = Replica._on_state


def _leads_so_active(replica: Replica, leads: bool, term: int) -> None:
    _on_state(replica, leads, term)
    replica._set_epoch(term if leads else None)


async def _local_barrier(replica: Replica) -> Any:
    from namesrv.plugins.controller.raft.api import NotActive

    return Committed(None) if replica.is_active else NotActive(None)


_verified = ReadIndex.verified


def _any_answer_counts(reads: ReadIndex, member: str, answer: LeaderVerified) -> None:
    _verified(reads, member, LeaderVerified(answer.term, NUMBER_MAX))


STORMY = {"fault_every_s": 0.4}
CALM = {
    "resets": 0,
    "cuts": 0,
    "one_way": 0,
    "kills": 0,
    "power_cuts": 0,
    "blackouts": 0,
    "pauses": 0,
    "wipes": 0,
    "fault_every_s": 1.5,
}
CROWD = {"in_flight": 24, "clients": 16}
MUTANTS: dict[str, Mutant] = {
    "rule 1": Mutant(
        ((Guard, "_commit_of_snapshot_frame", lambda _self, index: index),),
        {"compaction_entries": 12, "power_cuts": 0, "blackouts": 0},
        first_seed=14,
    ),
    "rule 3": Mutant(((Guard, "_trim", _message),), {"duplicates": 0.05}),
    "rule 4": Mutant(
        ((Guard, "_reset_aim", lambda _self, index: index),),
        {"append_bytes": 100, "compaction_entries": 5_000, "members": 3} | CROWD,
        divergent_tail,
    ),
    "rule 8": Mutant(
        ((Guard, "_is_known", lambda *_: False),),
        {"compaction_entries": 12, "delay_max_s": 0.06, "cuts": 8} | CROWD,
        first_seed=2,
    ),
    "fsync": Mutant(((Disk, "syncs_lie", True),), {"blackouts": 4}),
    "vote": Mutant(
        ((Journal, "setCurrentTerm", _forget_vote),),
        {"members": 3, "delay_max_s": 0.06},
        voter_restarts,
        first_seed=3,
    ),
    "fsync of the journal": Mutant(((Journal, "sync", _write_only),), {"blackouts": 8}, first_seed=3),
    "claim": Mutant(((Replica, "_on_state", _leads_so_active),), {"kills": 6}, first_seed=2),
    "barrier": Mutant(
        ((Replica, "barrier", _local_barrier),), CALM | {"pauses": 4, "clients": 16}, first_seed=3
    ),
    "no majority for a read": Mutant(
        ((ReadIndex, "_is_majority", lambda *_: True),), {"members": 3, "clients": 0}, paused_with_old_answers
    ),
    "the check that was answered": Mutant(
        ((ReadIndex, "verified", _any_answer_counts),),
        {"members": 3, "clients": 0, "delay_max_s": 0.02},
        paused_with_old_answers,
    ),
    "unknown is unknown": Mutant(
        ((proposals, "NEVER_APPLIED", frozenset((-1, 1, 2, 3, 4, 5, 6, 7))),), STORMY, first_seed=7
    ),
    "no vote after a wipe": Mutant(
        ((Joining, "is_member", property(lambda _self: True)),), {"members": 3}, lost_disk
    ),
    "no counted acknowledgement after a wipe": Mutant(
        ((Member, "_uncounted", _message),), {"members": 3} | CROWD, lost_disk_and_a_stale_leader
    ),
}
