"""The state as JSON: out of one cluster at any time, into another one that is empty."""

import json
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations import controller as wire
from namesrv.plugins.controller.core.apply import apply
from namesrv.plugins.controller.core.events import (
    AlterSyncStateSet,
    AnyEvent,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    FenceSyncStateSet,
    encode_event,
)
from namesrv.plugins.controller.core.state import (
    BROKER_ID_MAX,
    EPOCH_MAX,
    BrokerSet,
    Cleaned,
    Replica,
    State,
)
from namesrv.plugins.controller.core.state_codec import state_from_json, state_to_json
from namesrv.plugins.controller.core.transfer import (
    IMPORTED_EPOCH_MAX,
    PART_BYTES_MAX,
    check_import,
    import_events,
)
from namesrv.plugins.controller.machine import ControllerMachine
from namesrv.plugins.controller.raft.api import NotActive
from namesrv.plugins.controller.raft.proposals import EVENT_BYTES_MAX
from tests.support.controller_fakes import GROUP, Bench, refused


async def lived(tmp_path: Path) -> Bench:
    """A group with a history, a cleaned one, and a changed setting."""
    bench = Bench(tmp_path)
    await bench.group_of(1)
    await bench.clean(living=True)
    for broker_id in (2, 3):
        await bench.apply(broker_id)
        await bench.register(broker_id)
        await bench.heartbeat(broker_id)
    await bench.elect(2)
    await bench.ask(
        wire.APPLY_BROKER_ID,
        cluster_name="C1",
        broker_name="gone",
        applied_broker_id=1,
        register_check_code="10.0.0.9:1;1",
    )
    await bench.clean(broker_name="gone", living=True)
    await bench.configure("controllerGraceMs=77")
    return bench


async def export(bench: Bench) -> bytes:
    reply = await bench.ask(wire.EXPORT_STATE)
    assert isinstance(reply.body, bytes)
    return reply.body


async def import_into(bench: Bench, data: bytes) -> int:
    reply = await bench.ask(wire.IMPORT_STATE, data)
    assert isinstance(reply.header, wire.ImportStateResponse)
    return reply.header.groups


def without_places(state: State) -> State:
    """event_count, settings_version and log_id are each cluster's own."""
    return replace(state, event_count=0, settings_version=0, log_id="")


async def test_a_cluster_moves(tmp_path: Path) -> None:
    old, new = await lived(tmp_path / "old"), Bench(tmp_path / "new")
    data = await export(old)
    assert await import_into(new, data) == 1
    assert without_places(new.plugin.machine.state) == without_places(old.plugin.machine.state)
    assert new.plugin.config.controller_grace_ms == 77
    await new.heartbeat(2)
    await new.heartbeat(3)
    assert (await new.elect(3)).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST, "the master stays"
    assert (await refused(new.apply(1))).code == ResponseCode.CONTROLLER_BROKER_ID_INVALID


async def test_export_needs_no_leader(tmp_path: Path) -> None:
    bench = await lived(tmp_path)
    bench.replicator.active = False
    assert json.loads(await export(bench))["brokers"][0]["broker_name"] == GROUP
    assert (await refused(import_into(bench, await export(bench)))).code == 2007


async def test_an_import_that_broke_off_is_finished_by_repeating_it(tmp_path: Path) -> None:
    data = state_to_json(many_groups(400))
    bench = Bench(tmp_path)
    events = len(list(import_events(state_from_json(data), 1_000)))
    assert events > 2
    real = bench.replicator.append
    for after in range(events):
        left = after

        async def append(event: bytes) -> object:
            nonlocal left
            left -= 1
            return NotActive(None) if left < 0 else await real(event)

        bench.replicator.append = append  # type: ignore[assignment,method-assign]
        assert (await refused(import_into(bench, data))).code == ResponseCode.CONTROLLER_NOT_LEADER
    bench.replicator.append = real  # type: ignore[method-assign]
    await import_into(bench, data)
    assert without_places(bench.plugin.machine.state) == without_places(state_from_json(data))


