"""The replicated state: frozen values, one BrokerSet per broker name. Never knows who is alive.

A controller process publishes a new State after each applied event; a reader keeps the reference it read and
sees one consistent moment, from any thread.

Invariants: BrokerSet.check_invariants(). Source: RocketMQ 5.3.3 ReplicasInfoManager, two tables made one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NewType

import msgspec

from namesrv.core.liveness import BrokerKey

BrokerId = NewType("BrokerId", int)
Epoch = NewType("Epoch", int)

FIRST_BROKER_ID = 1
BROKER_ID_MAX = 2**62
"""Ids travel as Java longs; the next one must fit too."""

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Replica:
    """check_code: "<brokerAddr>;<millis>" of the broker that applied for the id; its proof of ownership."""

    address: str
    check_code: str


@dataclass(frozen=True, slots=True)
class BrokerSet:
    """One broker group. Epochs start at 0 and only grow; an id has one owner for life."""

    cluster_name: str
    broker_name: str
    next_broker_id: int = FIRST_BROKER_ID
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    master_broker_id: int | None = None
    master_epoch: int = 0
    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int = 0

    @property
    def master_address(self) -> str | None:
        return None if self.master_broker_id is None else self.replicas[self.master_broker_id].address

    def key(self, broker_id: int) -> BrokerKey:
        return BrokerKey(self.cluster_name, self.broker_name, broker_id)

    def keys(self) -> list[BrokerKey]:
        return [self.key(broker_id) for broker_id in sorted(self.replicas)]

    def check_invariants(self) -> None:
        assert all(FIRST_BROKER_ID <= broker_id < self.next_broker_id for broker_id in self.replicas), self
        assert self.sync_state_set <= self.replicas.keys(), self
        assert self.master_broker_id is None or self.master_broker_id in self.sync_state_set, self
        assert self.sync_state_set or self.master_epoch == 0, self


@dataclass(frozen=True, slots=True)
class State:
    """Everything, by broker name. Never mutated: with_set() answers another State.

    event_count: the place in the log of the last applied event, refused ones included (core/apply.py).
    """

    brokers: Mapping[str, BrokerSet] = field(default_factory=dict)
    event_count: int = 0

    def with_set(self, broker_set: BrokerSet) -> "State":
        return replace(self, brokers={**self.brokers, broker_set.broker_name: broker_set})


class _ReplicaRecord(msgspec.Struct, frozen=True):
    id: int
    address: str
    check_code: str


class _SetRecord(msgspec.Struct, frozen=True):
    cluster_name: str
    broker_name: str
    next_broker_id: int
    replicas: list[_ReplicaRecord]
    master_broker_id: int | None
    master_epoch: int
    sync_state_set: list[int]
    sync_state_set_epoch: int


class _StateRecord(msgspec.Struct, frozen=True):
    v: int
    brokers: list[_SetRecord]
    event_count: int = 0


class _Version(msgspec.Struct, frozen=True):
    v: int


class StateVersionError(Exception):
    """Written by a newer program: going on would make this member differ from the others."""


def state_to_json(state: State) -> bytes:
    """The same state gives the same bytes: everything is sorted."""
    brokers = [_record(state.brokers[name]) for name in sorted(state.brokers)]
    return msgspec.json.encode(_StateRecord(STATE_VERSION, brokers, state.event_count))


def state_from_json(data: bytes) -> State:
    """Inverse of state_to_json. Raises StateVersionError, or msgspec.DecodeError for foreign bytes."""
    version = msgspec.json.decode(data, type=_Version).v
    if version != STATE_VERSION:
        raise StateVersionError(f"controller state version {version}; this program knows {STATE_VERSION}")
    record = msgspec.json.decode(data, type=_StateRecord)
    return State({each.broker_name: _broker_set(each) for each in record.brokers}, record.event_count)


def _record(broker_set: BrokerSet) -> _SetRecord:
    replicas = sorted(broker_set.replicas.items())
    return _SetRecord(
        cluster_name=broker_set.cluster_name,
        broker_name=broker_set.broker_name,
        next_broker_id=broker_set.next_broker_id,
        replicas=[_ReplicaRecord(each, replica.address, replica.check_code) for each, replica in replicas],
        master_broker_id=broker_set.master_broker_id,
        master_epoch=broker_set.master_epoch,
        sync_state_set=sorted(broker_set.sync_state_set),
        sync_state_set_epoch=broker_set.sync_state_set_epoch,
    )


def _broker_set(record: _SetRecord) -> BrokerSet:
    return BrokerSet(
        cluster_name=record.cluster_name,
        broker_name=record.broker_name,
        next_broker_id=record.next_broker_id,
        replicas={each.id: Replica(each.address, each.check_code) for each in record.replicas},
        master_broker_id=record.master_broker_id,
        master_epoch=record.master_epoch,
        sync_state_set=frozenset(record.sync_state_set),
        sync_state_set_epoch=record.sync_state_set_epoch,
    )
