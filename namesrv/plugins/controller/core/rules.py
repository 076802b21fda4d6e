"""Rules that decide() and apply() share. Pure; no liveness.

decide() checks them so that no event is logged in vain, apply() because the state may have changed meanwhile.
A Refused has RocketMQ's response code.
"""

import msgspec

from keelmq.remoting.codes import ResponseCode
from namesrv.plugins.controller.core.events import AlterSyncStateSet, ApplyBrokerId, CleanBrokerData
from namesrv.plugins.controller.core.state import BROKER_ID_MAX, EPOCH_MAX, FIRST_BROKER_ID, BrokerSet, State

GROUP_BROKERS_MAX = 1_000
"""Maximum of one group: the cost of a change grows with the number of its brokers."""
IDS_AHEAD_MAX = GROUP_BROKERS_MAX
"""Maximum distance of an id above the next one: this many brokers can have requested ids at once."""
TEXT_BYTES_MAX = 512
"""Maximum size of a name, an address or a registerCheckCode; a DNS name has at most 255 bytes."""


class Refused(msgspec.Struct, frozen=True, gc=False):
    """A refused request: response code and remark."""

    code: ResponseCode
    remark: str


def unknown_set(broker_name: str) -> Refused:
    """Returns the refusal for a group or replica that is not registered."""
    return Refused(
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        f"Broker-set: {broker_name} hasn't been registered in controller",
    )


def other_cluster(broker_set: BrokerSet, cluster_name: str) -> Refused | None:
    """Refused: the group belongs to another cluster. Otherwise two groups would become one."""
    if broker_set.cluster_name == cluster_name:
        return None
    return Refused(
        ResponseCode.CONTROLLER_INVALID_REQUEST,
        f"broker name {broker_set.broker_name} belongs to cluster {broker_set.cluster_name}, "
        f"not to {cluster_name}: give this group another brokerName",
    )


def fence(before: BrokerSet, *, master_epoch: int, sync_state_set_epoch: int | None = None) -> Refused | None:
    """Refused: an expected epoch is not the current one of the group."""
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


def check_epochs(after: BrokerSet) -> Refused | None:
    """Refused: the group would have an epoch above EPOCH_MAX after the event. For apply() only.

    An import by an earlier release may have set any epoch, and an overflow would stop every controller, and
    again after each restart.
    """
    if 0 <= after.master_epoch <= EPOCH_MAX and 0 <= after.sync_state_set_epoch <= EPOCH_MAX:
        return None
    return Refused(
        ResponseCode.CONTROLLER_INVALID_REQUEST,
        f"{after.broker_name} has no epoch left (the maximum is {EPOCH_MAX}): give its brokers another "
        "brokerName",
    )


def check_broker_id(state: State, event: ApplyBrokerId) -> Refused | None:
    """Refused: the id is invalid, or belongs to another broker. Source: RocketMQ 5.3.3, applyBrokerId."""
    if not FIRST_BROKER_ID <= event.broker_id <= BROKER_ID_MAX:
        return _invalid_id(event, f"must be between {FIRST_BROKER_ID} and {BROKER_ID_MAX}")
    before = state.brokers.get(event.broker_name)
    if before is None:
        first = state.first_broker_id(event.broker_name)
        if event.broker_id == first:
            return _too_many(state, None, event)
        return _invalid_id(event, f"the first id of a broker-set is {first}")
    if refused := other_cluster(before, event.cluster_name):
        return refused
    owner = before.replicas.get(event.broker_id)
    if owner is not None:
        is_owner = owner.check_code == event.register_check_code
        return None if is_owner else _invalid_id(event, "it belongs to another broker; request the next id")
    if event.broker_id < before.id_floor:
        return _invalid_id(event, "it was cleaned, and no id is used twice; request the next id")
    return _too_many(state, before, event)


def check_distance(before: BrokerSet, event: ApplyBrokerId) -> Refused | None:
    """Refused: the id is far above the next one (1012). Ids are never given back: one request for the
    greatest one would leave none to the group. Not for apply(): an earlier release allowed such an id."""
    if event.broker_id <= before.next_broker_id + IDS_AHEAD_MAX:
        return None
    return _invalid_id(event, f"the next id is {before.next_broker_id}; request it")


def check_registered_address(
    broker_set: BrokerSet, broker_id: int | None, broker_address: str | None
) -> Refused | None:
    """Refused: the sender's id is registered at another address. That process has taken its place while it
    was silent, and only one of them may serve. None, too, if the sender does not identify itself."""
    replica = None if broker_id is None else broker_set.replicas.get(broker_id)
    if replica is None or broker_address in (None, replica.address):
        return None
    return Refused(
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        f"brokerId {broker_id} of {broker_set.broker_name} is registered at {replica.address} now",
    )