async def test_what_lived_on_since_the_first_try_stays(tmp_path: Path) -> None:
    old, new = await lived(tmp_path / "old"), Bench(tmp_path / "new")
    data = await export(old)
    await import_into(new, data)
    await new.heartbeat(3)
    await new.heartbeat(2)
    await new.alter([2, 3], master=2, epoch=3, set_epoch=new.broker_set.sync_state_set_epoch)
    before = new.broker_set
    await import_into(new, data)
    assert new.broker_set == before


async def test_only_into_an_empty_cluster(tmp_path: Path) -> None:
    data = await export(await lived(tmp_path / "old"))
    other = Bench(tmp_path / "new")
    await other.group_of(1)
    error = await refused(import_into(other, data))
    assert error.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert "import into an empty cluster" in error.remark
    unverified_peer = Bench(tmp_path / "third")
    await unverified_peer.ask(
        wire.APPLY_BROKER_ID,
        cluster_name="C1",
        broker_name="unknown",
        applied_broker_id=1,
        register_check_code="10.0.0.9:1;1",
    )
    assert "does not have: ['unknown']" in (await refused(import_into(unverified_peer, data))).remark
    await unverified_peer.clean(broker_name="unknown", living=True)
    assert "does not have" in (await refused(import_into(unverified_peer, data))).remark


def group(**values: object) -> BrokerSet:
    replicas = {each: Replica(f"h{each}:1", f"h{each}:1;0") for each in (1, 2)}
    return replace(BrokerSet("C", "g", 3, replicas, 1, 3, frozenset({1}), 5), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"next_broker_id": 2}, "nextBrokerId 2"),
        ({"next_broker_id": 2**63}, "the next one is"),
        ({"id_floor": 9}, "assigned from 9"),
        ({"sync_state_set": frozenset({1, 9})}, "[9] of the SyncStateSet are not registered"),
        ({"master_broker_id": 2}, "master 2 is not in the SyncStateSet"),
        ({"master_epoch": -1}, "not 31-bit"),
        ({"sync_state_set_epoch": 2**31}, "not 31-bit"),
        ({"broker_name": ""}, "both need a name"),
        ({"cluster_name": ""}, "both need a name"),
        ({"master_epoch": EPOCH_MAX}, f"above {IMPORTED_EPOCH_MAX}"),
        ({"sync_state_set_epoch": IMPORTED_EPOCH_MAX + 1}, f"above {IMPORTED_EPOCH_MAX}"),
    ],
)
async def test_nothing_unsound_comes_in(tmp_path: Path, values: dict[str, object], says: str) -> None:
    bench = Bench(tmp_path)
    error = await refused(import_into(bench, state_to_json(State().with_set(group(**values)))))
    assert error.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert says in error.remark
    assert bench.replicator.events == []


@pytest.mark.parametrize(
    "floor",
    [
        Cleaned(EPOCH_MAX + 1, 0, 1),
        Cleaned(IMPORTED_EPOCH_MAX + 1, 0, 1),
        Cleaned(0, IMPORTED_EPOCH_MAX + 1, 1),
        Cleaned(0, 0, BROKER_ID_MAX + 2),
        Cleaned(-1, 0, 1),
        Cleaned(0, 0, 0),
    ],
)
async def test_no_unsound_floor_comes_in(tmp_path: Path, floor: Cleaned) -> None:
    bench = Bench(tmp_path)
    error = await refused(import_into(bench, state_to_json(State(cleaned={"x": floor}))))
    assert error.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert "cleaned group x: a number " in error.remark
    assert bench.replicator.events == []


@pytest.mark.parametrize("data", [b"{", b"{}", b'{"v":99}', b'{"v":2,"brokers":[{}]}', b"[]"])
async def test_not_a_state_at_all(tmp_path: Path, data: bytes) -> None:
    error = await refused(import_into(Bench(tmp_path), data))
    assert error.remark.startswith("not the state of a controller")


async def test_settings_that_no_controller_takes(tmp_path: Path) -> None:
    data = state_to_json(State(settings={"controllerGraceMs": "-5"}))
    assert "greater than or equal to 0" in (await refused(import_into(Bench(tmp_path), data))).remark


