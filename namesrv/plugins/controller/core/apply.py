"""apply(state, event): the only place where the replicated state changes.

Runs on every controller and at every replay. Total and deterministic: any event on any state has an Applied;
no clock, no liveness, no exception. Every event is fenced here by the epochs that it carries, because the
state may have moved since decide() looked at it. A refused event changes nothing but event_count.
"""

from dataclasses import dataclass, replace

from namesrv.plugins.controller.core.events import (
    AlterSyncStateSet,
    AnyEvent,
    ApplyBrokerId,
    ElectMaster,
    UpdateBrokerAddress,
)
from namesrv.plugins.controller.core.state import (
    BROKER_ID_MAX,
    FIRST_BROKER_ID,
    BrokerSet,
    Replica,
    State,
)
from remoting.codes import ResponseCode


@dataclass(frozen=True, slots=True)
class Refused:
    """Understood and not done: response code and a remark for people."""

    code: ResponseCode
    remark: str


@dataclass(frozen=True, slots=True)
class Applied:
    """What an event did to its group. before None: a new group; after None: an unknown one.

    refused is not None: the group is as before. state.event_count is the event's place in the log.
    """

    state: State
    before: BrokerSet | None
    after: BrokerSet | None
    refused: Refused | None = None

    @property
    def is_changed(self) -> bool:
        return self.before != self.after


def apply(state: State, event: AnyEvent) -> Applied:
    before = state.brokers.get(event.broker_name)
    match event:
        case ApplyBrokerId():
            after = _apply_broker_id(before, event)
        case UpdateBrokerAddress():
            after = _update_broker_address(before, event)
        case AlterSyncStateSet():
            after = _alter(before, event)
        case ElectMaster():
            after = _elect(before, event)
    counted = _counted(state, event)
    if isinstance(after, Refused):
        return Applied(counted, before, before, after)
    return Applied(counted.with_set(after), before, after)


def _counted(state: State, event: AnyEvent) -> State:
    """Events without `ts` are older than the count: a snapshot of that time swallowed as many as it liked, at
    every member others. Left out, they leave all members with the same number."""
    return replace(state, event_count=state.event_count + 1) if event.ts else state


def unknown_set(broker_name: str) -> Refused:
    return Refused(
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        f"Broker-set: {broker_name} hasn't been registered in controller",
    )


def other_cluster(broker_set: BrokerSet, cluster_name: str) -> Refused | None:
    """One broker name belongs to one cluster; a second cluster would merge two groups into one."""
    if broker_set.cluster_name == cluster_name:
        return None
    return Refused(
        ResponseCode.CONTROLLER_INVALID_REQUEST,
        f"broker name {broker_set.broker_name} belongs to cluster {broker_set.cluster_name}, "
        f"not to {cluster_name}: give this group another brokerName",
    )


def check_broker_id(before: BrokerSet | None, event: ApplyBrokerId) -> Refused | None:
    """None: the id is free, or the applicant owns it already. Source: reference of 1013."""
    if not FIRST_BROKER_ID <= event.broker_id <= BROKER_ID_MAX:
        return _invalid_id(event, f"must be between {FIRST_BROKER_ID} and {BROKER_ID_MAX}")
    if before is None:
        if event.broker_id == FIRST_BROKER_ID:
            return None
        return _invalid_id(event, f"the first id of a broker-set is {FIRST_BROKER_ID}")
    if refused := other_cluster(before, event.cluster_name):
        return refused
    owner = before.replicas.get(event.broker_id)
    if owner is None or owner.check_code == event.register_check_code:
        return None
    return _invalid_id(event, "it belongs to another broker; ask for the next id")


def _invalid_id(event: ApplyBrokerId, why: str) -> Refused:
    return Refused(
        ResponseCode.CONTROLLER_BROKER_ID_INVALID,
        f"Fail to apply brokerId: {event.broker_id} in broker-set: {event.broker_name}: {why}",
    )


def _apply_broker_id(before: BrokerSet | None, event: ApplyBrokerId) -> BrokerSet | Refused:
    if refused := check_broker_id(before, event):
        return refused
    broker_set = before or BrokerSet(event.cluster_name, event.broker_name)
    if event.broker_id in broker_set.replicas:
        return broker_set
    return replace(
        broker_set,
        # not next + 1: an id above it may have been applied for, and must never be offered again
        next_broker_id=max(broker_set.next_broker_id, event.broker_id + 1),
        replicas={
            **broker_set.replicas,
            event.broker_id: Replica(event.broker_address, event.register_check_code),
        },
    )


