"""ElectPolicy: who becomes master, and why (explain.py tells more). Pure; liveness comes in as a LiveView.

Only a live member of the SyncStateSet may win (every acknowledged message is there), unless unclean elections
are enabled. A recorded master stays until there is proof that it is gone. Source: RocketMQ 5.3.3
DefaultElectPolicy; offsets are compared as tuples, never subtracted (upstream's difference overflows 2 GiB
apart).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from namesrv.plugins.controller.core.state import BrokerSet


class LiveInfo(msgspec.Struct, frozen=True, gc=False):
    """Last heartbeat of a live broker. election_priority: smaller is better."""

    broker_address: str
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    election_priority: int = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Loss:
    """A broker that is not active. Wall-clock ms; last_heartbeat_ts None: it was never heard here."""

    last_heartbeat_ts: int | None
    detected_ts: int


@dataclass(frozen=True, slots=True)
class LiveView:
    """One group's liveness, looked at once.

    live: heard and active now. presumed: never heard by this controller, which is active since less than the
    grace window: neither alive nor dead is known, and nobody is deposed for that. lost: the others, as far as
    somebody wants to know about them. doubted: of the live, those that may have died with the master; their
    fate is known soon.
    """

    live: Mapping[int, LiveInfo] = field(default_factory=dict)
    presumed: frozenset[int] = frozenset()
    lost: Mapping[int, Loss] = field(default_factory=dict)
    doubted: frozenset[int] = frozenset()

    def is_alive(self, broker_id: int) -> bool:
        return broker_id in self.live or broker_id in self.presumed


class Verdict(Enum):
    """What an election came to."""

    KEEP = "keep"  # the recorded master is alive
    ELECTED = "elected"
    NONE = "none"  # nobody may win
    WAIT = "wait"  # nobody may win yet: a member was not heard by a young controller, or is perhaps dead


@dataclass(frozen=True, slots=True)
class Election:
    """winner: only with ELECTED; unclean: it is outside the SyncStateSet."""

    verdict: Verdict
    reason: str
    winner: int | None = None
    unclean: bool = False


def elect(
    broker_set: BrokerSet, view: LiveView, *, preferred: int | None = None, unclean: bool = False
) -> Election:
    """preferred: the only one that may win (designated by an operator, or the first to ask).

    Whoever is elected is the whole SyncStateSet, so a dead one would keep the others from being elected until
    it is back: one that may be dead is waited for. So is a member that a young controller has not heard yet:
    those that it has heard may have begun anew, without what their machine had not written to the disk.
    """
    master = broker_set.master_broker_id
    if master is not None and view.is_alive(master) and preferred in (None, master):
        return Election(Verdict.KEEP, f"master {master} is alive")
    members = sorted(broker_set.replicas if broker_set.is_new else broker_set.sync_state_set)
    winner = _best(members, view, preferred)
    is_known = winner == preferred or not (winner in view.doubted or _unheard(broker_set, members, view))
    if winner is not None and is_known:
        return Election(Verdict.ELECTED, _why(broker_set, view, preferred), winner)
    waits = preferred is None and any(each in view.presumed or each in view.doubted for each in members)
    if unclean and not waits:
        winner = _best(sorted(broker_set.replicas), view, preferred)
        if winner is not None and (winner == preferred or winner not in view.doubted):
            return Election(Verdict.ELECTED, "unclean election", winner, unclean=True)
        waits = winner is not None
    return Election(Verdict.WAIT if waits else Verdict.NONE, _why_not(members, view, preferred))


def succeed(broker_set: BrokerSet, view: LiveView) -> Election:
    """Who follows a master that has begun anew. NONE: no other member lives, or one is not heard yet; then
    elect() has the say, and it may be elected itself."""
    master = broker_set.master_broker_id
    others = sorted(broker_set.sync_state_set - {master})
    winner = None if _unheard(broker_set, others, view) else _best(others, view, None)
    verdict = Verdict.NONE if winner is None else Verdict.ELECTED
    return Election(verdict, f"master {master} has begun anew", winner)


def _unheard(broker_set: BrokerSet, members: list[int], view: LiveView) -> bool:
    """Is there one of whom nothing is known yet? A new group has nothing to lose."""
    return not broker_set.is_new and not view.presumed.isdisjoint(members)


def _best(pool: list[int], view: LiveView, preferred: int | None) -> int | None:
    candidates = [each for each in pool if each in view.live and preferred in (None, each)]
    return max(candidates, key=lambda each: rank(each, view), default=None)


def rank(broker_id: int, view: LiveView) -> tuple[int, int, bool, int, int]:
    """Of a live one; higher is better: epoch, then maxOffset, then surely alive, then the smaller priority,
    then the smaller id."""
    live = view.live[broker_id]
    return (live.epoch, live.max_offset, broker_id not in view.doubted, -live.election_priority, -broker_id)


def _why(broker_set: BrokerSet, view: LiveView, preferred: int | None) -> str:
    master = broker_set.master_broker_id
    if broker_set.is_new:
        return "first election"
    if preferred is not None:
        return "designated"
    if master is None:
        return "no master"
    return f"master {master} is not active"


def _why_not(members: list[int], view: LiveView, preferred: int | None) -> str:
    if preferred is not None:
        if preferred not in members:
            return f"broker {preferred} is not in the SyncStateSet {members}"
        return f"broker {preferred} is not alive: no heartbeat of it is heard here"
    if any(each in view.presumed or each in view.doubted for each in members):
        return f"waiting to hear from the SyncStateSet {members}"
    return f"no member of the SyncStateSet {members} is alive"
