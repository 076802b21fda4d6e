"""elect(): which replica becomes master, and why. Pure; liveness is an argument (LiveView).

Only a live member of the SyncStateSet may win, because it has every acknowledged message; other replicas only
if unclean elections are enabled. A replica that reports itself unfit never wins: it has lost the end of its
log, and refuses to be master. The recorded master stays until it is proved dead, or unfit. Source: RocketMQ
5.3.3, DefaultElectPolicy. Offsets are compared, never subtracted: RocketMQ's int difference overflows above
2 GiB.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec

from namesrv.plugins.controller.core.state import BrokerSet, Term


class LiveInfo(msgspec.Struct, frozen=True, gc=False):
    """Last heartbeat of a live broker. election_priority: smaller is better. connection_id: it arrived over
    this one; 0: over HTTP. damaged_bytes: bytes of its confirmed log that failed their checksum. disk_full:
    its disk has no room for messages. is_unfit: its log ends at max_offset and was confirmed up to
    confirm_offset, so it refuses to be master. refused_epoch, of an unfit one: it has begun no term after
    `epoch`, and will begin none up to this masterEpoch; -1: it does not know its epochs."""

    broker_address: str
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    election_priority: int = 2**31 - 1
    connection_id: int = 0
    damaged_bytes: int = 0
    disk_full: bool = False
    is_unfit: bool = False
    refused_epoch: int = -1


class LossReason(Enum):
    """How a controller found that a broker is not active. The value is part of an election's reason."""

    CONNECTION_REFUSED = "connection_refused"  # its connection closed, and its address refuses connections
    CONNECTION_CLOSED = "connection_closed"  # and none was opened in the grace
    HUNG = "hung"  # found before its timeout, with the help of its replicas: core/hang.py
    HEARTBEAT_TIMEOUT = "heartbeat_timeout"
    NEVER_HEARD = "never_heard"  # by this controller


class Loss(msgspec.Struct, frozen=True):
    """A broker that is not active. Ms since 1970; last_heartbeat_ts None: no heartbeat ever arrived here."""

    last_heartbeat_ts: int | None
    detected_ts: int
    reason: LossReason = LossReason.NEVER_HEARD


class LiveView(msgspec.Struct, frozen=True):
    """The liveness of one group at one moment.

    live: active now. presumed: this controller has received no heartbeat yet, but is in its grace window, so
    they count as alive. lost: all others. doubtful: live ones that may have died: their connection has
    closed, or they have sent no heartbeat for half their timeout.
    """

    live: Mapping[int, LiveInfo] = msgspec.field(default_factory=dict)
    presumed: frozenset[int] = frozenset()
    lost: Mapping[int, Loss] = msgspec.field(default_factory=dict)
    doubtful: frozenset[int] = frozenset()

    def is_alive(self, broker_id: int) -> bool:
        """Returns whether the replica is active, or presumed alive."""
        return broker_id in self.live or broker_id in self.presumed

    def is_unfit(self, broker_id: int) -> bool:
        """Returns whether the replica is active, and refuses to be master."""
        info = self.live.get(broker_id)
        return info is not None and info.is_unfit

    def serves(self, master: int | None) -> bool:
        """Returns whether this recorded master may be at work."""
        return master is not None and self.is_alive(master) and not self.is_unfit(master)

    def works_at(self, broker_id: int, address: str) -> bool:
        """Returns whether the replica is surely active, and sends heartbeats from this brokerAddr; or may be,
        because a new active controller has not heard from it yet."""
        if broker_id in self.presumed:
            return True
        info = self.live.get(broker_id)
        return info is not None and info.broker_address == address and broker_id not in self.doubtful

    def works_over_another(self, broker_id: int, connection_id: int) -> bool:
        """Returns whether the replica is surely active, and its heartbeats arrive over another connection. 0:
        the connection is unknown."""
        info = self.live.get(broker_id)
        if info is None or broker_id in self.doubtful or 0 in (connection_id, info.connection_id):
            return False
        return info.connection_id != connection_id


