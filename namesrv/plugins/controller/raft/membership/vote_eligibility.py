"""Vote eligibility: whether this member may vote, and how one with an empty data directory becomes a voter.

In Raft a member must not lose its votes and the entries that it has acknowledged. An empty directory has
neither: either the whole group is new, or this member has lost its disk, and then its vote could elect a
leader that lacks acknowledged entries. So a directory has a random incarnation, made at its first use, and a
state:

    new       -> promised   every other member is new as well: promise this list of incarnations, once
    promised  -> member     every other member has promised the same list (or is a member by it)
    new       -> member     the rejoin of this incarnation was committed by others and applied here (Replica)

Two different lists can never both be complete: each needs the promise of every member, and a promise is
durable and made once for each incarnation. A rejoin is an entry that was appended after the directory was
created, and was committed without this member. A leader that can commit it has every entry that this member
may have helped to commit, and sends them; and a vote that this member has lost can no longer elect a leader
(docs/adr/0010). Pure, except load() and save().
"""

import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from namesrv.plugins.controller.raft.codec import VoteEligibility
from namesrv.plugins.controller.raft.storage.files import (
    DamagedError,
    replace_file,
    with_checksum,
    without_checksum,
)

logger = logging.getLogger(__name__)

State = Literal["new", "promised", "member"]
INCARNATION_BYTES = 8


def load(path: Path, *, has_journal: bool, bootstrap: bool) -> VoteEligibility:
    """Reads the file, or creates it, durably, before anything else is written to the directory.

    A journal without the file is from a release that did not write it, so this directory belongs to a member.
    Raises DamagedError, OSError.
    """
    if bootstrap:
        logger.warning(
            "controllerRaftBootstrap is on; turn it off after the first start of the group: with it, a "
            "member that has lost its disk votes at once, and acknowledged changes can be lost"
        )
    if path.exists():
        body = without_checksum(path.read_bytes())
        if body is None:
            raise DamagedError(f"{path}: damaged, so it is unknown whether this member may vote")
        try:
            found = msgspec.msgpack.decode(body, type=VoteEligibility)
        except msgspec.MsgspecError as error:
            raise DamagedError(f"{path}: {error}") from None
        if found.state == "member" and not has_journal:
            raise DamagedError(
                f"{path.parent}: the journal is missing, although this member had joined the group; "
                "empty the whole directory and start again: the member then gets all data from the others"
            )
        if not (bootstrap and found.state != "member"):
            return found
        found = VoteEligibility(found.incarnation, "member", ())
    else:
        state: State = "member" if has_journal or bootstrap else "new"
        found = VoteEligibility(secrets.token_hex(INCARNATION_BYTES), state, ())
    save(path, found)
    return found


def save(path: Path, vote_eligibility: VoteEligibility, *, sync: bool = True) -> None:
    """Writes the file, durably. Raises OSError."""
    replace_file(path, with_checksum(msgspec.msgpack.encode(vote_eligibility)), ".standing.new", sync=sync)


class Joining:
    """The vote eligibility of this member. `store(eligibility)` makes it durable before it is sent.

    `own`: of this member. `received`: of the members that are connected now.
    """

    def __init__(
        self,
        self_id: str,
        others: frozenset[str],
        own: VoteEligibility,
        store: Callable[[VoteEligibility], None],
    ) -> None:
        self._self_id, self._others, self._store = self_id, others, store
        self.own = own
        self.received: dict[str, VoteEligibility] = {}
        if not others and not self.is_member:
            self._become("member", ((self_id, own.incarnation),))

    @property
    def is_member(self) -> bool:
        """Whether the state of this directory is "member", so that it may vote."""
        return self.own.state == "member"

    @property
    def rejoins(self) -> bool:
        """Whether the group is not new, but this directory is: then it must rejoin to become a voter."""
        return not self.is_member and any(each.state == "member" for each in self.received.values())

    def waits_for(self) -> list[str]:
        """Returns the members that must connect before this one may vote, sorted; empty: none."""
        if self.is_member or self.rejoins:
            return []
        return sorted(self._others - self.received.keys())

    def disconnected(self, member: str) -> None:
        """Called when the connection to this member is closed."""
        self.received.pop(member, None)

    def receive(self, member: str, vote_eligibility: VoteEligibility) -> bool:
        """Stores the eligibility of another member. True: our own has changed, and must be sent to the
        others."""
        self.received[member] = vote_eligibility
        before = self.own
        if self.own.state == "new":
            self._promise()
        if self.own.state == "promised":
            self._join()
        return self.own is not before

    def rejoined(self) -> None:
        """Called when the rejoin of this member was committed and applied here."""
        self._become("member", ())

    def _promise(self) -> None:
        others = self._received_of_others()
        if others is None or self.rejoins:
            return
        member_list = {name: each.incarnation for name, each in others.items()}
        member_list[self._self_id] = self.own.incarnation
        wanted = tuple(sorted(member_list.items()))
        if all(each.state == "new" or each.member_list == wanted for each in others.values()):
            self._become("promised", wanted)
        else:
            logger.error(
                "the members began to form different groups: empty the data directories of all members"
            )

    def _join(self) -> None:
        ours, others = self.own.member_list, self._received_of_others()
        if any(each.state == "member" and each.member_list == ours for each in self.received.values()) or (
            others is not None
            and all(each.state != "new" and each.member_list == ours for each in others.values())
        ):
            self._become("member", ours)

    def _received_of_others(self) -> dict[str, VoteEligibility] | None:
        """Returns the eligibility of all other members; None: one was not received yet."""
        if not self._others <= self.received.keys():
            return None
        return {name: self.received[name] for name in self._others}

    def _become(self, state: State, member_list: tuple[tuple[str, str], ...]) -> None:
        vote_eligibility = VoteEligibility(self.own.incarnation, state, member_list)
        self._store(vote_eligibility)
        self.own = vote_eligibility
