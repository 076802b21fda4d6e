"""What a controller writes down about its log, and that it writes it once."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from keelmq.remoting.records import ClockSample, ControllerEvent, GroupView, Record, decode_record
from namesrv.core.liveness import BrokerKey
from namesrv.plugins.controller.core.apply import apply
from namesrv.plugins.controller.core.clock_offsets import ClockOffsets
from namesrv.plugins.controller.core.events import (
    AlterSyncStateSet,
    AnyEvent,
    ApplyBrokerId,
    CleanBrokerData,
    ElectMaster,
    UpdateBrokerAddress,
    decode_event,
    encode_event,
)
from namesrv.plugins.controller.core.state import State
from namesrv.plugins.controller.machine import ControllerMachine
from namesrv.plugins.controller.raft.api import AppendOutcome, Committed
from namesrv.plugins.controller.requests import heartbeats
from namesrv.plugins.controller.telemetry import ControllerTelemetry, record_of, view_of
from tests.support.controller_fakes import CLUSTER, GROUP, Bench, config, turns

HOUR_MS = 3_600_000
START_MS = 472_222 * HOUR_MS  # a full hour of 2023
SYNCED_AT = 1_000_000


def joins(broker_id: int, *, ts: int, name: str = GROUP, cluster: str = CLUSTER) -> ApplyBrokerId:
    address = f"h{broker_id}:1"
    return ApplyBrokerId(
        ts=ts,
        broker_name=name,
        cluster_name=cluster,
        broker_id=broker_id,
        broker_address=address,
        register_check_code=f"{address};1",
    )


def moves(broker_id: int, *, ts: int) -> UpdateBrokerAddress:
    old = f"h{broker_id}:1"
    return UpdateBrokerAddress(
        ts=ts, broker_name=GROUP, broker_id=broker_id, broker_address="h9:1", expected_address=old
    )


def alters(*members: int, epoch: int, set_epoch: int, ts: int, reason: str = "") -> AlterSyncStateSet:
    return AlterSyncStateSet(
        ts=ts,
        broker_name=GROUP,
        master_broker_id=1,
        new_sync_state_set=members,
        expected_master_epoch=epoch,
        expected_sync_state_set_epoch=set_epoch,
        reason=reason,
    )


def elects(winner: int | None, *, epoch: int, set_epoch: int, ts: int, **values: object) -> ElectMaster:
    event = ElectMaster(
        ts=ts,
        broker_name=GROUP,
        new_master_broker_id=winner,
        expected_master_epoch=epoch,
        expected_sync_state_set_epoch=set_epoch,
    )
    return msgspec.structs.replace(event, **values)


def a_history(start_ms: int = START_MS) -> list[AnyEvent]:
    """Two replicas join, 1 is elected, 2 catches up, 1 is lost, 2 follows it. A late request is refused."""
    return [
        joins(1, ts=start_ms),
        joins(2, ts=start_ms + 1),
        elects(1, epoch=0, set_epoch=0, ts=start_ms + 2, reason="first election"),
        alters(1, 2, epoch=1, set_epoch=1, ts=start_ms + 3, reason="caught_up"),
        elects(2, epoch=1, set_epoch=2, ts=start_ms + 4, reason="master 1 is not active"),
        alters(1, epoch=1, set_epoch=2, ts=start_ms + 5, reason="lag"),
    ]


class Node:
    """A controller's telemetry behind its machine, with a wall clock of ours, in a directory that stays."""

    def __init__(self, directory: Path, now_ms: int = START_MS, node: str = "n0") -> None:
        self.now_ms = now_ms
        self.telemetry = ControllerTelemetry(
            config(controllerStorePath=directory, controllerDLegerSelfId=node), lambda: self.now_ms
        )
        self.telemetry.resume()
        self.machine = ControllerMachine(self.telemetry.applied, self.telemetry.restored)

    def replay(self, events: Iterable[AnyEvent]) -> None:
        for event in events:
            self.machine.apply(encode_event(event))

    async def stop(self) -> None:
        await self.telemetry.writer.close()