class Verdict(Enum):
    """The result of an election."""

    KEEP = "keep"  # the recorded master is alive
    ELECTED = "elected"
    NONE = "none"  # no replica may win
    REFUSED = "refused"  # by the elected master: the SyncStateSet from before its election is restored first
    WAIT = "wait"  # no replica may win yet: a member has sent no heartbeat yet, or is doubtful


class Election(msgspec.Struct, frozen=True):
    """winner: only with Verdict.ELECTED. unclean: the winner is outside the SyncStateSet."""

    verdict: Verdict
    reason: str
    winner: int | None = None
    unclean: bool = False


def elect(
    broker_set: BrokerSet,
    view: LiveView,
    *,
    preferred: int | None = None,
    unclean: bool = False,
    needs_room: bool = False,
) -> Election:
    """Elects a master. `preferred`: the only replica that may win (designated, or the first to register).

    A replica whose log is damaged wins only if no sound one has everything that is confirmed; it is not
    designated while the master is alive. One whose disk is full is not designated with needs_room.

    The winner becomes the whole SyncStateSet. If it were dead, no other replica could be elected until it
    returned, so an election waits for a doubtful winner. It also waits for members from which a new active
    controller has received no heartbeat yet: the others may have restarted and lost data not yet on disk.
    """
    master = broker_set.master_broker_id
    if view.serves(master) and preferred in (None, master):
        return Election(Verdict.KEEP, f"master {master} is alive")
    if preferred is None and (term := refused_term(broker_set, view)) is not None:
        return Election(Verdict.REFUSED, why_refused(term, view))
    members = sorted(broker_set.replicas if broker_set.is_new else broker_set.sync_state_set)
    winner = _best(members, view, preferred)
    if preferred is not None and winner == preferred:
        if _is_passed_over(preferred, members, master, view):
            why = damage_of(view.live[preferred])
        else:
            why = DISK_FULL if needs_room and view.live[preferred].disk_full else ""
        if why:
            return Election(Verdict.NONE, f"broker {preferred} is not elected: {why}")
    is_known = winner == preferred or not (winner in view.doubtful or _unheard(broker_set, members, view))
    if winner is not None and is_known:
        return Election(Verdict.ELECTED, _why(broker_set, view, preferred), winner)
    waits = preferred is None and any(each in view.presumed or each in view.doubtful for each in members)
    if unclean and not waits:
        winner = _best(sorted(broker_set.replicas), view, preferred)
        if winner is not None and (winner == preferred or winner not in view.doubtful):
            return Election(Verdict.ELECTED, "unclean election", winner, unclean=True)
        waits = winner is not None
    return Election(Verdict.WAIT if waits else Verdict.NONE, _why_not(members, view, preferred))


def elect_successor(broker_set: BrokerSet, view: LiveView) -> Election:
    """Elects the successor of a master that has restarted.

    NONE: no other member is alive and sound, or one has sent no heartbeat yet; then elect() decides, and may
    elect the restarted master.
    """
    master = broker_set.master_broker_id
    others = sorted(broker_set.sync_state_set - {master})
    winner = None if _unheard(broker_set, others, view) else _best(others, view, None)
    if winner is not None and view.live[winner].damaged_bytes:
        winner = None
    verdict = Verdict.NONE if winner is None else Verdict.ELECTED
    return Election(verdict, f"master {master} has restarted", winner)


def refused_term(broker_set: BrokerSet, view: LiveView) -> Term | None:
    """Returns the term that the elected master has refused, if the SyncStateSet from before that election has
    other members; None: there is no such term, or a replica may have begun it.

    Refused means: the replica has begun no term since, and will not begin this one (LiveInfo.refused_epoch).
    So nothing was acknowledged since that election, and those members still have everything.
    """
    term = broker_set.term
    live = None if term is None else view.live.get(term.broker_id)
    if term is None or live is None or not live.is_unfit:
        return None
    is_master = broker_set.master_broker_id in (None, term.broker_id)
    has_begun = live.epoch >= term.master_epoch or live.refused_epoch < broker_set.master_epoch
    others = (term.sync_state_set & broker_set.replicas.keys()) - broker_set.sync_state_set
    return term if is_master and not has_begun and others else None


def why_refused(term: Term, view: LiveView) -> str:
    """Returns why the SyncStateSet from before this term is restored."""
    why = unfitness_of(view.live[term.broker_id])
    members = sorted(term.sync_state_set)
    return f"broker {term.broker_id} has refused its term ({why}): the SyncStateSet is {members} again"


