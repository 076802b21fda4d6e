"""Whom this member counts, and whom it only sends the log to; as the roster in the log says. Raft thread."""

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from namesrv.plugins.controller.raft.api import RaftSettings
from namesrv.plugins.controller.raft.codec import HandOver, RosterNote

if TYPE_CHECKING:
    from namesrv.plugins.controller.raft.member import Member

logger = logging.getLogger(__name__)

RETIRE_S = 2.0
NOT_DECIDED = float("inf")  # when a member retires whose removal is not committed
CATCH_UP_ENTRIES = 100  # a member to be is not more than this behind
NEVER_YET = float("-inf")


class Electorate:
    """`voters`: all, self included; `others`: in order; `expected`: not members yet, or no longer."""

    def __init__(self, settings: RaftSettings, member: "Member") -> None:
        self._settings, self._member = settings, member
        self.voters: frozenset[str] = frozenset()
        self.others: list[str] = []
        self.expected: dict[str, tuple[str, int]] = {}
        self._addresses = dict(settings.members)
        self._retire_at: dict[str, float] = {}
        self._left_out_at = 0  # index of a roster without us that somebody told us of

    def follow_roster(self) -> None:
        """The log says who belongs to the group: from now on majorities are counted so."""
        members, before = self._member.roster.members, self.voters
        self.voters = frozenset(members)
        self.others = sorted(members.keys() - {self._settings.self_id})
        self._addresses.update(self._member.roster.addresses(self._settings.members))
        for member in self.others:
            self.expected.pop(member, None)
        self._member.core.follow(self.others)
        if self._member.core.leads:
            for member in sorted(before - self.voters):
                self.expected[member] = self._addresses.get(member, ("", 0))
                self._retire_at[member] = NOT_DECIDED
        self._follow_links()

    def retire(self) -> None:
        """Members that were removed get the log for a while longer, so that they hear of it; not before it is
        decided: one that takes itself for removed gives no vote, and the others may need it."""
        core = self._member.core
        is_decided = core.leads and core.commit_index >= self._member.roster.index
        for member, at in list(self._retire_at.items()):
            if member in self.voters or core.now() >= at or (at == NOT_DECIDED and not core.leads):
                del self._retire_at[member]
                self.forget(member)
            elif at == NOT_DECIDED and is_decided:
                self._retire_at[member] = core.now() + RETIRE_S
                if self._is_linked(member):
                    core.learner_up(member)

    def expect(self, member: str, address: tuple[str, int]) -> None:
        """Let it link to us, and send it the log, without counting it."""
        if member not in self.voters:
            self._retire_at.pop(member, None)
            self.expected[member] = address
            self._follow_links()
            if self._is_linked(member):
                self._member.core.learner_up(member)

    def forget(self, member: str) -> None:
        if self.expected.pop(member, None) is not None:
            self._member.core.learner_down(member)
            self._follow_links()

    def gets_the_log(self, member: str) -> bool:
        return member in self.voters or (
            member in self.expected and self._retire_at.get(member) != NOT_DECIDED
        )

    def caught_up(self, member: str) -> bool:
        """A member to be has told its standing and has nearly the whole log."""
        if member not in self._member.joining.heard:
            return False
        return (
            self._is_linked(member)
            and self._member.core.next_index(member) + CATCH_UP_ENTRIES > self._member.core.log[-1][1]
        )

    def hand_over(self, member: str) -> bool:
        """False: it has not the whole log, and could not be elected."""
        core = self._member.core
        if not self._is_linked(member) or not core.leads or core.match_index(member) < core.log[-1][1]:
            return False
        self._member.reply(member, HandOver(core.term))
        return True

    def able(self, members: Collection[str], since: float) -> list[str]:
        """Leader: those of these that have a vote and have answered since then, ourselves included."""
        answered = dict(zip(self.others, self._member.core.last_responses(), strict=False))
        heard = self._member.joining.heard
        voting = (name for name in members if name in heard and heard[name].state == "member")
        return sorted(
            [self._settings.self_id, *(name for name in voting if answered.get(name, NEVER_YET) > since)]
        )

    @property
    def left_out(self) -> bool:
        """The group has removed us, and our log ends before that."""
        return self._left_out_at > self._member.roster.index

    def _is_linked(self, member: str) -> bool:
        return self._member.links is not None and member in self._member.links.connected()

    def _follow_links(self) -> None:
        if self._member.links is not None:
            self._member.links.follow(self._member.roster.addresses(self._settings.members) | self.expected)

    def compare(self, member: str, note: RosterNote) -> None:
        """Two changes at once, made by configuration, could make two majorities without a common member."""
        if note.index > self._member.roster.index and self._settings.self_id not in note.members:
            if not self.left_out:
                logger.warning(
                    "%s says that this member was removed from the group (now %s): stop it",
                    member,
                    ", ".join(note.members),
                )
            self._left_out_at = max(self._left_out_at, note.index)
        differs = self.voters ^ set(note.members)
        if note.index == self._member.roster.index == 0 and len(differs) > 1:
            logger.critical(
                "%s was configured with other members than we: %s differ, one at a time is safe",
                member,
                ", ".join(sorted(differs)),
            )
            if self._member.links is not None:
                self._member.links.drop(member, "configured with too different members")
