"""Changes of the group by its active member: one more, one less, another leader. Event loop only.

A newcomer first gets the log without being counted; only when it has nearly all of it does the change become
an entry (raft.roster says from when on it counts). Nothing here is needed for safety but the lock and the
index that a change is based on: everything else avoids that a change makes the group stand still.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from namesrv.plugins.controller.raft.api import Applied, ChangeOutcome, NotActive, Refused
from namesrv.plugins.controller.raft.ledger import Ledger
from namesrv.plugins.controller.raft.member import Core, Member
from namesrv.plugins.controller.raft.proposals import Proposals
from namesrv.plugins.controller.raft.roster import Address, Change, Roster, encode_change
from remoting.operation import Unknown

JOIN_S = 10.0  # a newcomer links to us and catches up within this time
LAND_S = 1.0  # what is in flight lands, before leadership is handed over
TAKE_OVER_S = 2.0
ANSWER_S = 1.0  # heartbeats are answered within this time by those who live
LOOK_S = 0.01
BUSY = Refused("another change of the group is under way: repeat in some seconds")


class ChangesCore(Core, Protocol):
    member: Member


class Changes:
    """`epoch()`: None while this member is not active."""

    def __init__(
        self,
        self_id: str,
        core: ChangesCore,
        proposals: Proposals,
        roster: Roster,
        ledger: Ledger,
        epoch: Callable[[], int | None],
    ) -> None:
        self._self_id, self._core, self._proposals = self_id, core, proposals
        self._roster, self._ledger, self._epoch = roster, ledger, epoch
        self._lock = asyncio.Lock()

    async def add(
        self, member_id: str, address: Address, request_address: Address | None = None
    ) -> ChangeOutcome:
        if self._lock.locked():
            return BUSY
        async with self._lock:
            if member_id in self._roster.members and self._epoch() is not None:
                return Applied(None)
            refusal = self._refusal()
            if refusal is not None:
                return refusal
            member = self._core.member
            member.do(lambda: member.group.expect(member_id, address))
            try:
                if not await _until(lambda: member.group.caught_up(member_id), JOIN_S):
                    return Refused(
                        f"{member_id} at {address[0]}:{address[1]} did not catch up in {JOIN_S:.0f} s: is it "
                        "running, with an empty directory, the same cluster id and secret, and all members?"
                    )
                return await self._add(member_id, address, request_address)
            finally:
                if member_id not in self._roster.members:
                    member.do(lambda: member.group.forget(member_id))

    async def _add(self, member_id: str, address: Address, request_address: Address | None) -> ChangeOutcome:
        standing = self._core.member.joining.heard.get(member_id)
        if standing is None:
            return Refused(f"{member_id} has gone again")
        fresh = standing.state == "new" and member_id not in self._ledger.former
        added = self._roster.added
        if request_address is not None:
            added[member_id] = request_address
        return await self._propose(
            {**self._roster.members, member_id: address},
            added,
            fresh=(member_id, standing.incarnation) if fresh else None,
        )

    async def remove(self, member_id: str) -> ChangeOutcome:
        if self._lock.locked():
            return BUSY
        async with self._lock:
            if member_id not in self._roster.members and self._epoch() is not None:
                return Applied(None)
            if member_id == self._self_id:
                return Refused(f"{member_id} leads: transfer the leadership first")
            members = {name: each for name, each in self._roster.members.items() if name != member_id}
            return self._refusal() or await self._propose(members, self._roster.added)

    async def transfer(self, member_id: str) -> ChangeOutcome:
        if self._lock.locked():
            return BUSY
        async with self._lock:
            if self._epoch() is None:
                return NotActive(self._core.leader_id)
            if member_id == self._self_id:
                return Applied(None)
            if member_id not in self._roster.members:
                return Refused(f"{member_id} is not a member: {', '.join(sorted(self._roster.members))}")
            links = self._core.member.links
            if links is None or member_id not in links.connected():  # before anybody has to wait
                return Refused(f"{member_id} is not connected to {self._self_id}: is it running?")
            self._proposals.pause()
            try:
                return await self._transfer(member_id)
            finally:
                self._proposals.resume()

    async def _transfer(self, member_id: str) -> ChangeOutcome:
        member, asked = self._core.member, [False]

        def ask() -> None:
            asked[0] = asked[0] or member.group.hand_over(member_id)

        def could_ask() -> bool:
            if self._proposals.in_flight == 0:
                member.do(ask)
            return asked[0] or self._epoch() is None

        await _until(could_ask, LAND_S)
        if not asked[0]:
            return Refused(f"{member_id} has not the whole log yet: repeat")
        if await _until(lambda: self._core.leader_id == member_id, TAKE_OVER_S):
            return Applied(None)
        return Unknown(f"{member_id} was asked, and did not take over within {TAKE_OVER_S:.0f} s")

    def _refusal(self) -> ChangeOutcome | None:
        if self._epoch() is None:
            return NotActive(self._core.leader_id)
        if self._core.member.links is None:
            return Refused("a group of one opens no raft port: stop it, and start all with the new list")
        if self._roster.index > self._core.commit_index:
            return Refused("another change is not decided yet: repeat")
        return None

    async def _propose(
        self,
        members: dict[str, Address],
        added: dict[str, Address],
        *,
        fresh: tuple[str, str] | None = None,
    ) -> ChangeOutcome:
        group, asked_at = self._core.member.group, self._core.now()
        based_on = self._roster.index  # of which `members` was made: it may be another after the wait

        def able() -> list[str]:
            """Asked anew: the library takes all for alive when it is elected, and later for a while."""
            return group.able(members, since=asked_at)

        if not await _until(lambda: len(able()) > len(members) / 2, ANSWER_S):
            return Refused(
                f"of {', '.join(sorted(members))} only {', '.join(able())} could decide, no majority: "
                "the others do not answer, or have no vote yet; start them, or remove those first"
            )
        change = Change(
            based_on=based_on,
            members=tuple((name, *members[name]) for name in sorted(members)),
            former=tuple(sorted({*self._ledger.former, *self._roster.members, *members})),
            fresh=fresh,
            added=tuple((name, *added[name]) for name in sorted(added) if name in members),
        )
        return await self._proposals.propose("members", ((None, encode_change(change)),))


async def _until(condition: Callable[[], bool], limit_s: float) -> bool:
    """False: not within the limit."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not condition():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(LOOK_S)
    return True
