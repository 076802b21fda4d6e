"""decide_*(): what the active controller makes of a request, looking at state and liveness once.

An Event is proposed to the log, and the reply is made from what apply() says about it. An Answer needs no
event. A Refused is the reply. No function here changes anything; every check that matters for safety is
repeated by apply(), under the epochs that the event carries.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from namesrv.plugins.controller.core.elect import Election, LiveView, Verdict, elect, succeed
from namesrv.plugins.controller.core.events import (
    AlterSyncStateSet,
    AnyEvent,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    FenceSyncStateSet,
    UpdateBrokerAddress,
    UpdateConfig,
)
from namesrv.plugins.controller.core.rules import (
    Refused,
    check_alter,
    check_broker_id,
    check_clean,
    check_contains_master,
    check_length,
    check_master,
    clean_refused,
    other_cluster,
    unknown_set,
)
from namesrv.plugins.controller.core.state import BrokerSet, State
from remoting.codes import ResponseCode

_ID = re.compile("[1-9][0-9]{0,18}")

CONTROLLER_ITSELF = -1
"""brokerId of an 1002 that no broker sent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Nothing to log: the reply is read from this group as it is; None: it is about no group."""

    broker_set: BrokerSet | None
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None


Decision = AnyEvent | Answer | Refused


def decide_apply_broker_id(state: State, event: ApplyBrokerId) -> Decision:
    """1013. A repeat with the same registerCheckCode is a success: the first answer may have been lost."""
    if refused := (
        check_length("clusterName", event.cluster_name)
        or check_length("brokerName", event.broker_name)
        or check_length("registerCheckCode", event.register_check_code)
        or check_broker_id(state, event)
    ):
        return refused
    before = state.brokers.get(event.broker_name)
    if before is not None and event.broker_id in before.replicas:
        return Answer(before)
    return event


def decide_register(
    state: State,
    view: LiveView,
    *,
    cluster_name: str,
    broker_name: str,
    broker_id: int,
    broker_address: str,
    epoch: int | None = None,
) -> Decision:
    """1003: the id must have been applied for; a new address (new pod, new port) is recorded first.

    A master that registers is a new process, and its term is over, however soon it came back: its machine may
    have lost what was not on disk. Another member of the SyncStateSet has that; and if there is none, what it
    writes now must be of another epoch than what its replicas got from the process before. Unless nothing was
    written in this term when it asked (`epoch`, the last one on its disk, is an older one): so is a 1003 that
    comes twice, or late, and finds its sender elected.
    """
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
    if replica.address != broker_address:
        if refused := check_length("brokerAddr", broker_address):
            return refused
        return UpdateBrokerAddress(
            broker_name=broker_name,
            broker_id=broker_id,
            broker_address=broker_address,
            expected_address=replica.address,
        )
    if broker_id == broker_set.master_broker_id and (epoch is None or epoch >= broker_set.master_epoch):
        return elect_event(broker_set, succeed(broker_set, view), view)
    return Answer(broker_set)


def decide_alter_sync_state_set(state: State, event: AlterSyncStateSet, view: LiveView) -> Decision:
    """1001. event is the request as the master sent it, with the epochs that it believes in."""
    before = state.brokers.get(event.broker_name)
    if before is not None and before.sync_state_set == frozenset(event.new_sync_state_set):
        return Answer(before) if _is_repeat(before, event) else _same_set(before)
    if refused := check_alter(before, event):
        return refused
    dead = [each for each in event.new_sync_state_set if not view.is_alive(each)]
    if dead:
        return Refused(ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, f"brokers {sorted(dead)} are not alive")
    assert before is not None
    if refused := check_contains_master(before, event):
        return refused
    left = before.sync_state_set - frozenset(event.new_sync_state_set)
    return msgspec.structs.replace(event, reason=_why_altered(left, view))


def _why_altered(left: frozenset[int], view: LiveView) -> str:
    if not left:
        return "caught_up"
    return "lag" if any(view.is_alive(each) for each in left) else "gone"


def _is_repeat(before: BrokerSet, event: AlterSyncStateSet) -> bool:
    """The set is as asked: by this master in this epoch? Then the answer to its first request was lost."""
    return (
        before.master_broker_id == event.master_broker_id
        and before.master_epoch == event.expected_master_epoch
        and event.expected_sync_state_set_epoch <= before.sync_state_set_epoch
    )


def _same_set(before: BrokerSet) -> Refused:
    return Refused(
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
        f"the SyncStateSet of {before.broker_name} is {sorted(before.sync_state_set)} already "
        f"(masterEpoch {before.master_epoch}, syncStateSetEpoch {before.sync_state_set_epoch})",
    )


def decide_read(
    state: State,
    *,
    broker_name: str,
    master_broker_id: int | None = None,
    master_epoch: int | None = None,
    fence_sync_state_set_epoch: int | None = None,
) -> Decision:
    """1004. A master that does not know what became of its 1001 names itself and the set epoch that it
    believes in: if the set still is of that epoch, the answer is of the next one, and the 1001 is void."""
    broker_set = state.brokers.get(broker_name)
    if broker_set is None:
        return Refused(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "Broker metadata is not existed")
    doubts = fence_sync_state_set_epoch == broker_set.sync_state_set_epoch
    is_master = master_broker_id is not None and master_broker_id == broker_set.master_broker_id
    if doubts and is_master and master_epoch == broker_set.master_epoch:
        return fence_event(broker_set)
    return Answer(broker_set)


def fence_event(broker_set: BrokerSet) -> FenceSyncStateSet:
    assert broker_set.master_broker_id is not None, "only a master is fenced from its past"
    return FenceSyncStateSet(
        broker_name=broker_set.broker_name,
        master_broker_id=broker_set.master_broker_id,
        expected_master_epoch=broker_set.master_epoch,
        expected_sync_state_set_epoch=broker_set.sync_state_set_epoch,
    )


@dataclass(frozen=True, slots=True)
class Drained:
    """What a master says that hands over: in these epochs it takes nothing more, and `equals` have all that
    it has. So they need not be copied to before they count."""

    master_broker_id: int
    master_epoch: int
    sync_state_set_epoch: int
    equals: frozenset[int]


@dataclass(frozen=True, slots=True)
class Ballot:
    """A 1002. broker_id: who asks, or whom the operator names (designate_elect), or CONTROLLER_ITSELF.
    unclean: may a replica outside the SyncStateSet win? drained: the master asks, for its heir."""

    broker_name: str
    cluster_name: str = ""
    broker_id: int = CONTROLLER_ITSELF
    designate_elect: bool = False
    unclean: bool = False
    drained: Drained | None = None


def decide_elect(state: State, view: LiveView, ballot: Ballot) -> Decision:
    held = hold_election(state, view, ballot)
    return held if isinstance(held, Refused) else decide_held(held, view, ballot)


@dataclass(frozen=True, slots=True)
class Held:
    broker_set: BrokerSet
    election: Election


def hold_election(state: State, view: LiveView, ballot: Ballot) -> Held | Refused:
    """Refused: there is nothing to elect for."""
    broker_set = state.brokers.get(ballot.broker_name)
    if broker_set is None:
        return unknown_set(ballot.broker_name)
    if ballot.cluster_name and (refused := other_cluster(broker_set, ballot.cluster_name)):
        return refused
    if ballot.drained is not None and (refused := _drained_another(broker_set, ballot.drained)):
        return refused
    preferred = None
    if ballot.broker_id != CONTROLLER_ITSELF and (ballot.designate_elect or broker_set.is_new):
        preferred = ballot.broker_id  # the first to ask becomes the first master, if it is heard here
    if preferred is not None and preferred not in broker_set.replicas:
        return _nobody_wins(
            f"BrokerId: {preferred} hasn't been registered in broker-set: {broker_set.broker_name}"
        )
    return Held(broker_set, elect(broker_set, view, preferred=preferred, unclean=ballot.unclean))


def _drained_another(broker_set: BrokerSet, drained: Drained) -> Refused | None:
    """The word of a master that is none any more, or that has gone on since, counts nothing."""
    return check_master(
        broker_set,
        drained.master_broker_id,
        master_epoch=drained.master_epoch,
        sync_state_set_epoch=drained.sync_state_set_epoch,
    )


def decide_held(held: Held, view: LiveView, ballot: Ballot) -> Decision:
    broker_set, election = held.broker_set, held.election
    match election.verdict:
        case Verdict.ELECTED if ballot.drained is not None and not election.unclean:
            event = elect_event(broker_set, election, view)
            kept = tuple(sorted(ballot.drained.equals & broker_set.sync_state_set))
            reason = f"handed over by {broker_set.master_broker_id}"
            return msgspec.structs.replace(event, v=2, kept=kept, reason=reason)
        case Verdict.ELECTED:
            return elect_event(broker_set, election, view)
        case Verdict.KEEP:
            remark = (
                f"The old master {broker_set.master_broker_id} is still alive, not need to elect new master "
                f"for broker {broker_set.broker_name}"
            )
            return Answer(broker_set, ResponseCode.CONTROLLER_MASTER_STILL_EXIST, remark)
        case Verdict.NONE | Verdict.WAIT:
            return _nobody(broker_set, election, view, ballot.broker_id)


def _nobody(broker_set: BrokerSet, election: Election, view: LiveView, broker_id: int) -> Decision:
    """The master is cleared once, and only when the controller itself finds that nobody can follow it."""
    if broker_id != CONTROLLER_ITSELF:
        return _nobody_wins(election.reason)
    if election.verdict is Verdict.NONE and broker_set.master_broker_id is not None:
        return elect_event(broker_set, election, view)
    return Refused(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, election.reason)


def _nobody_wins(why: str) -> Refused:
    return Refused(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, f"Failed to elect a new master: {why}")


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


def decide_clean(
    state: State,
    view: LiveView,
    *,
    cluster_name: str,
    broker_name: str,
    broker_ids: str,
    clean_living: bool,
) -> Decision:
    """1011. broker_ids: "1;2", blank is the whole group. The living only with clean_living."""
    ids = _parse_ids(broker_ids)
    if isinstance(ids, Refused):
        return ids
    broker_set = state.brokers.get(broker_name)
    if not clean_living and (refused := _living(broker_set, view, ids, broker_name)):
        return refused
    if broker_set is None:
        return clean_refused(f"Broker {broker_name} is not existed,clean broker data failure.")
    if cluster_name and (refused := other_cluster(broker_set, cluster_name)):
        return refused
    if never := sorted(each for each in ids if each >= broker_set.next_broker_id):
        return clean_refused(f"brokers {never} were never registered in {broker_name}")
    there = sorted(ids & broker_set.replicas.keys()) if ids else sorted(broker_set.replicas)
    if not there:  # a repeat, its first answer was lost
        return Answer(broker_set, remark=f"brokers {sorted(ids)} are not in {broker_name} any more")
    master = broker_set.master_broker_id
    event = CleanBrokerData(
        broker_name=broker_name,
        broker_ids=tuple(there),
        expected_master_epoch=broker_set.master_epoch,
        expected_sync_state_set_epoch=broker_set.sync_state_set_epoch,
        reason=f"master {master} was cleaned" if master in there else "cleaned",
    )
    return check_clean(broker_set, event) or event


def _living(
    broker_set: BrokerSet | None, view: LiveView, ids: frozenset[int], broker_name: str
) -> Refused | None:
    if not ids and broker_set is not None and broker_set.master_broker_id is not None:
        return clean_refused(f"Broker {broker_name} is still alive, clean up failure")
    every = () if broker_set is None else broker_set.replicas
    if alive := sorted(each for each in ids or every if view.is_alive(each)):
        return clean_refused(f"Broker {broker_name} {alive} is still alive, clean up failure")
    return None


def ids_of(text: str) -> frozenset[int] | None:
    """Of "1;2;3"; None: that is no such list."""
    words = [each.strip() for each in text.split(";") if each.strip()]
    return frozenset(int(each) for each in words) if all(_ID.fullmatch(each) for each in words) else None


def _parse_ids(text: str) -> frozenset[int] | Refused:
    ids = ids_of(text)
    if ids is None:
        return clean_refused(f"brokerControllerIdsToClean {text!r} is not a list of ids like 1;2;3")
    return ids


def decide_update_config(state: State, changes: Mapping[str, str | None]) -> Decision:
    """1009. `changes` were checked against the settings of this controller; None: as the file says."""
    after = {**state.settings, **changes}
    if {key: value for key, value in after.items() if value is not None} == state.settings:
        return Answer(None)
    return UpdateConfig(changes=dict(changes), expected_settings_version=state.settings_version)
