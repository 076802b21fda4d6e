"""The replicated state as JSON, for snapshots of the log and for export and import. Pure.

Version 2 added cleaned groups, settings and past elections; version 1 can still be read. A newer version is
refused: without the parts that it does not know this controller would differ from the others. log_id is
optional in version 2, because nothing is decided by it; so is the term of a group, because apply() does not
decide by it.
"""

import msgspec

from namesrv.plugins.controller.core.state import (
    FIRST_BROKER_ID,
    BrokerSet,
    Cleaned,
    PastElection,
    Replica,
    State,
    Term,
)

STATE_VERSION = 2


class ReplicaRecord(msgspec.Struct, frozen=True):
    """A Replica with its broker id."""

    id: int
    address: str
    check_code: str


class TermRecord(msgspec.Struct, frozen=True):
    """A Term, sorted."""

    broker_id: int
    master_epoch: int
    sync_state_set: list[int]


class SetRecord(msgspec.Struct, frozen=True):
    """A BrokerSet, sorted."""

    cluster_name: str
    broker_name: str
    next_broker_id: int
    replicas: list[ReplicaRecord]
    master_broker_id: int | None
    master_epoch: int
    sync_state_set: list[int]
    sync_state_set_epoch: int
    id_floor: int = FIRST_BROKER_ID
    term: TermRecord | None = None


class CleanedRecord(msgspec.Struct, frozen=True):
    """A Cleaned with its brokerName."""

    broker_name: str
    master_epoch: int
    sync_state_set_epoch: int
    next_broker_id: int


class _StateRecord(msgspec.Struct, frozen=True):
    v: int
    brokers: list[SetRecord]
    event_count: int = 0
    cleaned: list[CleanedRecord] = []
    settings: dict[str, str] = {}
    settings_version: int = 0
    elections: list[PastElection] = []
    log_id: str = ""


class _Version(msgspec.Struct, frozen=True):
    v: int


class StateVersionError(Exception):
    """The state is from a newer release, with parts that this one does not know."""


def state_to_json(state: State) -> bytes:
    """Returns the state as JSON. Equal states have equal bytes: everything is sorted."""
    record = _StateRecord(
        v=STATE_VERSION,
        brokers=[set_record(state.brokers[name]) for name in sorted(state.brokers)],
        event_count=state.event_count,
        cleaned=[cleaned_record(name, state.cleaned[name]) for name in sorted(state.cleaned)],
        settings=dict(sorted(state.settings.items())),
        settings_version=state.settings_version,
        elections=list(state.elections),
        log_id=state.log_id,
    )
    return msgspec.json.encode(record)


def state_from_json(data: bytes) -> State:
    """Inverse of state_to_json(). Raises StateVersionError, or msgspec.DecodeError: not such a state."""
    version = msgspec.json.decode(data, type=_Version).v
    if version > STATE_VERSION:
        raise StateVersionError(f"controller state version {version}; this program knows {STATE_VERSION}")
    record = msgspec.json.decode(data, type=_StateRecord)
    return State(
        brokers={each.broker_name: broker_set_of(each) for each in record.brokers},
        event_count=record.event_count,
        cleaned={each.broker_name: cleaned_of(each) for each in record.cleaned},
        settings=record.settings,
        settings_version=record.settings_version,
        elections=tuple(record.elections),
        broker_count=sum(len(each.replicas) for each in record.brokers),
        log_id=record.log_id,
    )


def set_record(broker_set: BrokerSet) -> SetRecord:
    """Returns the JSON record of a group."""
    replicas, term = sorted(broker_set.replicas.items()), broker_set.term
    return SetRecord(
        cluster_name=broker_set.cluster_name,
        broker_name=broker_set.broker_name,
        next_broker_id=broker_set.next_broker_id,
        replicas=[ReplicaRecord(each, replica.address, replica.check_code) for each, replica in replicas],
        master_broker_id=broker_set.master_broker_id,
        master_epoch=broker_set.master_epoch,
        sync_state_set=sorted(broker_set.sync_state_set),
        sync_state_set_epoch=broker_set.sync_state_set_epoch,
        id_floor=broker_set.id_floor,
        term=None
        if term is None
        else TermRecord(term.broker_id, term.master_epoch, sorted(term.sync_state_set)),
    )


def broker_set_of(record: SetRecord) -> BrokerSet:
    """Inverse of set_record()."""
    term = record.term
    return BrokerSet(
        cluster_name=record.cluster_name,
        broker_name=record.broker_name,
        next_broker_id=record.next_broker_id,
        replicas={each.id: Replica(each.address, each.check_code) for each in record.replicas},
        master_broker_id=record.master_broker_id,
        master_epoch=record.master_epoch,
        sync_state_set=frozenset(record.sync_state_set),
        sync_state_set_epoch=record.sync_state_set_epoch,
        id_floor=record.id_floor,
        term=None
        if term is None
        else Term(term.broker_id, term.master_epoch, frozenset(term.sync_state_set)),
    )


def cleaned_record(broker_name: str, cleaned: Cleaned) -> CleanedRecord:
    """Returns the JSON record of a cleaned group."""
    return CleanedRecord(
        broker_name, cleaned.master_epoch, cleaned.sync_state_set_epoch, cleaned.next_broker_id
    )


def cleaned_of(record: CleanedRecord) -> Cleaned:
    """Inverse of cleaned_record()."""
    return Cleaned(record.master_epoch, record.sync_state_set_epoch, record.next_broker_id)
