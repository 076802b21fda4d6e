"""decide_*(): what the active controller makes of a request, looking at state and liveness once.

An Event is proposed to the log, and the reply is made from what apply() says about it. An Answer needs no
event. A Refused is the reply. No function here changes anything; every check that matters for safety is
repeated by apply(), under the epochs that the event carries.
"""

from dataclasses import dataclass

import msgspec

from namesrv.plugins.controller.core.apply import (
    Refused,
    check_alter,
    check_broker_id,
    other_cluster,
    unknown_set,
)
from namesrv.plugins.controller.core.elect import Election, LiveView, Verdict, elect
from namesrv.plugins.controller.core.events import (
    AlterSyncStateSet,
    AnyEvent,
    ApplyBrokerId,
    ElectMaster,
    UpdateBrokerAddress,
)
from namesrv.plugins.controller.core.state import BrokerSet, State
from remoting.codes import ResponseCode

CONTROLLER_ITSELF = -1
"""brokerId of an 1002 that no broker sent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Nothing to log: the reply is read from this group as it is."""

    broker_set: BrokerSet
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None


Decision = AnyEvent | Answer | Refused


def decide_apply_broker_id(state: State, event: ApplyBrokerId) -> Decision:
    """1013. A repeat with the same registerCheckCode is a success: the first answer may have been lost."""
    before = state.brokers.get(event.broker_name)
    if refused := check_broker_id(before, event):
        return refused
    if before is not None and event.broker_id in before.replicas:
        return Answer(before)
    return event


def decide_register(
    state: State, *, cluster_name: str, broker_name: str, broker_id: int, broker_address: str
) -> Decision:
    """1003: the id must have been applied for; a new address (new pod, new port) is recorded."""
    broker_set = state.brokers.get(broker_name)
    if broker_set is None:
        return unknown_set(broker_name)
    if refused := other_cluster(broker_set, cluster_name):
        return refused
    replica = broker_set.replicas.get(broker_id)
    if replica is None:
        return Refused(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"BrokerId: {broker_id} hasn't been registered in broker-set: {broker_name}",
        )
    if replica.address == broker_address:
        return Answer(broker_set)
    return UpdateBrokerAddress(
        broker_name=broker_name,
        broker_id=broker_id,
        broker_address=broker_address,
        expected_address=replica.address,
    )


def decide_alter_sync_state_set(state: State, event: AlterSyncStateSet, view: LiveView) -> Decision:
    """1001. event is the request as the master sent it, with the epochs that it believes in."""
    before = state.brokers.get(event.broker_name)
    if before is not None and _is_repeat(before, event):
        return Answer(before)
    if refused := check_alter(before, event):
        return refused
    dead = [each for each in event.new_sync_state_set if not view.is_alive(each)]
    if dead:
        return Refused(ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"brokers {sorted(dead)} are not alive")
    assert before is not None
    left = before.sync_state_set - frozenset(event.new_sync_state_set)
    return msgspec.structs.replace(event, reason=_why_altered(left, view))


def _why_altered(left: frozenset[int], view: LiveView) -> str:
    if not left:
        return "caught_up"
    return "lag" if any(view.is_alive(each) for each in left) else "gone"


def _is_repeat(before: BrokerSet, event: AlterSyncStateSet) -> bool:
    """The set is already as asked, by this master in this epoch: the answer to the first request was lost."""
    return (
        before.master_broker_id == event.master_broker_id
        and before.master_epoch == event.expected_master_epoch
        and before.sync_state_set == frozenset(event.new_sync_state_set)
        and event.expected_sync_state_set_epoch <= before.sync_state_set_epoch
    )


def decide_elect(
    state: State,
    view: LiveView,
    *,
    cluster_name: str,
    broker_name: str,
    broker_id: int,
    designate_elect: bool,
    unclean: bool,
) -> Decision:
    """1002. broker_id: who asks, or whom the operator names (designate_elect), or CONTROLLER_ITSELF."""
    broker_set = state.brokers.get(broker_name)
    if broker_set is None:
        return unknown_set(broker_name)
    if cluster_name and (refused := other_cluster(broker_set, cluster_name)):
        return refused
    preferred = broker_id if designate_elect else None
    if broker_id != CONTROLLER_ITSELF:
        if broker_id not in broker_set.replicas:
            return Refused(
                ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"BrokerId: {broker_id} hasn't been registered in broker-set: {broker_name}",
            )
        if broker_set.master_epoch == 0:
            preferred = broker_id  # the first to ask becomes the first master, if it is heard here
    election = elect(broker_set, view, preferred=preferred, unclean=unclean)
    match election.verdict:
        case Verdict.ELECTED:
            return elect_event(broker_set, election, view)
        case Verdict.KEEP:
            return Answer(broker_set, ResponseCode.CONTROLLER_MASTER_STILL_EXIST, election.reason)
        case Verdict.NONE | Verdict.WAIT:
            return _nobody(broker_set, election, view, broker_id)


def _nobody(broker_set: BrokerSet, election: Election, view: LiveView, broker_id: int) -> Decision:
    """The master is cleared once, and only when the controller itself finds that nobody can follow it."""
    if broker_id != CONTROLLER_ITSELF:
        return Refused(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, election.reason)
    if election.verdict is Verdict.NONE and broker_set.master_broker_id is not None:
        return elect_event(broker_set, election, view)
    return Refused(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, election.reason)


def elect_event(broker_set: BrokerSet, election: Election, view: LiveView) -> ElectMaster:
    """view: what the election was held on."""
    master = broker_set.master_broker_id
    loss = None if master is None else view.lost.get(master)
    return ElectMaster(
        broker_name=broker_set.broker_name,
        new_master_broker_id=election.winner,
        expected_master_epoch=broker_set.master_epoch,
        expected_sync_state_set_epoch=broker_set.sync_state_set_epoch,
        unclean=election.unclean,
        reason=election.reason,
        last_heartbeat_ts=None if loss is None else loss.last_heartbeat_ts,
        detected_ts=None if loss is None else loss.detected_ts,
    )