def many_groups(count: int) -> State:
    state = State(settings={"controllerGraceMs": "5"}, settings_version=1)
    brokers = {f"g{number}": replace(group(), broker_name=f"g{number}") for number in range(count)}
    return replace(state, brokers=brokers)


def test_no_part_is_too_large_for_the_log() -> None:
    incoming = many_groups(3_000)
    state, events = State(), list(import_events(incoming, 6_000))
    for event in events:
        assert len(encode_event(event)) < 2 * PART_BYTES_MAX < EVENT_BYTES_MAX
        state = apply(state, event).state
    assert state.brokers == incoming.brokers
    huge = group(replicas={each: Replica("h" * 500, "c" * 500) for each in range(1, 300)}, next_broker_id=300)
    refusal = check_import(State(), State().with_set(huge), 1_000)
    assert refusal is not None and "more than" in refusal.remark


def test_a_part_that_is_unsound_is_refused_by_apply_too() -> None:
    """The leader checked with its own program; a follower may be stricter, but never silent."""
    (event,) = import_events(State().with_set(group()), 2)
    (record,) = event.brokers
    unsound = msgspec.structs.replace(event, brokers=(msgspec.structs.replace(record, master_epoch=-1),))
    applied = apply(State(), unsound)
    assert applied.refused is not None and applied.state == State()


def at_the_end(**values: object) -> ControllerMachine:
    """A member whose state, of an earlier release, has a group at the last epoch, and a floor above it."""
    machine = ControllerMachine()
    full = group(**({"master_epoch": EPOCH_MAX, "sync_state_set_epoch": EPOCH_MAX} | values))
    floors = {"x": Cleaned(EPOCH_MAX + 1, 0, 1), "y": Cleaned(0, EPOCH_MAX + 1, 1)}
    machine.restore(state_to_json(replace(State().with_set(full), cleaned=floors)))
    return machine


LAST = {"expected_master_epoch": EPOCH_MAX, "expected_sync_state_set_epoch": EPOCH_MAX}


@pytest.mark.parametrize(
    "event",
    [
        ElectMaster(broker_name="g", new_master_broker_id=2, unclean=True, **LAST),
        ElectMaster(broker_name="g", new_master_broker_id=None, **LAST),
        AlterSyncStateSet(broker_name="g", master_broker_id=1, new_sync_state_set=(1, 2), **LAST),
        FenceSyncStateSet(broker_name="g", master_broker_id=1, **LAST),
        CleanBrokerData(broker_name="g", broker_ids=(2,), **LAST),
        *(
            ApplyBrokerId(
                cluster_name="C",
                broker_name=name,
                broker_id=1,
                broker_address="h:1",
                register_check_code="h:1;1",
            )
            for name in "xy"
        ),
    ],
    ids=lambda event: type(event).__name__,
)
def test_after_the_last_epoch_nothing_that_needs_another_one(event: AnyEvent) -> None:
    """What overflows is refused: an exception would end every controller, and again at each restart."""
    machine = at_the_end(sync_state_set=frozenset({1, 2}) if isinstance(event, CleanBrokerData) else {1})
    before = machine.state
    applied = machine.apply(encode_event(event))
    assert applied.refused is not None and "another brokerName" in applied.refused.remark
    assert machine.state == before


def test_a_group_after_its_last_epoch_can_still_be_cleaned() -> None:
    machine = at_the_end()
    event = CleanBrokerData(broker_name="g", broker_ids=(1, 2), **LAST)
    assert machine.apply(encode_event(event)).refused is None
    assert not machine.state.brokers


async def test_an_election_that_is_refused_is_tried_again_later(tmp_path: Path) -> None:
    """And not at once, for ever: each try is an entry of the log."""
    bench = Bench(tmp_path)
    bench.plugin.machine.restore(state_to_json(State().with_set(group(master_epoch=EPOCH_MAX))))
    await bench.run_elections()
    bench.now_ms += bench.plugin.config.scan_inactive_master_interval  # so long a dead master is kept
    await bench.run_elections()
    retry, tried = bench.plugin.elections.retries["g"], len(bench.replicator.events)
    assert "another brokerName" in retry.reason and tried == 1
    await bench.run_elections()
    assert len(bench.replicator.events) == tried and bench.plugin.elections.retries["g"] == retry
