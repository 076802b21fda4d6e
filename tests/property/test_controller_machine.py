"""Any events in any order: every replica of the machine agrees, and what must never happen does not."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from namesrv.plugins.controller.core.events import (
    AlterSyncStateSet,
    AnyEvent,
    ApplyBrokerId,
    ElectMaster,
    UpdateBrokerAddress,
    decode_event,
    encode_event,
)
from namesrv.plugins.controller.core.state import State
from namesrv.plugins.controller.machine import ControllerMachine

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
    ),
)


@dataclass
class Auditor:
    """Watches from outside: one master per masterEpoch, one owner per id, epochs that only grow."""

    masters: dict[tuple[str, int], int | None] = field(default_factory=dict)
    owners: dict[tuple[str, int], str] = field(default_factory=dict)

    def saw(self, before: State, after: State) -> None:
        for name, group in after.brokers.items():
            group.check_invariants()
            old = before.brokers.get(name)
            if old is not None:
                assert group.cluster_name == old.cluster_name
                assert group.master_epoch >= old.master_epoch
                assert group.sync_state_set_epoch >= old.sync_state_set_epoch
                assert group.next_broker_id >= old.next_broker_id
                if group.sync_state_set != old.sync_state_set:
                    assert group.sync_state_set_epoch > old.sync_state_set_epoch
            key = (name, group.master_epoch)
            assert self.masters.setdefault(key, group.master_broker_id) == group.master_broker_id
            for broker_id, replica in group.replicas.items():
                assert self.owners.setdefault((name, broker_id), replica.check_code) == replica.check_code


@settings(max_examples=300, deadline=None)
@given(st.lists(events, max_size=40))
def test_invariants_hold_for_any_history(history: list[AnyEvent]) -> None:
    machine, auditor = ControllerMachine(), Auditor()
    for event in history:
        before = machine.state
        applied = machine.apply(encode_event(event))
        if applied.refused is not None:
            assert machine.state.brokers is before.brokers
        assert machine.state.event_count == before.event_count + (event.ts > 0)
        auditor.saw(before, machine.state)


@settings(max_examples=100, deadline=None)
@given(st.lists(events, max_size=30), st.integers(min_value=0, max_value=30))
def test_a_snapshot_anywhere_changes_nothing(history: list[AnyEvent], at: int) -> None:
    one, other = ControllerMachine(), ControllerMachine()
    for number, event in enumerate(history):
        if number == at:
            fresh = ControllerMachine()
            fresh.restore(other.snapshot())
            other = fresh
        first, second = one.apply(encode_event(event)), other.apply(encode_event(event))
        assert first == second
    assert one.snapshot() == other.snapshot()


@settings(max_examples=100, deadline=None)
@given(st.lists(events, max_size=30))
def test_applied_twice_is_applied_once(history: list[AnyEvent]) -> None:
    """A repeated proposal (its first answer was lost) never does more than the first did."""
    machine = ControllerMachine()
    for event in history:
        machine.apply(encode_event(event))
        once = machine.state.brokers
        machine.apply(encode_event(event))
        assert machine.state.brokers == once


@given(events)
def test_events_survive_the_log(event: AnyEvent) -> None:
    assert decode_event(encode_event(event)) == event


@given(st.binary(max_size=60))
def test_garbage_is_refused(data: bytes) -> None:
    machine = ControllerMachine()
    assert machine.apply(data).refused is not None
    assert machine.state == State()
