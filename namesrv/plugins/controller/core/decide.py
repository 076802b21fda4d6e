"""decide_*(): how the active controller decides a request, from state and liveness read once. Pure.

An event is proposed to the log, and the reply is made from what apply() returns. An Answer needs no event; a
Refused is the error reply. No function here changes anything; apply() repeats every check that matters for
safety, fenced by the epochs that the event carries.
"""

import re
from collections.abc import Mapping

import msgspec

from keelmq.remoting.codes import ResponseCode
from namesrv.plugins.controller.core.elect import (
    Election,
    LiveView,
    Verdict,
    elect,
    elect_successor,
    refused_term,
)
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
from namesrv.plugins.controller.core.ownership import check_owner
from namesrv.plugins.controller.core.rules import (
    Refused,
    check_alter,
    check_broker_id,
    check_clean,
    check_contains_master,
    check_distance,
    check_length,
    check_master,
    check_registered_address,
    clean_refused,
    other_cluster,
    unknown_set,
)
from namesrv.plugins.controller.core.state import BrokerSet, State

_ID = re.compile("[1-9][0-9]{0,18}")

CONTROLLER_ITSELF = -1
"""brokerId of an electMaster (1002) that no broker sent."""


class Answer(msgspec.Struct, frozen=True):
    """No event is needed: the reply shows this group. broker_set None: the request concerns no group."""

    broker_set: BrokerSet | None
    code: ResponseCode = ResponseCode.SUCCESS
    remark: str | None = None


Decision = AnyEvent | Answer | Refused


def decide_apply_broker_id(state: State, event: ApplyBrokerId) -> Decision:
    """applyBrokerId (1013). A repeat with the same registerCheckCode succeeds."""
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
    return event if before is None else check_distance(before, event) or event