def _too_many(state: State, before: BrokerSet | None, event: ApplyBrokerId) -> Refused | None:
    """Refused: too many brokers. Any client of the port can register names, and each stays until cleaned."""
    if isinstance(event.brokers_max, msgspec.UnsetType):
        return None  # an event of a release without the limit
    if state.size >= event.brokers_max:
        return Refused(
            ResponseCode.CONTROLLER_INVALID_REQUEST, f"no new broker: {full(state, event.brokers_max)}"
        )
    if before is not None and len(before.replicas) >= GROUP_BROKERS_MAX:
        return _invalid_id(
            event, f"a broker-set has at most {GROUP_BROKERS_MAX} brokers; clean those that are gone"
        )
    return None


def full(state: State, brokers_max: int) -> str:
    """Returns the remark of a refusal at controllerBrokersMax, with what to do."""
    return (
        f"{state.broker_count} brokers and {len(state.cleaned)} cleaned groups are registered, and "
        f"controllerBrokersMax is {brokers_max}. Raise it (updateControllerConfig), or clean brokers that "
        "are gone (cleanBrokerMetadata); a group that is cleaned whole counts on, because its ids stay used"
    )


def check_length(what: str, text: str) -> Refused | None:
    """Refused: the text is too long. For decide() only: an entry that is in the log must be accepted."""
    if len(text.encode()) <= TEXT_BYTES_MAX:
        return None
    return Refused(
        ResponseCode.CONTROLLER_INVALID_REQUEST,
        f"{what} {text[:20]!r}... has {len(text.encode())} bytes, the maximum is {TEXT_BYTES_MAX}",
    )


def _invalid_id(event: ApplyBrokerId, why: str) -> Refused:
    return Refused(
        ResponseCode.CONTROLLER_BROKER_ID_INVALID,
        f"Fail to apply brokerId: {event.broker_id} in broker-set: {event.broker_name}: {why}",
    )


def check_master(
    before: BrokerSet, broker_id: int, *, master_epoch: int, sync_state_set_epoch: int
) -> Refused | None:
    """Refused: the broker is not the master, or one of its epochs is not the current one."""
    if before.master_broker_id is None or before.master_broker_id != broker_id:
        master = "null" if before.master_broker_id is None else before.master_broker_id
        return Refused(
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"Rejecting alter syncStateSet request because the current leader is:{{{master}}}, "
            f"not {{{broker_id}}}",
        )
    return fence(before, master_epoch=master_epoch, sync_state_set_epoch=sync_state_set_epoch)


def check_alter(before: BrokerSet | None, event: AlterSyncStateSet) -> Refused | None:
    """Refused (1001): no such group, not its master, an outdated epoch, or an unregistered member."""
    if before is None:
        return Refused(ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "Broker metadata is not existed")
    if refused := check_master(
        before,
        event.master_broker_id,
        master_epoch=event.expected_master_epoch,
        sync_state_set_epoch=event.expected_sync_state_set_epoch,
    ):
        return refused
    if not before.replicas.keys() >= set(event.new_sync_state_set):
        unknown = sorted(set(event.new_sync_state_set) - before.replicas.keys())
        return Refused(
            ResponseCode.CONTROLLER_INVALID_REPLICAS,
            f"brokers {unknown} are not registered in broker-set {event.broker_name}",
        )
    return None


def check_contains_master(before: BrokerSet, event: AlterSyncStateSet) -> Refused | None:
    """Refused: the new set lacks the master. The last rule of 1001; decide() checks liveness before it."""
    if before.master_broker_id in event.new_sync_state_set:
        return None
    return Refused(
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
        f"the new SyncStateSet must contain the master {before.master_broker_id}",
    )


def clean_refused(remark: str) -> Refused:
    """Returns a Refused of cleanBrokerData (1011)."""
    return Refused(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, remark)


def check_clean(before: BrokerSet | None, event: CleanBrokerData) -> Refused | None:
    """Refused (1011): no such group, an outdated epoch, or the rest would have no SyncStateSet member."""
    if before is None:
        return clean_refused(f"Broker {event.broker_name} is not existed,clean broker data failure.")
    if refused := fence(
        before,
        master_epoch=event.expected_master_epoch,
        sync_state_set_epoch=event.expected_sync_state_set_epoch,
    ):
        return refused
    cleaned = frozenset(event.broker_ids)
    left = before.replicas.keys() - cleaned
    if left and before.sync_state_set and before.sync_state_set <= cleaned:
        return clean_refused(
            f"brokers {sorted(before.sync_state_set)} are the whole SyncStateSet of {event.broker_name}: "
            f"only they have all acknowledged messages. Elect one of {sorted(left)} first "
            "(enableElectUncleanMaster=true, messages can be lost), or clean the whole group"
        )
    return None
