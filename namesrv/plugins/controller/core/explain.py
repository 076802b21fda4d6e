"""explain_election(): what electMaster (1002) would do and why, by the functions that decide it. Pure."""

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.controller import ElectionCandidate, ElectionExplanation
from namesrv.plugins.controller.core.decide import Answer, ElectionRequest, decide_election, hold_election
from namesrv.plugins.controller.core.elect import (
    DISK_FULL,
    Election,
    LiveView,
    damage_of,
    rank,
    unfitness_of,
)
from namesrv.plugins.controller.core.events import ElectMaster
from namesrv.plugins.controller.core.rules import Refused
from namesrv.plugins.controller.core.state import BrokerSet, State

DOUBTFUL = "perhaps dead: its connection has closed, or it has sent no heartbeat for half its timeout"


def explain_election(
    state: State, view: LiveView, election_request: ElectionRequest
) -> tuple[BrokerSet, ElectionExplanation] | Refused:
    """Returns the group, and what the request would do; Refused: no such group, or no such replica."""
    held = hold_election(state, view, election_request)
    if isinstance(held, Refused):
        return held
    broker_set, election = held.broker_set, held.election
    decision = decide_election(held, view, election_request)
    if isinstance(decision, Refused | Answer):
        code, remark, is_change = decision.code, decision.remark or "", False
    else:
        assert isinstance(decision, ElectMaster)
        is_cleared = decision.new_master_broker_id is None
        code = ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE if is_cleared else ResponseCode.SUCCESS
        remark, is_change = election.reason, True
    explanation = ElectionExplanation(
        code=code,
        remark=remark,
        verdict=election.verdict.value,
        is_change=is_change,
        new_master_broker_id=election.winner,
        unclean=election.unclean,
        candidates=[_candidate(each, broker_set, view, election) for each in sorted(broker_set.replicas)],
    )
    return broker_set, explanation


def _candidate(
    broker_id: int, broker_set: BrokerSet, view: LiveView, election: Election
) -> ElectionCandidate:
    live = view.live.get(broker_id)
    candidate = ElectionCandidate(
        broker_id=broker_id,
        broker_address=broker_set.replicas[broker_id].address,
        in_sync=broker_id in broker_set.sync_state_set,
        alive=live is not None or view.is_alive(broker_id),
        wins=broker_id == election.winner,
        why=_why(broker_id, broker_set, view, election),
    )
    if live is None:
        return candidate
    farthest = max(each.max_offset for each in view.live.values())
    numbers = {
        "epoch": live.epoch,
        "max_offset": live.max_offset,
        "confirm_offset": live.confirm_offset,
        "election_priority": live.election_priority,
        "behind_bytes": farthest - live.max_offset,
    }
    return candidate.model_copy(update=numbers)


def _why(broker_id: int, broker_set: BrokerSet, view: LiveView, election: Election) -> str:
    if broker_id == election.winner:
        if election.unclean:
            return "wins outside the SyncStateSet: acknowledged messages that it lacks are lost"
        return f"wins: {election.reason}"
    if view.is_unfit(broker_id):
        return unfitness_of(view.live[broker_id])
    if election.winner is None and broker_id == broker_set.master_broker_id and view.is_alive(broker_id):
        return "stays master: it is alive"
    if broker_id not in view.live:
        return "has sent no heartbeat to this controller yet" if broker_id in view.presumed else "not active"
    if not broker_set.is_new and broker_id not in broker_set.sync_state_set:
        return "not in the SyncStateSet: it may lack acknowledged messages"
    if election.winner is None:
        if view.live[broker_id].damaged_bytes:
            return damage_of(view.live[broker_id])
        if broker_id in view.doubtful:
            return DOUBTFUL
        return "electable" + (f", but {DISK_FULL}" if view.live[broker_id].disk_full else "")
    return _compared(broker_id, election.winner, view)


def _compared(broker_id: int, winner: int, view: LiveView) -> str:
    """Returns the first criterion of rank() in which the two differ."""
    mine, best = view.live[broker_id], view.live[winner]
    if rank(broker_id, view) > rank(winner, view):
        return "electable, but another replica was designated"
    if mine.damaged_bytes and rank(winner, view)[0]:
        return damage_of(mine)
    if mine.epoch != best.epoch:
        return f"epoch {mine.epoch} is below {best.epoch}"
    if mine.max_offset != best.max_offset:
        return f"maxOffset {mine.max_offset} is below {best.max_offset}"
    if broker_id in view.doubtful and winner not in view.doubtful:
        return DOUBTFUL
    if mine.disk_full and not best.disk_full:
        return DISK_FULL
    if mine.election_priority != best.election_priority:
        return f"electionPriority {mine.election_priority} is above {best.election_priority}"
    return f"equal to broker {winner}, whose id is smaller"
