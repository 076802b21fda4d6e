"""Any events in any order: every replica of the machine agrees, and what must never happen does not."""

from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from namesrv.plugins.controller.core.events import (
    AlterSyncStateSet,
    AnyEvent,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    FenceSyncStateSet,
    ImportState,
    UpdateBrokerAddress,
    UpdateConfig,
    decode_event,
    encode_event,
)
from namesrv.plugins.controller.core.history import ELECTIONS_PER_GROUP_MAX
from namesrv.plugins.controller.core.state import BrokerSet, Cleaned, Replica, State
from namesrv.plugins.controller.core.state_codec import CleanedRecord, set_record
from namesrv.plugins.controller.machine import ControllerMachine
from tests.support.slices import share

ids = st.integers(min_value=0, max_value=4)
epochs = st.integers(min_value=0, max_value=4)
names = st.sampled_from(["a", "b"])
times = st.sampled_from([1, 1, 0])

events: st.SearchStrategy[AnyEvent] = st.one_of(
    st.builds(
        ApplyBrokerId,
        ts=times,
        broker_name=names,
        cluster_name=st.sampled_from(["C1", "C1", "C1", "C2"]),
        broker_id=ids,
        broker_address=st.sampled_from(["h1:1", "h2:1"]),
        register_check_code=st.sampled_from(["h1:1;0", "h2:1;0"]),
    ),
    st.builds(
        UpdateBrokerAddress,
        ts=times,
        broker_name=names,
        broker_id=ids,
        broker_address=st.sampled_from(["h1:1", "h2:1", "h3:1"]),
        expected_address=st.sampled_from(["h1:1", "h2:1", "h3:1"]),
    ),
    st.builds(
        AlterSyncStateSet,
        ts=times,
        broker_name=names,
        master_broker_id=ids,
        new_sync_state_set=st.lists(ids, max_size=3).map(tuple),
        expected_master_epoch=epochs,
        expected_sync_state_set_epoch=epochs,
    ),
    st.builds(
        ElectMaster,
        ts=times,
        broker_name=names,
        new_master_broker_id=st.none() | ids,
        expected_master_epoch=epochs,
        expected_sync_state_set_epoch=epochs,
        unclean=st.booleans(),
        kept=st.just(msgspec.UNSET) | st.lists(ids, max_size=3).map(tuple),
        reason=st.sampled_from(["", "first election"]),
    ),
    st.builds(
        FenceSyncStateSet,
        ts=times,
        broker_name=names,
        master_broker_id=ids,
        expected_master_epoch=epochs,
        expected_sync_state_set_epoch=epochs,
        master_address=st.none() | st.sampled_from(["h1:1", "h3:1"]),
    ),
    st.builds(
        CleanBrokerData,
        ts=times,
        broker_name=names,
        broker_ids=st.lists(ids, max_size=4).map(tuple),
        expected_master_epoch=epochs,
        expected_sync_state_set_epoch=epochs,
    ),
    st.builds(
        UpdateConfig,
        ts=times,
        changes=st.dictionaries(st.sampled_from(["x", "y"]), st.none() | st.sampled_from(["1", "2"])),
        expected_settings_version=epochs,
    ),
    st.builds(
        ImportState,
        ts=times,
        brokers=st.lists(
            st.builds(
                lambda name, epoch, members: set_record(
                    BrokerSet(
                        "C1",
                        name,
                        4,
                        {each: Replica("h1:1", f"h{each}:1;0") for each in (1, 2, 3)},
                        min(members, default=None),
                        epoch,
                        members,
                        epoch,
                    )
                ),
                names,
                epochs,
                st.frozensets(st.integers(1, 4), max_size=2),
            ),
            max_size=2,
        ).map(tuple),
        cleaned=st.lists(st.builds(CleanedRecord, names, epochs, epochs, st.integers(1, 5)), max_size=1).map(
            tuple
        ),
        settings=st.dictionaries(st.sampled_from(["x", "y"]), st.just("3")),
    ),
)


def place(state: State, name: str) -> Cleaned:
    """How far a name has come, as a group or as what is kept of one."""
    group = state.brokers.get(name)
    if group is None:
        return state.cleaned.get(name, Cleaned(0, 0, 1))
    return Cleaned(group.master_epoch, group.sync_state_set_epoch, group.next_broker_id)


@dataclass
class Auditor:
    """Watches from outside: one master per masterEpoch, one owner per id, epochs that only grow, whatever is
    cleaned. A group is in one place only: there, or cleaned."""

    masters: dict[tuple[str, int], int | None] = field(default_factory=dict)
    owners: dict[tuple[str, int], str] = field(default_factory=dict)

    def saw(self, before: State, after: State) -> None:
        assert not after.brokers.keys() & after.cleaned.keys()
        for name in {*before.brokers, *before.cleaned}:
            was, now = place(before, name), place(after, name)
            assert now.master_epoch >= was.master_epoch
            assert now.sync_state_set_epoch >= was.sync_state_set_epoch
            assert now.next_broker_id >= was.next_broker_id
        for name, group in after.brokers.items():
            group.check_invariants()
            old = before.brokers.get(name)
            if old is not None:
                assert group.cluster_name == old.cluster_name
                assert group.sync_state_set or not old.sync_state_set, "what was acknowledged is nowhere"
                if group.sync_state_set != old.sync_state_set:
                    assert group.sync_state_set_epoch > old.sync_state_set_epoch
            key = (name, group.master_epoch)
            assert self.masters.setdefault(key, group.master_broker_id) == group.master_broker_id
            for broker_id, replica in group.replicas.items():
                assert self.owners.setdefault((name, broker_id), replica.check_code) == replica.check_code
        assert len(after.elections) <= 2 * ELECTIONS_PER_GROUP_MAX
        assert after.elections[: len(before.elections)] == before.elections


