"""Any life of a controller group: the records of any controller, in order of event_id, tell it without holes.

Histories are made as the active controller makes them: requests go through decide(), what it allows is
proposed, and sometimes applied only after other events (then it may be fenced).
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keelmq.remoting.records import ControllerEvent, GroupView, Record
from namesrv.plugins.controller.config import ControllerConfig
from namesrv.plugins.controller.core.decide import (
    CONTROLLER_ITSELF,
    Decision,
    ElectionRequest,
    decide_alter_sync_state_set,
    decide_apply_broker_id,
    decide_elect,
    decide_register,
)
from namesrv.plugins.controller.core.elect import LiveInfo, LiveView, Loss
from namesrv.plugins.controller.core.events import (
    AlterSyncStateSet,
    AnyEvent,
    ApplyBrokerId,
    Event,
    encode_event,
)
from namesrv.plugins.controller.core.state import State
from namesrv.plugins.controller.machine import ControllerMachine
from namesrv.plugins.controller.telemetry import ControllerTelemetry, view_of
from tests.support.slices import share

START_MS = 1_700_000_000_000
CLUSTER = "C1"
names = st.sampled_from(["a", "b"])
ids = st.integers(min_value=1, max_value=3)
ALL = frozenset({1, 2, 3})
living = st.sampled_from([ALL, ALL, ALL, *(ALL - {each} for each in ALL), frozenset({2}), frozenset()])
elections = st.tuples(st.just("elect"), names, st.sampled_from([CONTROLLER_ITSELF, 1, 2, 3]), living)
changes = st.tuples(st.just("alter"), names, st.frozensets(ids, min_size=1), living)
steps = st.one_of(
    st.tuples(st.just("apply"), names, ids, living),
    st.tuples(st.just("register"), names, ids, living),
    *[elections] * 2,
    *[changes] * 3,
)
Step = tuple[str, str, int | frozenset[int], frozenset[int]]
scripts = st.lists(st.tuples(steps, st.sampled_from([False, False, True])), min_size=20, max_size=50)
JOINED: list[tuple[Step, bool]] = [
    *[(("apply", name, broker_id, ALL), False) for broker_id in (1, 2) for name in ("a", "b")],
    (("elect", "a", 1, ALL), False),
]


def decided(state: State, step: Step, number: int) -> Decision:
    kind, name, what, alive = step
    view = LiveView({each: LiveInfo(f"h{each}:1") for each in alive}, lost={1: Loss(START_MS, START_MS + 1)})
    group = state.brokers.get(name)
    if isinstance(what, frozenset):
        master = None if group is None else group.master_broker_id
        event = AlterSyncStateSet(
            broker_name=name,
            master_broker_id=master or 1,
            new_sync_state_set=tuple(sorted(what | {master or 1})),
            expected_master_epoch=0 if group is None else group.master_epoch,
            expected_sync_state_set_epoch=0 if group is None else group.sync_state_set_epoch,
        )
        return decide_alter_sync_state_set(state, event, view)
    if kind == "apply":
        return decide_apply_broker_id(
            state,
            ApplyBrokerId(
                broker_name=name,
                cluster_name=CLUSTER,
                broker_id=what,
                broker_address=f"h{what}:1",
                register_check_code=f"h{what}:1;1",
            ),
        )
    if kind == "register":
        return decide_register(
            state,
            view,
            cluster_name=CLUSTER,
            broker_name=name,
            broker_id=what,
            broker_address=f"h{what}:{number}",
        )
    return decide_elect(state, view, ElectionRequest(name, CLUSTER, what, unclean=True))


def history_of(script: list[tuple[Step, bool]]) -> list[AnyEvent]:
    """True: the event waits until the next one is applied, as it happens when two are proposed at once."""
    machine, history, waiting = ControllerMachine(), [], list[AnyEvent]()
    for number, (step, waits) in enumerate(JOINED + script):
        decision = decided(machine.state, step, number)
        if not isinstance(decision, Event):
            continue
        waiting.append(msgspec.structs.replace(decision, ts=START_MS + number))
        if waits:
            continue
        for event in reversed(waiting):
            history.append(event)
            machine.apply(encode_event(event))
        waiting.clear()
    return history


@dataclass
class Controller:
    """One life after another on the same disk; what its writer is given is kept."""

    directory: Path
    node: str = "n0"
    written: list[ControllerEvent] = field(default_factory=list)
    snapshot: bytes | None = None
    snapshot_at: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """What the files say is found by last_written(); here it is what `written` says."""
        config = ControllerConfig.model_validate(
            {
                "controllerDLegerGroup": "g",
                "controllerDLegerPeers": f"{self.node}-127.0.0.1:9878",
                "controllerDLegerSelfId": self.node,
                "controllerStorePath": self.directory / self.node,
            }
        )
        telemetry = ControllerTelemetry(config, lambda: START_MS)
        telemetry.writer.put = self._put  # type: ignore[method-assign]
        telemetry.resume()
        self.machine = ControllerMachine(telemetry.applied, telemetry.restored)
        if self.snapshot is not None:
            self.machine.restore(self.snapshot)

    def _put(self, record: Record) -> None:
        assert isinstance(record, ControllerEvent)
        self.written.append(record)

    def compact(self, at: int) -> None:
        self.snapshot, self.snapshot_at = self.machine.snapshot(), at


def is_event(record: ControllerEvent) -> bool:
    return record.type != "snapshot"


def rebuilt(records: list[ControllerEvent]) -> dict[str, GroupView]:
    """What a reader makes of the records: duplicates dropped, in the order of the log."""
    distinct = {(each.broker_name, each.event_id, each.type): each for each in records}
    views: dict[str, GroupView] = {}
    for record in sorted(distinct.values(), key=lambda each: each.event_id):
        if is_event(record):
            assert record.before == views.get(record.broker_name)
            assert record.refused is None or record.before == record.after
        if record.after is not None:
            views[record.broker_name] = record.after
    return views


@settings(max_examples=share(100), deadline=None)
@given(
    scripts,
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=3),
)
def test_the_records_tell_the_whole_history(
    script: list[tuple[Step, bool]], interruptions: list[tuple[int, bool]]
) -> None:
    """An interruption: the log is compacted (True), or the process dies and replays its log (False)."""
    history = history_of(script)
    with tempfile.TemporaryDirectory() as directory:
        controller = Controller(Path(directory))
        for number, event in enumerate(history):
            controller.machine.apply(encode_event(event))
            for at, compacts in interruptions:
                if at != number:
                    continue
                if compacts:
                    controller.compact(number + 1)
                else:
                    controller.start()
                    for old in history[controller.snapshot_at : number + 1]:
                        controller.machine.apply(encode_event(old))
    truth = {name: view_of(group) for name, group in controller.machine.state.brokers.items()}
    assert rebuilt(controller.written) == truth
    distinct = {msgspec.json.encode(each): each.event_id for each in controller.written if is_event(each)}
    assert sorted(distinct.values()) == list(range(1, len(history) + 1)), "a place for each, none without one"
    assert controller.machine.state.event_count == len(history)


@pytest.mark.slow
@settings(max_examples=share(100), deadline=None)
@given(scripts, st.integers(0, 30))
def test_a_controller_that_was_behind_gives_the_same_numbers(
    script: list[tuple[Step, bool]], behind: int
) -> None:
    """It gets a snapshot of the leader instead of some events: those are missing, nothing else differs."""
    history = history_of(script)
    behind = min(behind, len(history))
    with tempfile.TemporaryDirectory() as directory:
        leader, late = Controller(Path(directory)), Controller(Path(directory), "n1")
        for number, event in enumerate(history):
            leader.machine.apply(encode_event(event))
            if number + 1 < behind // 2:
                late.machine.apply(encode_event(event))
            elif number + 1 == behind:
                late.machine.restore(leader.machine.snapshot())
            elif number + 1 > behind:
                late.machine.apply(encode_event(event))
    assert late.machine.state == leader.machine.state
    theirs = {each.event_id: each for each in leader.written if is_event(each)}
    for record in late.written:
        if is_event(record):
            assert msgspec.structs.replace(record, controller_id="n0") == theirs[record.event_id]