async def one_life(directory: Path, events: Iterable[AnyEvent], now_ms: int = START_MS) -> Node:
    node = Node(directory, now_ms)
    node.replay(events)
    await node.stop()
    return node


def files(directory: Path) -> list[Path]:
    return sorted((directory / "telemetry" / "controller_event").rglob("*.jsonl*"))


def records_of(path: Path) -> list[ControllerEvent]:
    decoded: list[Record] = [decode_record(line) for line in path.read_bytes().splitlines()]
    return [each for each in decoded if isinstance(each, ControllerEvent)]


def written(directory: Path) -> list[ControllerEvent]:
    return [record for path in files(directory) for record in records_of(path)]


def events_in(records: Iterable[ControllerEvent]) -> list[int]:
    return [record.event_id for record in records if record.type != "snapshot"]


# ---------------------------------------------------------------------- the record of an event


def test_the_record_of_each_event() -> None:
    state, records = State(), []
    for event in [*a_history(), moves(2, ts=START_MS + 6)]:
        applied = apply(state, event)
        state = applied.state
        records.append(record_of(event, applied, "n0"))
    join, _, first, grown, elected, late, moved = records
    assert [each.event_id for each in records] == [1, 2, 3, 4, 5, 6, 7]
    assert {(each.cluster_name, each.broker_name, each.controller_id) for each in records} == {
        (CLUSTER, GROUP, "n0")
    }
    assert (join.type, join.before, join.reason) == ("applyBrokerId", None, "")
    assert join.after == GroupView(
        master_broker_id=None, master_epoch=0, sync_state_set=(), sync_state_set_epoch=0, replicas=(1,)
    )
    assert (first.type, first.reason, first.unclean) == ("electMaster", "first election", False)
    assert grown.type == "alterSyncStateSet"
    assert grown.reason == "caught_up"
    assert grown.before == first.after
    assert grown.after is not None and grown.after.sync_state_set == (1, 2)
    assert elected.after == GroupView(
        master_broker_id=2, master_epoch=2, sync_state_set=(2,), sync_state_set_epoch=3, replicas=(1, 2)
    )
    assert late.refused is not None and late.refused.startswith("CONTROLLER_INVALID_MASTER: Rejecting")
    assert late.before == late.after == elected.after
    assert (moved.type, moved.before, moved.refused) == ("updateBrokerAddress", moved.after, None)
    assert [each.ts for each in records] == list(range(START_MS, START_MS + 7))


async def test_what_a_group_looked_like_is_remembered_as_long_as_there_is_the_group(tmp_path: Path) -> None:
    """A record shows the group before and after, and what was after the last event is before the next."""
    node = await one_life(tmp_path, a_history())
    group = node.machine.state.brokers[GROUP]
    kept = node.telemetry._views[GROUP]
    assert kept == (group, view_of(group))
    clean = CleanBrokerData(
        ts=START_MS + 9,
        broker_name=GROUP,
        broker_ids=tuple(group.replicas),
        expected_master_epoch=group.master_epoch,
        expected_sync_state_set_epoch=group.sync_state_set_epoch,
    )
    node.replay([clean])
    assert not node.machine.state.brokers
    assert not node.telemetry._views


def test_the_record_of_an_unclean_election_and_of_a_lost_master() -> None:
    state = State()
    for event in a_history()[:3]:
        state = apply(state, event).state
    heard_ts, detected_ts = START_MS - 900, START_MS - 10
    event = elects(
        2,
        epoch=1,
        set_epoch=1,
        ts=START_MS,
        unclean=True,
        last_heartbeat_ts=heard_ts,
        detected_ts=detected_ts,
    )
    record = record_of(event, apply(state, event), "n0")
    assert record.after is not None and record.after.master_broker_id == 2
    assert record.unclean
    assert (record.last_heartbeat_ts, record.detected_ts) == (heard_ts, detected_ts)


def test_the_record_of_an_unknown_group() -> None:
    elected = elects(1, epoch=0, set_epoch=0, ts=1)
    record = record_of(elected, apply(State(), elected), "n0")
    assert (record.cluster_name, record.before, record.after) == ("", None, None)
    assert record.refused is not None
    second = joins(2, ts=1)
    assert record_of(second, apply(State(), second), "n0").cluster_name == CLUSTER