def _unheard(broker_set: BrokerSet, members: list[int], view: LiveView) -> bool:
    """Returns whether a member has sent no heartbeat yet. False for a new group, which has no messages."""
    return not broker_set.is_new and not view.presumed.isdisjoint(members)


def _best(pool: list[int], view: LiveView, preferred: int | None) -> int | None:
    candidates = [
        each
        for each in pool
        if each in view.live and preferred in (None, each) and not view.live[each].is_unfit
    ]
    return max(candidates, key=lambda each: rank(each, view), default=None)


def rank(broker_id: int, view: LiveView) -> tuple[bool, int, int, bool, bool, int, int]:
    """Returns the sort key of a live replica; the greatest wins: sound and with all that is confirmed, epoch,
    maxOffset, not doubtful, with room on its disk, smaller electionPriority, smaller id.

    A master that has restarted may lack confirmed messages, which is worse than a damaged range: so a sound
    replica counts as one only if it has the newest epoch and every confirmOffset. Among replicas without
    damage the first criterion changes nothing. Room decides only between equal logs: without
    allAckInSyncStateSet the longer one may have acknowledged messages that are not confirmed, and a master
    without room hands over on its own, with every byte.
    """
    live = view.live[broker_id]
    is_sound = not live.damaged_bytes and _has_all_confirmed(live, view)
    return (
        is_sound, live.epoch, live.max_offset, broker_id not in view.doubtful, not live.disk_full,
        -live.election_priority, -broker_id,
    )  # fmt: skip


def _has_all_confirmed(live: LiveInfo, view: LiveView) -> bool:
    others = [each for each in view.live.values() if not each.is_unfit]
    newest = max((each.epoch for each in others), default=live.epoch)
    return live.epoch >= newest and live.max_offset >= max(
        (each.confirm_offset for each in others), default=-1
    )


def _is_passed_over(preferred: int, members: list[int], master: int | None, view: LiveView) -> bool:
    """Whether a designated replica is refused because its log is damaged."""
    if not view.live[preferred].damaged_bytes or preferred == master:
        return False
    if view.serves(master):
        return True
    others = [each for each in members if each != preferred and each in view.live]
    return any(rank(each, view)[0] and not view.live[each].is_unfit for each in others)


DISK_FULL = "its disk is full"
"""Why a replica without room is passed over."""


def damage_of(live: LiveInfo) -> str:
    """Returns why a replica with damage is passed over."""
    return f"{live.damaged_bytes} confirmed bytes of its log are damaged"


def unfitness_of(live: LiveInfo) -> str:
    """Returns why an unfit replica is not elected."""
    return (
        f"it has lost the end of its log: that ends at {live.max_offset}, and was confirmed up to"
        f" {live.confirm_offset}"
    )


def _why(broker_set: BrokerSet, view: LiveView, preferred: int | None) -> str:
    master = broker_set.master_broker_id
    if broker_set.is_new:
        return "first election"
    if preferred is not None:
        return "designated"
    if master is None:
        return "no master"
    if view.is_unfit(master):
        return f"master {master} has lost the end of its log"
    loss = view.lost.get(master)
    return f"master {master} is not active" + ("" if loss is None else f" ({loss.reason.value})")


def _why_not(members: list[int], view: LiveView, preferred: int | None) -> str:
    if preferred is not None:
        if preferred not in members:
            return f"broker {preferred} is not in the SyncStateSet {members}"
        if view.is_unfit(preferred):
            return f"broker {preferred} is not elected: {unfitness_of(view.live[preferred])}"
        return f"broker {preferred} is not alive: this controller receives no heartbeat from it"
    if any(each in view.presumed or each in view.doubtful for each in members):
        return f"waiting to hear from the SyncStateSet {members}"
    unfit = [each for each in members if view.is_unfit(each)]
    if not unfit:
        return f"no member of the SyncStateSet {members} is alive"
    others = f"no other member of the SyncStateSet {members} is alive"
    return f"broker {unfit[0]} is not elected: {unfitness_of(view.live[unfit[0]])}; {others}"