def decide_register(
    state: State,
    view: LiveView,
    *,
    cluster_name: str,
    broker_name: str,
    broker_id: int,
    broker_address: str,
    epoch: int | None = None,
    check_code: str | None = None,
    connection_id: int = 0,
) -> Decision:
    """registerBroker (1003). The id must have been applied for (1013), by this broker if `check_code` is
    given. A changed address is recorded first, unless the broker still works at the old one: an id has one
    owner.

    A master that registers has restarted, and its term ends, however fast the restart was: its machine may
    have lost data that was not on disk. Another member of the SyncStateSet has that data and is elected. If
    there is none, the restarted master needs a new epoch, because its slaves may have data of the old epoch
    that it has lost. The term continues if nothing was written in it yet (`epoch`, the last one on its disk,
    is older): for example if a 1003 is repeated, or arrives after its sender was elected. It ends if the
    previous process refused it.
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
    if refused := check_length("brokerAddr", broker_address):
        return refused
    if refused := check_owner(view, broker_id, replica, broker_address, check_code, connection_id):
        return refused
    if replica.address != broker_address:
        return UpdateBrokerAddress(
            broker_name=broker_name,
            broker_id=broker_id,
            broker_address=broker_address,
            expected_address=replica.address,
        )
    may_have_begun = epoch is None or epoch >= broker_set.master_epoch or view.is_unfit(broker_id)
    if broker_id == broker_set.master_broker_id and may_have_begun:
        return elect_event(broker_set, elect_successor(broker_set, view), view)
    return Answer(broker_set)


def decide_alter_sync_state_set(state: State, event: AlterSyncStateSet, view: LiveView) -> Decision:
    """alterSyncStateSet (1001). `event`: the request with the epochs that the master knows.

    Returns the event with its reason, the Answer to a repeated request, or the refusal: fenced, not the
    master, an unregistered or dead member, or a set without the master.
    """
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
    """Returns whether the same master has set the SyncStateSet to this value in the same epoch."""
    return (
        before.master_broker_id == event.master_broker_id
        and before.master_epoch == event.expected_master_epoch
        and event.expected_sync_state_set_epoch <= before.sync_state_set_epoch
    )


def _same_set(before: BrokerSet) -> Refused:
    return Refused(
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
        f"the SyncStateSet of {before.broker_name} is already {sorted(before.sync_state_set)} "
        f"(masterEpoch {before.master_epoch}, syncStateSetEpoch {before.sync_state_set_epoch})",
    )


def decide_read(
    state: State,
    *,
    broker_name: str,
    broker_id: int | None = None,
    broker_address: str | None = None,
    master_broker_id: int | None = None,
    master_epoch: int | None = None,
    fence_sync_state_set_epoch: int | None = None,
) -> Decision:
    """getReplicaInfo (1004). Refused: the group is unknown, or the sender's id is registered at another
    address now.

    A master that does not know the outcome of its 1001 sends its id and the last SyncStateSet epoch that it
    knows. If that is still the current epoch, an event raises it, so that a delayed 1001 is refused.
    """
    broker_set = state.brokers.get(broker_name)
    if broker_set is None:
        return Refused(ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "Broker metadata is not existed")
    if refused := check_registered_address(broker_set, broker_id, broker_address):
        return refused
    is_unsure = fence_sync_state_set_epoch == broker_set.sync_state_set_epoch
    is_master = master_broker_id is not None and master_broker_id == broker_set.master_broker_id
    if is_unsure and is_master and master_epoch == broker_set.master_epoch:
        return fence_event(broker_set)
    return Answer(broker_set)


def fence_event(broker_set: BrokerSet) -> FenceSyncStateSet:
    """Returns the event that raises the SyncStateSet epoch of this group, which has a master."""
    assert broker_set.master_broker_id is not None, "only a master requests a fence"
    return FenceSyncStateSet(
        broker_name=broker_set.broker_name,
        master_broker_id=broker_set.master_broker_id,
        expected_master_epoch=broker_set.master_epoch,
        expected_sync_state_set_epoch=broker_set.sync_state_set_epoch,
    )


class Drained(msgspec.Struct, frozen=True):
    """A master hands over: in these epochs it accepts no more messages.

    `equal_replicas`: the brokers that have all of its data, so they stay in the SyncStateSet.
    """

    master_broker_id: int
    master_epoch: int
    sync_state_set_epoch: int
    equal_replicas: frozenset[int]


class ElectionRequest(msgspec.Struct, frozen=True):
    """An electMaster (1002). broker_id: the sender, or the broker that the operator designates
    (designate_elect), or CONTROLLER_ITSELF. unclean: a replica outside the SyncStateSet may win. drained: set
    if the current master hands over. needs_room: a replica whose disk is full is not designated."""

    broker_name: str
    cluster_name: str = ""
    broker_id: int = CONTROLLER_ITSELF
    designate_elect: bool = False
    unclean: bool = False
    drained: Drained | None = None
    needs_room: bool = False


def decide_elect(state: State, view: LiveView, election_request: ElectionRequest) -> Decision:
    """Decides electMaster (1002): finds the group, elects, and makes the event, Answer or Refused."""
    held = hold_election(state, view, election_request)
    return held if isinstance(held, Refused) else decide_election(held, view, election_request)


class HeldElection(msgspec.Struct, frozen=True):
    """An election that was held, and the group that it is about."""

    broker_set: BrokerSet
    election: Election


def hold_election(state: State, view: LiveView, election_request: ElectionRequest) -> HeldElection | Refused:
    """Finds the group and elects. Refused: the group or replica is unknown, or the hand-over is outdated."""
    broker_set = state.brokers.get(election_request.broker_name)
    if broker_set is None:
        return unknown_set(election_request.broker_name)
    if election_request.cluster_name and (
        refused := other_cluster(broker_set, election_request.cluster_name)
    ):
        return refused
    if election_request.drained is not None and (
        refused := _check_drained(broker_set, election_request.drained)
    ):
        return refused
    preferred = None
    if election_request.broker_id != CONTROLLER_ITSELF and (
        election_request.designate_elect or broker_set.is_new
    ):
        preferred = (
            election_request.broker_id
        )  # the first broker that asks becomes the first master, if its heartbeats arrive here
    if preferred is not None and preferred not in broker_set.replicas:
        return _election_failed(
            f"BrokerId: {preferred} hasn't been registered in broker-set: {broker_set.broker_name}"
        )
    return HeldElection(
        broker_set,
        elect(
            broker_set,
            view,
            preferred=preferred,
            unclean=election_request.unclean,
            needs_room=election_request.needs_room,
        ),
    )


def _check_drained(broker_set: BrokerSet, drained: Drained) -> Refused | None:
    """Refused: the sender is no longer the master, or its epochs have changed."""
    return check_master(
        broker_set,
        drained.master_broker_id,
        master_epoch=drained.master_epoch,
        sync_state_set_epoch=drained.sync_state_set_epoch,
    )


def decide_election(held: HeldElection, view: LiveView, election_request: ElectionRequest) -> Decision:
    """Returns the event of an election; or an Answer: the master is alive; or Refused: no replica may win."""
    broker_set, election = held.broker_set, held.election
    match election.verdict:
        case Verdict.ELECTED if election_request.drained is not None and not election.unclean:
            event = elect_event(broker_set, election, view)
            kept = tuple(sorted(election_request.drained.equal_replicas & broker_set.sync_state_set))
            reason = f"handed over by {broker_set.master_broker_id}"
            return msgspec.structs.replace(event, v=2, kept=kept, reason=reason)
        case Verdict.ELECTED | Verdict.REFUSED:
            return elect_event(broker_set, election, view)
        case Verdict.KEEP:
            remark = (
                f"The old master {broker_set.master_broker_id} is still alive, not need to elect new master "
                f"for broker {broker_set.broker_name}"
            )
            return Answer(broker_set, ResponseCode.CONTROLLER_MASTER_STILL_EXIST, remark)
        case Verdict.NONE | Verdict.WAIT:
            return _no_winner(broker_set, election, view, election_request.broker_id)


def _no_winner(broker_set: BrokerSet, election: Election, view: LiveView, broker_id: int) -> Decision:
    """Handles an election without a winner: the controller itself clears the master, a broker is refused."""
    if broker_id != CONTROLLER_ITSELF:
        return _election_failed(election.reason)
    if election.verdict is Verdict.NONE and broker_set.master_broker_id is not None:
        return elect_event(broker_set, election, view)
    return Refused(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, election.reason)


def _election_failed(why: str) -> Refused:
    return Refused(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, f"Failed to elect a new master: {why}")


def elect_event(broker_set: BrokerSet, election: Election, view: LiveView) -> ElectMaster:
    """Returns the event of this election. `view`: the liveness that the election was based on."""
    master = broker_set.master_broker_id
    loss = None if master is None else view.lost.get(master)
    term = refused_term(broker_set, view) if election.verdict is Verdict.REFUSED else None
    return ElectMaster(
        v=1 if term is None else 4,
        kept=msgspec.UNSET if term is None else tuple(sorted(term.sync_state_set)),
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
    """cleanBrokerData (1011). broker_ids: "1;2"; empty: the whole group. clean_living: even live brokers."""
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
    if not there:  # a repeat: the first reply was lost
        return Answer(broker_set, remark=f"brokers {sorted(ids)} are no longer in {broker_name}")
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
    """Parses "1;2;3". None: the text is not such a list."""
    words = [each.strip() for each in text.split(";") if each.strip()]
    return frozenset(int(each) for each in words) if all(_ID.fullmatch(each) for each in words) else None


def _parse_ids(text: str) -> frozenset[int] | Refused:
    ids = ids_of(text)
    if ids is None:
        return clean_refused(f"brokerControllerIdsToClean {text!r} is not a list of ids like 1;2;3")
    return ids


def decide_update_config(state: State, changes: Mapping[str, str | None]) -> Decision:
    """updateControllerConfig (1009). `changes` have been checked; value None: reset to the file's value."""
    after = {**state.settings, **changes}
    if {key: value for key, value in after.items() if value is not None} == state.settings:
        return Answer(None)
    return UpdateConfig(changes=dict(changes), expected_settings_version=state.settings_version)