def _update_broker_address(before: BrokerSet | None, event: UpdateBrokerAddress) -> BrokerSet | Refused:
    if before is None or event.broker_id not in before.replicas:
        return unknown_set(event.broker_name)
    replica = before.replicas[event.broker_id]
    if replica.address == event.broker_address:
        return before
    if replica.address != event.expected_address:
        return Refused(
            ResponseCode.CONTROLLER_INVALID_REQUEST,
            f"the address of broker {event.broker_id} of {event.broker_name} was changed meanwhile to "
            f"{replica.address}: register again",
        )
    changed = {event.broker_id: replace(replica, address=event.broker_address)}
    return replace(before, replicas={**before.replicas, **changed})


def fence(before: BrokerSet, *, master_epoch: int, sync_state_set_epoch: int | None = None) -> Refused | None:
    if before.master_epoch != master_epoch:
        return Refused(
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"masterEpoch {master_epoch} is not the current {before.master_epoch}",
        )
    if sync_state_set_epoch is not None and before.sync_state_set_epoch != sync_state_set_epoch:
        return Refused(
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"syncStateSetEpoch {sync_state_set_epoch} is not the current {before.sync_state_set_epoch}",
        )
    return None


def check_alter(before: BrokerSet | None, event: AlterSyncStateSet) -> Refused | None:
    """The rules that need no liveness; decide() asks too, so that a hopeless request is not logged."""
    if before is None:
        return Refused(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "Broker metadata is not existed")
    if before.master_broker_id is None or before.master_broker_id != event.master_broker_id:
        return Refused(
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"broker {event.master_broker_id} is not the master of {event.broker_name}, "
            f"the master is {before.master_broker_id}",
        )
    if refused := fence(
        before,
        master_epoch=event.expected_master_epoch,
        sync_state_set_epoch=event.expected_sync_state_set_epoch,
    ):
        return refused
    unknown = sorted(set(event.new_sync_state_set) - before.replicas.keys())
    if unknown:
        return Refused(
            ResponseCode.CONTROLLER_INVALID_REPLICAS,
            f"brokers {unknown} are not registered in broker-set {event.broker_name}",
        )
    if before.master_broker_id not in event.new_sync_state_set:
        return Refused(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"the new SyncStateSet must contain the master {before.master_broker_id}",
        )
    return None


def _alter(before: BrokerSet | None, event: AlterSyncStateSet) -> BrokerSet | Refused:
    if refused := check_alter(before, event):
        return refused
    assert before is not None
    new_set = frozenset(event.new_sync_state_set)
    if new_set == before.sync_state_set:
        return before
    return replace(before, sync_state_set=new_set, sync_state_set_epoch=before.sync_state_set_epoch + 1)


def _elect(before: BrokerSet | None, event: ElectMaster) -> BrokerSet | Refused:
    if before is None:
        return unknown_set(event.broker_name)
    if refused := fence(
        before,
        master_epoch=event.expected_master_epoch,
        sync_state_set_epoch=event.expected_sync_state_set_epoch,
    ):
        return refused
    winner = event.new_master_broker_id
    if winner is None:
        return _clear_master(before)
    if winner == before.master_broker_id:
        return Refused(ResponseCode.CONTROLLER_MASTER_STILL_EXIST, f"broker {winner} is the master already")
    if winner not in before.replicas or not _may_win(before, winner, event.unclean):
        return Refused(
            ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
            f"broker {winner} is not in the SyncStateSet {sorted(before.sync_state_set)}",
        )
    return replace(
        before,
        master_broker_id=winner,
        master_epoch=before.master_epoch + 1,
        sync_state_set=frozenset({winner}),  # only the new master is provably in sync (RIP-44)
        sync_state_set_epoch=before.sync_state_set_epoch + 1,
    )


def _may_win(before: BrokerSet, winner: int, unclean: bool) -> bool:
    """An empty set is one that never had a master: no message was acknowledged yet."""
    return unclean or not before.sync_state_set or winner in before.sync_state_set


def _clear_master(before: BrokerSet) -> BrokerSet:
    """The set stays: its members are the ones that may be elected later. No master yet: epochs stay too."""
    if before.master_broker_id is None:
        return before
    return replace(before, master_broker_id=None, master_epoch=before.master_epoch + 1)