def fitting(event: AnyEvent, state: State) -> AnyEvent:
    """As a controller proposes it: it believes in the state as it is."""
    if isinstance(event, UpdateConfig):
        return msgspec.structs.replace(event, expected_settings_version=state.settings_version)
    group = None if isinstance(event, ImportState) else state.brokers.get(event.broker_name)
    if group is None:
        return event
    believed = {
        "expected_master_epoch": group.master_epoch,
        "expected_sync_state_set_epoch": group.sync_state_set_epoch,
        "master_broker_id": group.master_broker_id or 0,
    }
    return msgspec.structs.replace(
        event, **{key: value for key, value in believed.items() if key in event.__struct_fields__}
    )


def settled(name: str) -> list[tuple[AnyEvent, bool]]:
    """Three brokers join, the first leads, two are in sync."""
    joins: list[AnyEvent] = [
        ApplyBrokerId(
            ts=1,
            broker_name=name,
            cluster_name="C1",
            broker_id=each,
            broker_address="h1:1",
            register_check_code="h1:1;0",
        )
        for each in (1, 2, 3)
    ]
    elect = ElectMaster(
        ts=1,
        broker_name=name,
        new_master_broker_id=1,
        expected_master_epoch=0,
        expected_sync_state_set_epoch=0,
    )
    alter = AlterSyncStateSet(
        ts=1,
        broker_name=name,
        master_broker_id=1,
        new_sync_state_set=(1, 2),
        expected_master_epoch=0,
        expected_sync_state_set_epoch=0,
    )
    return [(event, True) for event in (*joins, elect, alter)]


begun = st.sampled_from([[], settled("a"), settled("a"), settled("a") + settled("b")])
more = st.lists(st.tuples(events, st.sampled_from([True, True, True, False])), max_size=30)
log_ids = st.sampled_from([msgspec.UNSET, msgspec.UNSET, "", "n0-1", "n0-1", "n1-2"])
histories = st.builds(
    lambda first, then, ids: [
        (msgspec.structs.replace(event, log_id=ids[number % len(ids)]), fits)
        for number, (event, fits) in enumerate(first + then)
    ],
    begun,
    more,
    st.lists(log_ids, min_size=1, max_size=5),
)


@settings(max_examples=share(500), deadline=None)
@given(histories)
def test_invariants_hold_for_any_history(history: list[tuple[AnyEvent, bool]]) -> None:
    machine, auditor = ControllerMachine(), Auditor()
    for event, fits in history:
        before = machine.state
        event = fitting(event, before) if fits else event
        applied = machine.apply(encode_event(event))
        if applied.refused is not None:
            assert machine.state.brokers is before.brokers
        assert machine.state.event_count == before.event_count + (event.ts > 0)
        assert machine.state.broker_count == sum(len(g.replicas) for g in machine.state.brokers.values())
        auditor.saw(before, machine.state)
        named = event.ts > 0 and event.log_id is not msgspec.UNSET and event.log_id
        assert machine.state.log_id == (named or before.log_id), "never lost, and undated events name nothing"


@settings(max_examples=share(200), deadline=None)
@given(histories, st.integers(min_value=0, max_value=60))
def test_a_snapshot_anywhere_changes_nothing(history: list[tuple[AnyEvent, bool]], at: int) -> None:
    one, other = ControllerMachine(), ControllerMachine()
    for number, (event, fits) in enumerate(history):
        event = fitting(event, one.state) if fits else event
        if number == at:
            fresh = ControllerMachine()
            fresh.restore(other.snapshot())
            other = fresh
        first, second = one.apply(encode_event(event)), other.apply(encode_event(event))
        assert first == second
    assert one.snapshot() == other.snapshot()


@settings(max_examples=share(200), deadline=None)
@given(histories)
def test_applied_twice_is_applied_once(history: list[tuple[AnyEvent, bool]]) -> None:
    """A repeated proposal (its first answer was lost) never does more than the first did."""
    machine = ControllerMachine()
    for event, fits in history:
        event = fitting(event, machine.state) if fits else event
        machine.apply(encode_event(event))
        once = msgspec.structs.replace(machine.state, event_count=0)
        machine.apply(encode_event(event))
        assert msgspec.structs.replace(machine.state, event_count=0) == once


@given(events)
def test_events_survive_the_log(event: AnyEvent) -> None:
    assert decode_event(encode_event(event)) == event


@given(st.binary(max_size=60))
def test_garbage_is_refused(data: bytes) -> None:
    machine = ControllerMachine()
    assert machine.apply(data).refused is not None
    assert machine.state == State()