def test_a_cleared_master_is_none() -> None:
    state = State()
    for event in a_history()[:3]:
        state = apply(state, event).state
    cleared = elects(None, epoch=1, set_epoch=1, ts=1, reason="nobody")
    record = record_of(cleared, apply(state, cleared), "n0")
    assert record.after is not None and record.after.master_broker_id is None


# ---------------------------------------------------------------------- files


async def test_a_file_begins_with_the_groups_as_they_are(tmp_path: Path) -> None:
    node = await one_life(tmp_path, a_history())
    (path,) = files(tmp_path)
    assert path.name == f"controller-n0-{START_MS}.jsonl"
    head, *rest = records_of(path)
    assert (head.type, head.event_id, head.before) == ("snapshot", 6, None)
    assert head.after == view_of(node.machine.state.brokers[GROUP])
    assert events_in(rest) == [1, 2, 3, 4, 5, 6]


async def test_a_replay_writes_nothing_twice(tmp_path: Path) -> None:
    history = a_history()
    await one_life(tmp_path, history[:3], START_MS)
    await one_life(tmp_path, history[:3], START_MS + 1_000)
    assert len(files(tmp_path)) == 1, "nothing new, no file"
    await one_life(tmp_path, history, START_MS + 2_000)
    assert events_in(written(tmp_path)) == [1, 2, 3, 4, 5, 6]
    head = records_of(files(tmp_path)[1])[0]
    assert (head.type, head.event_id) == ("snapshot", 6)


async def test_a_replay_after_a_snapshot_of_the_log_writes_nothing_twice(tmp_path: Path) -> None:
    history = a_history()
    snapshot = (await one_life(tmp_path, history[:3])).machine.snapshot()
    await one_life(tmp_path, history[:4], START_MS + 500)
    node = Node(tmp_path, START_MS + 1_000)
    node.machine.restore(snapshot)
    node.replay(history[3:])
    await node.stop()
    assert events_in(written(tmp_path)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "damage",
    [b'{"record":"controller_event","v":1,"ts":', b"\x00" * 40, b'{"record":"dance","v":1}\n', b"\xff\n\n"],
    ids=["half a line", "zeros", "foreign", "no text"],
)
async def test_a_damaged_end_is_skipped(tmp_path: Path, damage: bytes) -> None:
    await one_life(tmp_path, a_history()[:4])
    (path,) = files(tmp_path)
    path.rename(path.with_name(path.name + ".open"))  # as a crash leaves it
    with path.with_name(path.name + ".open").open("ab") as file:
        file.write(damage)
    await one_life(tmp_path, a_history(), START_MS + 1_000)
    assert events_in(records_of(files(tmp_path)[-1])) == [5, 6]


async def test_a_file_that_cannot_be_read_costs_duplicates_only(tmp_path: Path) -> None:
    await one_life(tmp_path, a_history()[:4])
    files(tmp_path)[0].write_bytes(b"\x00" * 1_000)
    await one_life(tmp_path, a_history(), START_MS + 1_000)
    assert events_in(records_of(files(tmp_path)[1])) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("lines", [1, 3])
