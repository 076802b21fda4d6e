"""Voters: the members that count towards a majority, and the learners that only receive the log.

The voters are those of the member list in the log (member_list.py). Raft thread.
"""

import logging
from collections.abc import Callable, Collection

from namesrv.plugins.controller.raft.api import RaftSettings
from namesrv.plugins.controller.raft.codec import MemberListNote, TimeoutNow, encode
from namesrv.plugins.controller.raft.membership.member_list import MemberList
from namesrv.plugins.controller.raft.membership.vote_eligibility import Joining
from namesrv.plugins.controller.raft.raft_library import RaftLibrary
from namesrv.plugins.controller.raft.transport.links import Links

logger = logging.getLogger(__name__)

RETIRE_S = 2.0
NOT_DECIDED = float("inf")  # value in _retire_at of a member whose removal is not committed
CATCH_UP_ENTRIES = 100  # a learner that is at most this many entries behind may become a voter
NEVER_YET = float("-inf")


class Voters:
    """`ids`: all voters, including this member; `others`: the others, sorted; `learners`: addresses of
    members that receive the log without a vote, because they are joining or were removed. `links()`: None in
    a group of one."""

    def __init__(
        self,
        settings: RaftSettings,
        core: RaftLibrary,
        joining: Joining,
        member_list: MemberList,
        links: Callable[[], Links | None],
    ) -> None:
        self._settings, self._core, self._joining = settings, core, joining
        self._member_list, self._links = member_list, links
        self.ids: frozenset[str] = frozenset()
        self.others: list[str] = []
        self.learners: dict[str, tuple[str, int]] = {}
        self._addresses = dict(settings.members)
        self._retire_at: dict[str, float] = {}
        self._removed_at = 0  # index of a member list without us that another member reported
        self._configured: dict[str, frozenset[str]] = {}  # by member: the list of its file, while it counts

    def apply_member_list(self) -> None:
        """Counts majorities over the current member list, and connects to its members."""
        members, before = self._member_list.members, self.ids
        self.ids = frozenset(members)
        self.others = sorted(members.keys() - {self._settings.self_id})
        self._addresses.update(self._member_list.addresses(self._settings.members))
        for member in self.others:
            self.learners.pop(member, None)
        self._core.set_other_voters(self.others)
        if self._core.leads:
            for member in sorted(before - self.ids):
                self.learners[member] = self._addresses.get(member, ("", 0))
                self._retire_at[member] = NOT_DECIDED
        self._update_links()

    def retire(self) -> None:
        """Sends the log to removed members for RETIRE_S, so that they learn of their removal.

        Only after the removal is committed: a member that regards itself as removed gives no vote, and until
        then the others may need its vote.
        """
        if not self._retire_at:
            return
        core = self._core
        is_decided = core.leads and core.commit_index >= self._member_list.index
        for member, at in list(self._retire_at.items()):
            if member in self.ids or core.now() >= at or (at == NOT_DECIDED and not core.leads):
                del self._retire_at[member]
                self.remove_learner(member)
            elif at == NOT_DECIDED and is_decided:
                self._retire_at[member] = core.now() + RETIRE_S
                if self._is_linked(member):
                    core.learner_up(member)

    def add_learner(self, member: str, address: tuple[str, int]) -> None:
        """Accepts links of this member and sends it the log, without a vote."""
        if member not in self.ids:
            self._retire_at.pop(member, None)
            self.learners[member] = address
            self._update_links()
            if self._is_linked(member):
                self._core.learner_up(member)

    def remove_learner(self, member: str) -> None:
        """Stops replicating to this member and closes its link. Safe to repeat."""
        if self.learners.pop(member, None) is not None:
            self._core.learner_down(member)
            self._update_links()

    def is_replicated_to(self, member: str) -> bool:
        """Returns whether this member receives the log, as a voter or a learner."""
        return member in self.ids or (member in self.learners and self._retire_at.get(member) != NOT_DECIDED)

    def caught_up(self, member: str) -> bool:
        """Returns whether this learner has sent its vote eligibility and has nearly the whole log."""
        if member not in self._joining.received:
            return False
        return (
            self._is_linked(member)
            and self._core.next_index(member) + CATCH_UP_ENTRIES > self._core.log[-1][1]
        )

    def send_timeout_now(self, member: str) -> bool:
        """Asks this member to campaign at once. False: it lacks entries and could not be elected; nothing was
        sent."""
        core, links = self._core, self._links()
        if links is None or not core.leads or core.match_index(member) < core.log[-1][1]:
            return False
        return links.send(member, encode(TimeoutNow(core.term)))

    def responsive(self, members: Collection[str], since: float) -> list[str]:
        """For the leader: returns those of `members` that may vote and have answered after `since` (seconds
        of now()), and itself; sorted."""
        answered = dict(zip(self.others, self._core.last_responses(), strict=False))
        heard = self._joining.received
        voting = (name for name in members if name in heard and heard[name].state == "member")
        return sorted(
            [self._settings.self_id, *(name for name in voting if answered.get(name, NEVER_YET) > since)]
        )

    @property
    def rank(self) -> int:
        """The number of other followers that ask for votes before this member (election_wait.py)."""
        own, leader = self._settings.self_id, self._core.leader_id
        return sum(name < own and name != leader for name in self.others)

    @property
    def is_removed(self) -> bool:
        """Whether another member has reported our removal, in an entry that our log does not have yet."""
        return self._removed_at > self._member_list.index

    def _is_linked(self, member: str) -> bool:
        links = self._links()
        return links is not None and member in links.connected()

    def _update_links(self) -> None:
        if (links := self._links()) is not None:
            links.set_members(self._member_list.addresses(self._settings.members) | self.learners)

    def contradicts(self, members: Collection[str]) -> str | None:
        """Returns a member whose configured list differs in more than one member from a first change to
        `members`, because there could be two majorities without a common member; None: there is none.

        A newcomer whose addition failed counts itself by its file, and may be elected; others do not.
        """
        if self._member_list.index > 0:
            return None
        reported = ((name, self._configured.get(name)) for name in self.others)
        return next((name for name, ids in reported if ids is not None and len(ids ^ set(members)) > 1), None)

    def check_member_list(self, member: str, note: MemberListNote) -> None:
        """Compares the member list of `member` with ours.

        Closes its link if the configurations differ by more than one member: there could be two majorities
        without a common member.
        """
        if note.index > self._member_list.index and self._settings.self_id not in note.members:
            if not self.is_removed:
                logger.warning(
                    "%s says that this member was removed from the group (now %s): stop it",
                    member,
                    ", ".join(note.members),
                )
            self._removed_at = max(self._removed_at, note.index)
        self._configured.pop(member, None)
        if note.index == 0:
            self._configured[member] = frozenset(note.members)
        differs = self.ids ^ set(note.members)
        if note.index == self._member_list.index == 0 and len(differs) > 1:
            logger.critical(
                "the configured member list of %s differs from ours in %s; only one member may differ",
                member,
                ", ".join(sorted(differs)),
            )
            if (links := self._links()) is not None:
                links.drop(member, "more than one difference between the configured members")
