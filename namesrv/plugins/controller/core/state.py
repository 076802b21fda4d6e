"""The replicated state: frozen values, one BrokerSet for each broker name. Holds no liveness. Pure.

A controller publishes a new State after each applied event; a reader in any thread takes the reference once
and sees a consistent state. state_codec.py writes it as JSON.

The values are msgspec structs, which are cheap to copy, with gc=False: they cannot form reference cycles, so
the garbage collector need not visit them.

Invariants: BrokerSet.problems(). Source: RocketMQ 5.3.3, ReplicasInfoManager (its two tables are one here).
"""

from collections.abc import Iterator, Mapping
from typing import NewType, TypeVar

import msgspec
from msgspec import field
from msgspec.structs import replace

from namesrv.core.liveness import BrokerKey
from namesrv.plugins.controller.core.persistent_map import PersistentMap

BrokerId = NewType("BrokerId", int)
Epoch = NewType("Epoch", int)
V = TypeVar("V")

FIRST_BROKER_ID = 1
BROKER_ID_MAX = 2**62
"""Ids are Java longs on the wire; the next id must fit as well."""
EPOCH_MAX = 2**31 - 1
"""Epochs are Java ints on the wire."""


class Replica(msgspec.Struct, frozen=True, gc=False):
    """check_code: registerCheckCode "<brokerAddr>;<millis>" of the broker that owns the id."""

    address: str
    check_code: str


class Term(msgspec.Struct, frozen=True, gc=False):
    """The term of an elected master that has not changed the SyncStateSet yet. sync_state_set: the members
    before the election, each of which has all that was acknowledged until the master begins its term."""

    broker_id: int
    master_epoch: int
    sync_state_set: frozenset[int]


class BrokerSet(msgspec.Struct, frozen=True, gc=False):
    """One broker group. Epochs start at 0 (or above those of a cleaned group) and only grow. An id never gets
    a second owner: no id below id_floor is assigned again, because its owner may have been cleaned. term: of
    the last elected master; None: it has changed the SyncStateSet since, or no replica was elected. apply()
    does not decide by it, so states of older releases may lack it."""

    cluster_name: str
    broker_name: str
    next_broker_id: int = FIRST_BROKER_ID
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    master_broker_id: int | None = None
    master_epoch: int = 0
    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int = 0
    id_floor: int = FIRST_BROKER_ID
    term: Term | None = None

    @property
    def is_new(self) -> bool:
        """Whether the group never had a master: no message was acknowledged, and every replica may win."""
        return not self.sync_state_set

    @property
    def master_address(self) -> str | None:
        """brokerAddr of the master; None: there is no master."""
        return None if self.master_broker_id is None else self.replicas[self.master_broker_id].address

    def key(self, broker_id: int) -> BrokerKey:
        """Returns the heartbeat key of a replica."""
        return BrokerKey(self.cluster_name, self.broker_name, broker_id)

    def keys(self) -> list[BrokerKey]:
        """Returns the heartbeat keys of all replicas, by id."""
        return [self.key(broker_id) for broker_id in sorted(self.replicas)]

    def problems(self) -> Iterator[str]:
        """Yields each violated invariant as text."""
        ids = self.replicas
        if ids and not FIRST_BROKER_ID <= min(ids) <= max(ids) < self.next_broker_id:
            yield f"ids {sorted(self.replicas)} are not all between 1 and nextBrokerId {self.next_broker_id}"
        if not FIRST_BROKER_ID <= self.id_floor <= self.next_broker_id <= BROKER_ID_MAX + 1:
            yield f"ids are assigned from {self.id_floor} on, but the next one is {self.next_broker_id}"
        if not self.sync_state_set <= self.replicas.keys():
            unregistered = sorted(self.sync_state_set - self.replicas.keys())
            yield f"brokers {unregistered} of the SyncStateSet are not registered"
        if self.master_broker_id is not None and self.master_broker_id not in self.sync_state_set:
            yield f"master {self.master_broker_id} is not in the SyncStateSet {sorted(self.sync_state_set)}"
        if not 0 <= self.master_epoch <= EPOCH_MAX or not 0 <= self.sync_state_set_epoch <= EPOCH_MAX:
            yield f"epochs {self.master_epoch} and {self.sync_state_set_epoch} are not 31-bit numbers"

    def check_invariants(self) -> None:
        """Raises AssertionError if problems() yields one."""
        assert next(self.problems(), None) is None, (list(self.problems()), self)