async def test_half_written_batches_are_completed(tmp_path: Path, lines: int) -> None:
    """The head of a file knows more than its lines: only lines count as written."""
    await one_life(tmp_path, a_history(), START_MS + 500)
    (path,) = files(tmp_path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    await one_life(tmp_path, a_history(), START_MS + 1_000)
    assert events_in(written(tmp_path)) == [1, 2, 3, 4, 5, 6]


async def test_another_controllers_files_in_the_same_folder_are_not_ours(tmp_path: Path) -> None:
    other = Node(tmp_path, node="n1")
    other.replay(a_history())
    await other.stop()
    await one_life(tmp_path, a_history()[:2])
    assert [each.controller_id for each in written(tmp_path) if each.type != "snapshot"] == [
        *["n0"] * 2, *["n1"] * 6
    ]  # fmt: skip


async def test_the_events_of_a_new_log_are_written_though_their_numbers_are_old(tmp_path: Path) -> None:
    """Somebody deleted the controllers' logs and kept the telemetry."""
    await one_life(tmp_path, a_history())
    await one_life(tmp_path, a_history(START_MS + 60_000)[:3], START_MS + 60_000)
    assert events_in(records_of(files(tmp_path)[1])) == [1, 2, 3]


def of_log(log_id: str, events: Iterable[AnyEvent]) -> list[AnyEvent]:
    return [msgspec.structs.replace(each, log_id=log_id) for each in events]


async def test_a_new_log_is_told_from_the_old_one_by_its_name(tmp_path: Path) -> None:
    """Even if the clock was set back: with the time alone its events would count as written."""
    await one_life(tmp_path, of_log("n0-1", a_history(START_MS + 60_000)), START_MS + 60_000)
    await one_life(tmp_path, of_log("n0-1", a_history(START_MS + 60_000)), START_MS + 60_001)
    assert len(files(tmp_path)) == 1, "the replay of a restart writes nothing again"
    await one_life(tmp_path, of_log("n1-2", a_history()[:3]), START_MS + 60_002)
    records = written(tmp_path)
    found = [(each.log_id, each.event_id) for each in records if each.type != "snapshot"]
    assert sorted(found) == [*(("n0-1", number) for number in range(1, 7)), *(("n1-2", n) for n in (1, 2, 3))]


async def test_a_snapshot_of_a_new_log_is_told_before_its_next_event(tmp_path: Path) -> None:
    """Its numbers are below those in the files of the old one."""
    await one_life(tmp_path, of_log("n0-1", a_history()))
    leader = ControllerMachine()
    for event in of_log("n1-2", a_history(START_MS + 9_000)[:2]):
        leader.apply(encode_event(event))
    node = Node(tmp_path, START_MS + 9_500)
    node.machine.restore(leader.snapshot())
    node.replay(of_log("n1-2", a_history(START_MS + 9_000)[2:3]))
    await node.stop()
    last = [each for each in written(tmp_path) if each.log_id == "n1-2"]
    assert [(each.type, each.event_id) for each in last][-2:] == [("snapshot", 2), ("electMaster", 3)]


async def test_the_first_active_controller_names_the_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "a")
    await bench.group_of(1, 2)
    state = bench.plugin.machine.state
    assert state.log_id.startswith("n0-") and state.event_count > 1
    assert {decode_event(each).log_id for each in bench.replicator.events} == {state.log_id}
    restarted = Bench(tmp_path / "a")
    restarted.plugin.machine.restore(bench.plugin.machine.snapshot())
    await restarted.plugin.proposer.propose(a_history()[1])
    assert restarted.plugin.machine.state.log_id == state.log_id


