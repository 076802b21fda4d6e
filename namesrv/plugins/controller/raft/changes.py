"""Changes: membership changes and leadership transfer, which the active member makes. Event loop only.

A new member first receives the log as a learner. When it has nearly all of it, the change is appended to the
log (member_list.py: it votes from that entry on). Safety needs only the lock and the index that a change is
based on; the other checks prevent changes that would stop the group.
"""

import asyncio
from collections.abc import Callable

from keelmq.remoting.operation import Unknown
from namesrv.plugins.controller.raft.api import ChangeOutcome, ChangeRefused, Committed, NotActive
from namesrv.plugins.controller.raft.fenced_state_machine import FencedStateMachine
from namesrv.plugins.controller.raft.member import Member
from namesrv.plugins.controller.raft.membership.member_list import Address, Change, encode_change
from namesrv.plugins.controller.raft.proposals import Proposals

JOIN_S = 10.0  # a new member must connect to the leader and catch up within this time
IN_FLIGHT_S = 1.0  # maximum wait for proposals in flight, before leadership is transferred
TAKE_OVER_S = 2.0
RESPONSE_S = 1.0  # members that are alive answer a heartbeat within this time
POLL_S = 0.01
BUSY = ChangeRefused("another change of the group is in progress: repeat in a few seconds")


class Changes:
    """`epoch()`: the claimed term; None while this member is not active."""

    def __init__(
        self,
        self_id: str,
        member: Member,
        proposals: Proposals,
        state_machine: FencedStateMachine,
        epoch: Callable[[], int | None],
    ) -> None:
        self._self_id, self._member, self._core = self_id, member, member.core
        self._proposals, self._member_list = proposals, member.member_list
        self._state_machine, self._epoch = state_machine, epoch
        self._lock = asyncio.Lock()

    async def add(
        self, member_id: str, address: Address, request_address: Address | None = None
    ) -> ChangeOutcome:
        """Implements Replicator.add_member()."""
        if self._lock.locked():
            return BUSY
        async with self._lock:
            if member_id in self._member_list.members and self._epoch() is not None:
                return Committed(None)
            refusal = self._refusal()
            if refusal is not None:
                return refusal
            member = self._member
            member.do(lambda: member.voters.add_learner(member_id, address))
            try:
                if not await _until(lambda: member.voters.caught_up(member_id), JOIN_S):
                    return ChangeRefused(
                        f"{member_id} at {address[0]}:{address[1]} did not catch up in {JOIN_S:.0f} s: is it "
                        "running, with an empty directory, the same cluster id and secret, and all members?"
                    )
                return await self._add(member_id, address, request_address)
            finally:
                if member_id not in self._member_list.members:
                    member.do(lambda: member.voters.remove_learner(member_id))

    async def _add(self, member_id: str, address: Address, request_address: Address | None) -> ChangeOutcome:
        vote_eligibility = self._member.joining.received.get(member_id)
        if vote_eligibility is None:
            return ChangeRefused(f"{member_id} has disconnected")
        fresh = vote_eligibility.state == "new" and member_id not in self._state_machine.used_ids
        added = self._member_list.added
        if request_address is not None:
            added[member_id] = request_address
        return await self._propose(
            {**self._member_list.members, member_id: address},
            added,
            fresh=(member_id, vote_eligibility.incarnation) if fresh else None,
        )

    async def remove(self, member_id: str, *, dry_run: bool = False) -> ChangeOutcome:
        """Implements Replicator.remove_member()."""
        if self._lock.locked():
            return BUSY
        async with self._lock:
            if member_id not in self._member_list.members and self._epoch() is not None:
                return Committed(None)
            if member_id == self._self_id:
                return ChangeRefused(f"{member_id} leads: transfer the leadership first")
            members = {name: each for name, each in self._member_list.members.items() if name != member_id}
            return self._refusal() or await self._propose(members, self._member_list.added, dry_run=dry_run)

    async def transfer(self, member_id: str) -> ChangeOutcome:
        """Implements Replicator.transfer_leadership()."""
        if self._lock.locked():
            return BUSY
        async with self._lock:
            if self._epoch() is None:
                return NotActive(self._core.leader_id)
            if member_id == self._self_id:
                return Committed(None)
            if member_id not in self._member_list.members:
                return ChangeRefused(
                    f"{member_id} is not a member: {', '.join(sorted(self._member_list.members))}"
                )
            links = self._member.links
            if links is None or member_id not in links.connected():  # checked before proposals are paused
                return ChangeRefused(f"{member_id} is not connected to {self._self_id}: is it running?")
            self._proposals.pause()
            try:
                return await self._transfer(member_id)
            finally:
                self._proposals.resume()

    async def _transfer(self, member_id: str) -> ChangeOutcome:
        member, is_sent = self._member, [False]

        def send() -> None:
            is_sent[0] = is_sent[0] or member.voters.send_timeout_now(member_id)

        def is_done() -> bool:
            if self._proposals.in_flight == 0:
                member.do(send)
            return is_sent[0] or self._epoch() is None

        await _until(is_done, IN_FLIGHT_S)
        if not is_sent[0]:
            return ChangeRefused(f"{member_id} does not have the whole log yet: repeat")
        if await _until(lambda: self._core.leader_id == member_id, TAKE_OVER_S):
            return Committed(None)
        return Unknown(f"{member_id} was asked to take over, but did not within {TAKE_OVER_S:.0f} s")

    def _refusal(self) -> ChangeOutcome | None:
        """Returns why no change can be proposed now; None: it can."""
        if self._epoch() is None:
            return NotActive(self._core.leader_id)
        if self._member.links is None:
            return ChangeRefused(
                "a group of one opens no raft port: stop it, and start all members with the new list"
            )
        if self._member_list.index > self._core.commit_index:
            return ChangeRefused("another change is not committed yet: repeat")
        return None

    async def _propose(
        self,
        members: dict[str, Address],
        added: dict[str, Address],
        *,
        fresh: tuple[str, str] | None = None,
        dry_run: bool = False,
    ) -> ChangeOutcome:
        voters, asked_at = self._member.voters, self._core.now()
        if (other := voters.contradicts(members)) is not None:
            return ChangeRefused(
                f"the configured member list of {other} differs from ours: transfer the leadership to a "
                "member that all have in their files, and repeat there"
            )
        based_on = self._member_list.index  # what `members` was made from; it may change while we wait

        def responsive() -> list[str]:
            """Counts only answers from now on: after an election the library assumes that all members
            live."""
            return voters.responsive(members, since=asked_at)

        if not await _until(lambda: len(responsive()) > len(members) / 2, RESPONSE_S):
            return ChangeRefused(
                f"of {', '.join(sorted(members))} only {', '.join(responsive())} could vote, no majority: "
                "the others do not answer, or have no vote yet; start or remove them first"
            )
        if dry_run:
            return Committed(None)
        change = Change(
            based_on=based_on,
            members=tuple((name, *members[name]) for name in sorted(members)),
            used_ids=tuple(sorted({*self._state_machine.used_ids, *self._member_list.members, *members})),
            fresh=fresh,
            added=tuple((name, *added[name]) for name in sorted(added) if name in members),
        )
        return await self._proposals.propose("members", ((None, encode_change(change)),))


async def _until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Polls until the condition is true. False: it was not within `limit_s`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not condition():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True