class Cleaned(msgspec.Struct, frozen=True, gc=False):
    """What remains of a cleaned group: a new group of this name starts with these epochs and this id, which
    are above all that were used."""

    master_epoch: int
    sync_state_set_epoch: int
    next_broker_id: int


class PastElection(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An election that changed the master; new_master_broker_id None: the master was cleared.

    event_id: its position in the log. Times are ms since 1970 by the proposer's clock; ts 0: not recorded.
    """

    event_id: int
    ts: int
    cluster_name: str
    broker_name: str
    old_master_broker_id: int | None
    new_master_broker_id: int | None
    master_epoch: int
    sync_state_set_epoch: int
    reason: str
    unclean: bool = False
    last_heartbeat_ts: int | None = None
    detected_ts: int | None = None


class State(msgspec.Struct, frozen=True, gc=False):
    """The whole state, by broker name. Never mutated: with_set() returns another State.

    event_count: position in the log of the last applied event, refused ones included (core/apply.py).
    settings: changed at run time (1009), overriding the file of every controller; settings_version counts the
    changes. elections: the newest ones, oldest first (core/history.py). broker_count: replicas of all groups,
    updated by with_set() and without_set(). log_id: names this log, unlike those of controllers that were
    built anew; "" before the first event that has one.
    """

    brokers: Mapping[str, BrokerSet] = field(default_factory=dict)
    event_count: int = 0
    cleaned: Mapping[str, Cleaned] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    settings_version: int = 0
    elections: tuple[PastElection, ...] = ()
    broker_count: int = 0
    log_id: str = ""

    @property
    def size(self) -> int:
        """Number of brokers and cleaned groups, which controllerBrokersMax limits."""
        return self.broker_count + len(self.cleaned)

    def with_set(self, broker_set: BrokerSet) -> "State":
        """Returns the state with this group; drops the Cleaned record of its name."""
        name, before = broker_set.broker_name, self.brokers.get(broker_set.broker_name)
        brokers = PersistentMap.of(self.brokers).set(name, broker_set)
        count = self.broker_count + len(broker_set.replicas) - (0 if before is None else len(before.replicas))
        if name not in self.cleaned:
            return replace(self, brokers=brokers, broker_count=count)
        return replace(self, brokers=brokers, broker_count=count, cleaned=_without(self.cleaned, name))

    def without_set(self, broker_set: BrokerSet) -> "State":
        """Returns the state with this group cleaned. Its epochs are raised by one, so that an event that was
        already proposed is fenced."""
        floor = Cleaned(
            broker_set.master_epoch + 1, broker_set.sync_state_set_epoch + 1, broker_set.next_broker_id
        )
        name = broker_set.broker_name
        brokers = PersistentMap.of(self.brokers).without(name)
        return replace(
            self,
            brokers=brokers,
            broker_count=self.broker_count - len(broker_set.replicas),
            cleaned={**self.cleaned, name: floor},
        )

    def first_broker_id(self, broker_name: str) -> int:
        """Returns the first broker id of a new group of this name."""
        floor = self.cleaned.get(broker_name)
        return FIRST_BROKER_ID if floor is None else floor.next_broker_id

    def new_set(self, cluster_name: str, broker_name: str) -> BrokerSet:
        """Returns an empty group, with epochs and ids above those of a cleaned group of this name."""
        floor = self.cleaned.get(broker_name)
        if floor is None:
            return BrokerSet(cluster_name, broker_name)
        return BrokerSet(
            cluster_name,
            broker_name,
            next_broker_id=floor.next_broker_id,
            master_epoch=floor.master_epoch,
            sync_state_set_epoch=floor.sync_state_set_epoch,
            id_floor=floor.next_broker_id,
        )


def _without(mapping: Mapping[str, V], name: str) -> dict[str, V]:
    return {key: value for key, value in mapping.items() if key != name}