async def test_a_name_that_an_earlier_leader_gave_is_found_by_the_barrier(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def barrier() -> AppendOutcome:
        """The entry of the leader before was committed, and is applied only now."""
        bench.plugin.machine.apply(encode_event(of_log("n9-1", a_history())[0]))
        return Committed(None)

    with patch.object(bench.replicator, "barrier", barrier):
        await bench.plugin.proposer.propose(a_history()[1])
    assert bench.plugin.machine.state.log_id == "n9-1"
    assert decode_event(bench.replicator.events[-1]).log_id == "n9-1"


async def test_two_first_events_at_once_have_one_name(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.replicator.before_apply = asyncio.Event()
    waiting = [asyncio.create_task(bench.plugin.proposer.propose(each)) for each in a_history()[:2]]
    await turns()
    bench.replicator.before_apply.set()
    await asyncio.gather(*waiting)
    assert len({decode_event(each).log_id for each in bench.replicator.events}) == 1


async def test_events_without_a_time_are_not_written(tmp_path: Path) -> None:
    await one_life(tmp_path, [msgspec.structs.replace(each, ts=0) for each in a_history()])
    assert files(tmp_path) == []


async def test_what_came_inside_a_snapshot_is_told_before_the_next_event(tmp_path: Path) -> None:
    leader = ControllerMachine()
    for event in a_history()[:4]:
        leader.apply(encode_event(event))
    node = Node(tmp_path)
    node.replay(a_history()[:2])
    node.machine.restore(leader.snapshot())
    node.replay(a_history()[4:])
    await node.stop()
    _, *rest = written(tmp_path)
    assert [each.event_id for each in rest] == [1, 2, 4, 5, 6]
    assert [each.type for each in rest[1:4]] == ["applyBrokerId", "snapshot", "electMaster"]
    assert rest[2].after == view_of(leader.state.brokers[GROUP])
    assert rest[2].ts == rest[3].ts, "it is as old as what follows, whenever the snapshot came"


async def test_an_active_controller_has_a_file_in_quiet_times(tmp_path: Path) -> None:
    await one_life(tmp_path, a_history())
    node = Node(tmp_path, START_MS + HOUR_MS)
    node.replay(a_history())
    node.telemetry.active_changed(True)
    node.telemetry.active_changed(False)
    await node.stop()
    quiet = records_of(files(tmp_path)[1])
    assert {(each.type, each.event_id, each.ts) for each in quiet} == {("snapshot", 6, START_MS + HOUR_MS)}


# ---------------------------------------------------------------------- clocks


def clock_samples(directory: Path) -> list[ClockSample]:
    lines = [
        line
        for path in directory.rglob("clock_sample/**/*.jsonl*")
        for line in path.read_bytes().splitlines()
    ]
    decoded: list[Record] = [decode_record(line) for line in lines]
    return [each for each in decoded if isinstance(each, ClockSample)]


async def test_the_active_controller_compares_the_clocks_of_brokers(tmp_path: Path) -> None:
    """The least difference of a minute; no records of brokers that say no time, or are not registered."""
    bench = Bench(tmp_path)
    await bench.group_of(1, 2, 3)
    telemetry = bench.plugin.telemetry
    assert telemetry is not None
    with patch.object(heartbeats, "wall_ms", lambda: START_MS):
        for late_ms in (40, 5, 90):
            await bench.heartbeat(1, send_time_millis=START_MS - late_ms)
        await bench.heartbeat(2, send_time_millis=START_MS + 7_000)
        await bench.heartbeat(3)  # RocketMQ's broker
        await bench.heartbeat(77, send_time_millis=START_MS)
        for nonsense in (-1, 1 << 62):
            await bench.heartbeat(3, send_time_millis=nonsense)
    telemetry.put_clock_samples()  # not active yet: forgotten
    with patch.object(heartbeats, "wall_ms", lambda: START_MS):
        telemetry.active_changed(True)
        for late_ms in (40, 5, 90):
            await bench.heartbeat(1, send_time_millis=START_MS - late_ms)
        await bench.heartbeat(2, send_time_millis=START_MS + 7_000)
        await bench.heartbeat(3)
        await bench.heartbeat(77, send_time_millis=START_MS)
    telemetry.put_clock_samples()
    telemetry.put_clock_samples()
    await telemetry.writer.close()
    found = {each.broker_id: (each.offset_ms, each.heartbeats) for each in clock_samples(tmp_path)}
    assert found == {1: (5, 3), 2: (-7_000, 1)}
    assert {
        (each.cluster_name, each.broker_name, each.controller_id) for each in clock_samples(tmp_path)
    } == {(CLUSTER, GROUP, "n0")}


def test_clocks_of_any_number_of_names_are_bounded() -> None:
    offsets = ClockOffsets(keys_max=3)
    for number in range(5):
        offsets.add(BrokerKey("c", "b", number), sent_ms=10, received_ms=10 + number)
    assert offsets.left_out == 2
    offsets.add(BrokerKey("c", "b", 1), sent_ms=10, received_ms=10)
    assert offsets.take() == {
        BrokerKey("c", "b", 0): (0, 1),
        BrokerKey("c", "b", 1): (0, 2),
        BrokerKey("c", "b", 2): (2, 1),
    }
    assert (offsets.take(), offsets.left_out) == ({}, 0)


# ---------------------------------------------------------------------- faults


def test_an_exception_in_the_hook_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)

    def broken(_record: Record) -> None:
        raise RuntimeError("no writer")

    monkeypatch.setattr(node.telemetry.writer, "put", broken)
    node.replay(a_history())
    assert node.machine.state.event_count == 6
    assert node.telemetry.health()["fault"] == "RuntimeError('no writer')"


async def test_a_directory_that_cannot_be_written_disturbs_nobody(tmp_path: Path) -> None:
    (tmp_path / "telemetry").write_text("not a directory")
    bench = Bench(tmp_path)
    await bench.group_of(1, 2)
    assert bench.broker_set.sync_state_set == {1, 2}
    telemetry = bench.plugin.telemetry
    assert telemetry is not None
    await telemetry.writer.close()
    health = bench.plugin.health()["telemetry"]
    assert isinstance(health, dict)
    assert health["written"] == 0 and health["dropped"] == len(bench.replicator.events)
    assert "telemetry" in health["fault"]


async def test_telemetry_can_be_switched_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path, telemetryEnable=False)
    await bench.group_of(1)
    assert bench.plugin.health()["telemetry"] is None
    await bench.plugin.stop()
    assert files(tmp_path) == []


