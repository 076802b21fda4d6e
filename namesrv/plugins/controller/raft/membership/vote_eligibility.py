"""May this member vote? What it remembers about that, and how an empty data directory comes to an answer.

Raft trusts a member to remember its votes and what it has acknowledged. An empty directory remembers nothing:
either the whole group is new, or this member has lost its disk, and then its vote could elect somebody who
lacks acknowledged entries. So a directory has an incarnation, drawn when it is first used, and a state:

    new       -> promised   every other member is new as well: promise this roster of incarnations, once
    promised  -> member     every other member has promised the same roster (or is a member by it)
    new       -> member     a welcome of this incarnation was committed by others and applied here (replica)

Two different rosters can never both be complete: each needs the promise of every member, and a promise is
durable and given once for each incarnation. A welcome is an entry that was appended after the directory was
created and committed without our help: a leader that can do that has, and hands over, every entry that this
member may once have helped to commit; and no vote that it may have forgotten can elect anybody any more
(docs/adr/0010). Pure, but for load() and save().
"""

import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from namesrv.plugins.controller.raft.codec import Standing
from namesrv.plugins.controller.raft.files import DamagedError, replace_file, seal, unseal

logger = logging.getLogger(__name__)

State = Literal["new", "promised", "member"]
INCARNATION_BYTES = 8


def load(path: Path, *, has_journal: bool, bootstrap: bool) -> Standing:
    """What the directory says; one without the file gets it, durably, before anything else is written.

    A journal without the file is of a release that had none: a member. Raises DamagedError, OSError.
    """
    if bootstrap:
        logger.warning(
            "bootstrap is switched on; switch it off after the first start of the group: with it, a member "
            "that has lost its disk votes at once, and acknowledged changes can be lost"
        )
    if path.exists():
        body = unseal(path.read_bytes())
        if body is None:
            raise DamagedError(f"{path}: damaged; this member does not know whether it may vote")
        try:
            found = msgspec.msgpack.decode(body, type=Standing)
        except msgspec.MsgspecError as error:
            raise DamagedError(f"{path}: {error}") from None
        if found.state == "member" and not has_journal:
            raise DamagedError(
                f"{path.parent}: the journal is missing, although this member had joined the group; "
                "empty the whole directory and start again: the member then gets everything from the others"
            )
        if not (bootstrap and found.state != "member"):
            return found
        found = Standing(found.incarnation, "member", ())
    else:
        state: State = "member" if has_journal or bootstrap else "new"
        found = Standing(secrets.token_hex(INCARNATION_BYTES), state, ())
    save(path, found)
    return found


def save(path: Path, standing: Standing, *, sync: bool = True) -> None:
    """Durable when it returns. Raises OSError."""
    replace_file(path, seal(msgspec.msgpack.encode(standing)), ".standing.new", sync=sync)


class Joining:
    """One member's way to its vote. `store(standing)` makes a state durable before anybody hears of it."""

    def __init__(
        self, self_id: str, others: frozenset[str], own: Standing, store: Callable[[Standing], None]
    ) -> None:
        self._self_id, self._others, self._store = self_id, others, store
        self.own = own
        self.heard: dict[str, Standing] = {}  # of the members that are linked now
        if not others and not self.is_member:
            self._become("member", ((self_id, own.incarnation),))

    @property
    def is_member(self) -> bool:
        return self.own.state == "member"

    @property
    def rejoins(self) -> bool:
        """The group has a past that this directory knows nothing of: only a welcome helps."""
        return not self.is_member and any(each.state == "member" for each in self.heard.values())

    def waits_for(self) -> list[str]:
        """Members that must be seen before this one may vote; empty when there is nothing to wait for."""
        if self.is_member or self.rejoins:
            return []
        return sorted(self._others - self.heard.keys())

    def lost(self, member: str) -> None:
        self.heard.pop(member, None)

    def hear(self, member: str, standing: Standing) -> bool:
        """True: our own standing changed and the others must hear of it."""
        self.heard[member] = standing
        before = self.own
        if self.own.state == "new":
            self._promise()
        if self.own.state == "promised":
            self._join()
        return self.own is not before

    def welcomed(self) -> None:
        """Our welcome is committed and applied here."""
        self._become("member", ())

    def _promise(self) -> None:
        others = self._heard_of_others()
        if others is None or self.rejoins:
            return
        roster = {name: each.incarnation for name, each in others.items()}
        roster[self._self_id] = self.own.incarnation
        wanted = tuple(sorted(roster.items()))
        if all(each.state == "new" or each.roster == wanted for each in others.values()):
            self._become("promised", wanted)
        else:
            logger.error("the members promised different groups: empty all their data directories")

    def _join(self) -> None:
        ours, others = self.own.roster, self._heard_of_others()
        if any(each.state == "member" and each.roster == ours for each in self.heard.values()) or (
            others is not None
            and all(each.state != "new" and each.roster == ours for each in others.values())
        ):
            self._become("member", ours)

    def _heard_of_others(self) -> dict[str, Standing] | None:
        """None while one of them has not been heard."""
        if not self._others <= self.heard.keys():
            return None
        return {name: self.heard[name] for name in self._others}

    def _become(self, state: State, roster: tuple[tuple[str, str], ...]) -> None:
        standing = Standing(self.own.incarnation, state, roster)
        self._store(standing)
        self.own = standing
