"""apply(): the state after one event, on every controller and on every replay. Pure.

Total: any event on any state returns an Applied; it reads no clock and no liveness, and never raises. Every
event is fenced by the epochs that it carries, because the state may have changed since decide() read it. A
refused event changes only event_count, and log_id as below.
"""

import msgspec
from msgspec.structs import replace

from keelmq.remoting.codes import ResponseCode
from namesrv.plugins.controller.core.events import (
    AlterSyncStateSet,
    AnyEvent,
    AnyGroupEvent,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    FenceSyncStateSet,
    ImportState,
    UpdateBrokerAddress,
    UpdateConfig,
)
from namesrv.plugins.controller.core.history import append_election
from namesrv.plugins.controller.core.rules import (
    Refused,
    check_alter,
    check_broker_id,
    check_clean,
    check_contains_master,
    check_epochs,
    check_master,
    fence,
    unknown_set,
)
from namesrv.plugins.controller.core.state import BrokerSet, PastElection, Replica, State, Term
from namesrv.plugins.controller.core.transfer import import_into


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The result of one event. before None: a new group; after None: an unknown or cleaned group; both None:
    the event does not concern a single group.

    refused not None: nothing was changed. state.event_count is the position of the event in the log.
    """

    state: State
    before: BrokerSet | None
    after: BrokerSet | None
    refused: Refused | None = None

    @property
    def is_changed(self) -> bool:
        """Whether the event changed the group."""
        return self.before != self.after


def apply(state: State, event: AnyEvent) -> Applied:
    """Returns the state after the event; or, if refused, the same state with only event_count changed."""
    counted = _counted(state, event)
    match event:
        case UpdateConfig():
            return _whole(counted, _update_config(counted, event))
        case ImportState():
            return _whole(counted, import_into(counted, event))
    before = state.brokers.get(event.broker_name)
    after = _changed(state, before, event)
    if isinstance(after, BrokerSet):
        after = check_epochs(after) or after
    if isinstance(after, Refused):
        return Applied(counted, before, before, after)
    if after is None:
        assert before is not None, "only a known group can be cleaned"
        changed = counted.without_set(before)
    else:
        changed = counted.with_set(after)
    return Applied(_with_election(changed, before, after, event), before, after)


def _whole(counted: State, outcome: State | Refused) -> Applied:
    if isinstance(outcome, Refused):
        return Applied(counted, None, None, outcome)
    return Applied(outcome, None, None)


def _changed(state: State, before: BrokerSet | None, event: AnyGroupEvent) -> BrokerSet | Refused | None:
    """Returns the group after the event; None: it was cleaned."""
    match event:
        case ApplyBrokerId():
            return _apply_broker_id(state, before, event)
        case UpdateBrokerAddress():
            return _update_broker_address(before, event)
        case AlterSyncStateSet():
            return _alter(before, event)
        case ElectMaster():
            return _elect(before, event)
        case FenceSyncStateSet():
            return _fence_sync_state_set(before, event)
        case CleanBrokerData():
            return _clean(before, event)


def _counted(state: State, event: AnyEvent) -> State:
    """Counts the event, unless it has no `ts`, and takes its log_id.

    Events without `ts` were logged before event_count existed, and some members have them in a snapshot: all
    members have the same count only if no member counts them.

    A proposer uses the log_id of its state, and names only a log that has none (proposer.py), so all events
    of a log have the same. Where an older release has led for a while, its snapshots lack the log_id: the
    newest event decides, so that all members agree again at the next one.
    """
    if not event.ts:
        return state
    log_id = state.log_id if isinstance(event.log_id, msgspec.UnsetType) else event.log_id
    return replace(state, event_count=state.event_count + 1, log_id=log_id or state.log_id)


def _with_election(
    state: State, before: BrokerSet | None, after: BrokerSet | None, event: AnyGroupEvent
) -> State:
    """Records a change of the master in state.elections."""
    if before is None or not isinstance(event, (ElectMaster, CleanBrokerData)):
        return state
    new_master = None if after is None else after.master_broker_id
    epochs = state.cleaned[before.broker_name] if after is None else after
    if before.master_broker_id == new_master or not event.ts:
        return state  # no `ts`: logged by a release that did not record elections
    newest = PastElection(
        event_id=state.event_count,
        ts=event.ts,
        cluster_name=before.cluster_name,
        broker_name=before.broker_name,
        old_master_broker_id=before.master_broker_id,
        new_master_broker_id=new_master,
        master_epoch=epochs.master_epoch,
        sync_state_set_epoch=epochs.sync_state_set_epoch,
        reason=event.reason,
    )
    if isinstance(event, ElectMaster):
        newest = replace(
            newest,
            unclean=event.unclean,
            last_heartbeat_ts=event.last_heartbeat_ts,
            detected_ts=event.detected_ts,
        )
    return replace(state, elections=append_election(state.elections, newest))


def _apply_broker_id(state: State, before: BrokerSet | None, event: ApplyBrokerId) -> BrokerSet | Refused:
    if refused := check_broker_id(state, event):
        return refused
    broker_set = before or state.new_set(event.cluster_name, event.broker_name)
    if event.broker_id in broker_set.replicas:
        return broker_set
    return replace(
        broker_set,
        # the id may be above next_broker_id; it must never be offered again
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
            f"the address of broker {event.broker_id} of {event.broker_name} has changed to "
            f"{replica.address}: register again",
        )
    return _moved(before, event.broker_id, event.broker_address)


def _moved(before: BrokerSet, broker_id: int, address: str) -> BrokerSet:
    changed = {broker_id: replace(before.replicas[broker_id], address=address)}
    return replace(before, replicas={**before.replicas, **changed})


def _alter(before: BrokerSet | None, event: AlterSyncStateSet) -> BrokerSet | Refused:
    if refused := check_alter(before, event):
        return refused
    assert before is not None
    if refused := check_contains_master(before, event):
        return refused
    new_set = frozenset(event.new_sync_state_set)
    if new_set == before.sync_state_set:
        return before
    return replace(
        before, sync_state_set=new_set, sync_state_set_epoch=before.sync_state_set_epoch + 1, term=None
    )


def _fence_sync_state_set(before: BrokerSet | None, event: FenceSyncStateSet) -> BrokerSet | Refused:
    if before is None:
        return unknown_set(event.broker_name)
    if refused := check_master(
        before,
        event.master_broker_id,
        master_epoch=event.expected_master_epoch,
        sync_state_set_epoch=event.expected_sync_state_set_epoch,
    ):
        return refused
    fenced = replace(before, sync_state_set_epoch=before.sync_state_set_epoch + 1)
    return (
        fenced
        if event.master_address is None
        else _moved(fenced, event.master_broker_id, event.master_address)
    )


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
        return _clear_master(before) if event.kept is msgspec.UNSET else _restore(before, event.kept)
    if winner == before.master_broker_id:
        return Refused(ResponseCode.CONTROLLER_MASTER_STILL_EXIST, f"broker {winner} is already the master")
    if winner not in before.replicas or not _may_win(before, winner, event.unclean):
        return Refused(
            ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
            f"broker {winner} is not in the SyncStateSet {sorted(before.sync_state_set)}",
        )
    return replace(
        before,
        master_broker_id=winner,
        master_epoch=before.master_epoch + 1,
        # nothing proves that the others have the same data: only the new master is in sync (RIP-44)
        sync_state_set=frozenset({winner}) | (before.sync_state_set & frozenset(event.kept or ())),
        sync_state_set_epoch=before.sync_state_set_epoch + 1,
        term=_term_of(before, winner),
    )


def _term_of(before: BrokerSet, winner: int) -> Term:
    """Returns the term that begins. A master that is elected again may not have begun its earlier term
    either: the members from before that term are kept."""
    if before.term is not None and before.term.broker_id == winner and before.sync_state_set == {winner}:
        return before.term
    return Term(winner, before.master_epoch + 1, before.sync_state_set)


def _may_win(before: BrokerSet, winner: int, unclean: bool) -> bool:
    return unclean or before.is_new or winner in before.sync_state_set


def _clear_master(before: BrokerSet) -> BrokerSet:
    """Clears the master and keeps the SyncStateSet: its members may be elected later."""
    if before.master_broker_id is None:
        return before
    return replace(before, master_broker_id=None, master_epoch=before.master_epoch + 1)


def _restore(before: BrokerSet, members: tuple[int, ...]) -> BrokerSet:
    """Clears the master, and adds the members from before the last election to the SyncStateSet again."""
    return replace(
        before,
        master_broker_id=None,
        master_epoch=before.master_epoch + 1,
        sync_state_set=before.sync_state_set | (frozenset(members) & before.replicas.keys()),
        sync_state_set_epoch=before.sync_state_set_epoch + 1,
        term=None,
    )


def _clean(before: BrokerSet | None, event: CleanBrokerData) -> BrokerSet | Refused | None:
    """Returns the group without these replicas; None: all were cleaned (State.without_set keeps epochs)."""
    if refused := check_clean(before, event):
        return refused
    assert before is not None
    cleaned = before.replicas.keys() & frozenset(event.broker_ids)
    if not cleaned:
        return before
    if len(cleaned) == len(before.replicas):
        return None
    if before.master_broker_id in cleaned:
        before = _clear_master(before)
    set_is_smaller = bool(cleaned & before.sync_state_set)
    return replace(
        before,
        replicas={each: replica for each, replica in before.replicas.items() if each not in cleaned},
        sync_state_set=before.sync_state_set - cleaned,
        sync_state_set_epoch=before.sync_state_set_epoch + set_is_smaller,
        id_floor=before.next_broker_id,
    )


def _update_config(state: State, event: UpdateConfig) -> State | Refused:
    if state.settings_version != event.expected_settings_version:
        return Refused(
            ResponseCode.CONTROLLER_INVALID_REQUEST,
            f"the settings have changed (version {state.settings_version}): repeat the request",
        )
    merged = {**state.settings, **event.changes}
    settings = {key: value for key, value in merged.items() if value is not None}
    return replace(state, settings=settings, settings_version=state.settings_version + 1)