# ---------------------------------------------------------------------- what the proposer and decide() add


def proposed(bench: Bench) -> AnyEvent:
    return decode_event(bench.replicator.events[-1])


async def test_the_proposer_dates_every_event(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.group_of(1, 2)
    assert all(decode_event(each).ts > SYNCED_AT for each in bench.replicator.events)
    assert bench.plugin.machine.state.event_count == len(bench.replicator.events)


async def test_why_a_sync_state_set_changed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.group_of(1, 2, 3)

    async def reason(*members: int, set_epoch: int) -> str:
        await bench.alter(list(members), master=1, epoch=1, set_epoch=set_epoch)
        event = proposed(bench)
        assert isinstance(event, AlterSyncStateSet)
        return event.reason

    grown = proposed(bench)
    assert isinstance(grown, AlterSyncStateSet) and grown.reason == "caught_up"
    assert await reason(1, 3, set_epoch=2) == "lag"
    assert await reason(1, 2, 3, set_epoch=3) == "caught_up"
    bench.lose(2)
    assert await reason(1, set_epoch=4) == "lag", "3 is alive, whatever 2 is"
    await bench.heartbeat(2)
    assert await reason(1, 2, set_epoch=5) == "caught_up"
    bench.lose(2)
    assert await reason(1, 3, set_epoch=6) == "gone"


async def test_an_election_says_when_the_master_was_heard_and_missed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.group_of(1, 2)
    first = decode_event(bench.replicator.events[-2])
    assert isinstance(first, ElectMaster)
    assert (first.last_heartbeat_ts, first.detected_ts) == (None, None)
    bench.now_ms += 700
    bench.lose(1)  # 51 ms: found by a scan
    bench.now_ms += 40  # and elected a little later
    await bench.heartbeat(2)
    await bench.elect(2)
    event = proposed(bench)
    assert isinstance(event, ElectMaster)
    assert event.detected_ts is not None and event.last_heartbeat_ts is not None
    assert event.detected_ts - event.last_heartbeat_ts == 751
    assert 40 <= event.ts - event.detected_ts < 5_000


async def test_a_designated_election_has_lost_nobody(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.group_of(1, 2)
    await bench.elect(2, designate=True)
    event = proposed(bench)
    assert isinstance(event, ElectMaster)
    assert (event.reason, event.last_heartbeat_ts, event.detected_ts) == ("designated", None, None)


async def test_a_master_that_was_never_heard_here_is_missed_at_the_election(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.group_of(1, 2)
    for key in list(bench.liveness.keys()):
        bench.liveness.forget(key)
    await bench.heartbeat(2)
    await bench.elect(2)
    event = proposed(bench)
    assert isinstance(event, ElectMaster)
    assert event.last_heartbeat_ts is None
    assert event.detected_ts is not None and 0 <= event.ts - event.detected_ts < 5_000
