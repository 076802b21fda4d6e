"""The testers are tested: a good history passes, and each bad one is found by the checker that it is for."""

from pathlib import Path
from typing import Literal

import pytest

from cli.lab.chaos.checkers import CHECKERS, check, duplicated, recoveries, shown, sort
from cli.lab.chaos.history import (
    DAMAGED,
    Acknowledge,
    AnyEntry,
    Batch,
    BatchRead,
    Commit,
    Damage,
    End,
    Event,
    Exit,
    Fault,
    Fetch,
    History,
    HistoryError,
    Log,
    LongTurn,
    Phase,
    Read,
    Receive,
    Role,
    Run,
    Scrub,
    Send,
    Stuck,
    Subscribe,
    entries_of,
    make_number,
    read_history,
    sender_of,
)
from cli.lab.chaos.judge import run_of
from cli.lab.chaos.summary import findings_text, is_clean, table, verdict
from keelmq.remoting.records import ControllerEvent, GroupView, HaSample, RoleChange

GROUP = "consumer-0"


def send(
    number: int,
    t: int,
    offset: int | None,
    *,
    end: End = "ok",
    queue: int = 0,
    by: str = "p",
    ordered: bool = True,
    uncertain: int = 0,
) -> list[AnyEntry]:
    """Invoked at t, ended a little later."""
    begun = Send(t=t, by=by, type="invoke", number=number, ordered=ordered, queue=queue)
    done = Send(
        t=t + 5,
        by=by,
        type=end,
        number=number,
        ordered=ordered,
        queue=queue,
        offset=offset,
        uncertain=uncertain,
        remark="" if end == "ok" else "refused",
    )
    return [begun, done]


def read(t: int, *messages: tuple[int, int], queue: int = 0, final: bool = False) -> Read:
    return Read(t=t, by="c", type="ok", queue=queue, start=messages[0][0], messages=messages, final=final)


def batch(
    number: int, t: int, offset: int | None, *, end: End = "ok", sender: int = 0, uncertain: int = 0
) -> list[AnyEntry]:
    """A batch of 10 messages for queue 0."""
    begun = Batch(t=t, type="invoke", sender=sender, batch=number, count=10, queue=0)
    done = Batch(
        t=t + 5, type=end, sender=sender, batch=number, count=10, queue=0, offset=offset, uncertain=uncertain
    )
    return [begun, done]


def runs(t: int, *found: tuple[int, int, int, int, int], final: bool = True) -> BatchRead:
    return BatchRead(t=t, queue=0, read=sum(each[4] for each in found), runs=found, final=final)


def damage(program: str) -> Damage:
    return Damage(t=1, program=program, kind="flip", file="commitlog/0", start=100, length=1)


def commit(t: int, offset: int, kind: Phase) -> Commit:
    return Commit(t=t, type=kind, group=GROUP, queue=0, offset=offset)


def fetch(t: int, offset: int | None) -> list[AnyEntry]:
    return [
        Fetch(t=t, type="invoke", group=GROUP, queue=0),
        Fetch(t=t + 1, type="ok", group=GROUP, queue=0, offset=offset),
    ]


def event(controller: str, after: str, *, event_id: int = 7) -> Event:
    return Event(t=0, controller=controller, event_id=event_id, type="electMaster", after=after)


def fault(number: int, phase: Literal["start", "placed", "end"], t: int, kind: str = "kill-master") -> Fault:
    return Fault(t=t, phase=phase, number=number, kinds=(kind,), targets=("broker-0",), master="broker-0")


GOOD: list[AnyEntry] = [
    Run(t=0, seed=1, wall_ms=1_000),
    *send(1, 10, 0),
    *send(2, 20, 1),
    read(30, (0, 1), (1, 2)),
    commit(31, 2, "invoke"),
    commit(32, 2, "ok"),
    fault(1, "start", 40),
    fault(1, "placed", 50),
    *send(3, 60, None, end="info"),  # unknown: it is there, and that is allowed
    *send(4, 70, 4, uncertain=1),  # a copy of its first attempt is there, too
    fault(1, "end", 80),
    *fetch(90, 2),
    commit(95, 4, "invoke"),
    commit(96, 4, "info"),
    *fetch(97, 4),
    *send(5, 100, None, end="fail"),
    *batch(1, 100, 0),
    *batch(2, 110, 20, uncertain=1),  # a copy of its first attempt is there, too
    *batch(3, 120, None, end="info"),  # the first 4 messages survived
    *batch(4, 130, None, end="fail"),
    *batch(5, 140, 34),
    runs(200, (0, 0, 1, 0, 10), (10, 0, 2, 0, 6)),
    runs(201, (16, 0, 2, 6, 4), (20, 0, 2, 0, 10), (30, 0, 3, 0, 4), (34, 0, 5, 0, 10)),
    damage("broker-1"),
    Scrub(t=300, program="broker-0", records=9),
    Scrub(t=300, program="broker-1", records=9),
    read(200, (0, 1), (1, 2), (2, 3), (3, 4), (4, 4), final=True),
    Role(t=0, broker_id=1, master_epoch=1),
    Role(t=0, broker_id=2, master_epoch=2),
    Role(t=9, broker_id=1, master_epoch=1),
    event("n0", "a"),
    event("n1", "a"),
    Log(t=0, program="broker-0", bytes=100, crc=1),
    Log(t=0, program="broker-1", bytes=100, crc=1),
    Exit(t=1, program="broker-0", code=1, excused=True),
    Subscribe(t=65, group="grpc"),
    Receive(t=80, group="grpc", numbers=(3, 4)),  # 3 was sent before it began
    Acknowledge(t=81, type="info", group="grpc", numbers=(3,)),  # it is, and does not come again
    Receive(t=90, group="grpc", numbers=(4,)),
    Acknowledge(t=91, type="ok", group="grpc", numbers=(4,)),
]

BAD: dict[str, list[AnyEntry]] = {
    "lost": [*GOOD, *send(6, 110, 5)],
    "lost: a batch": [*GOOD, *batch(6, 150, 44)],
    "lost: the end of a batch": [*GOOD, *batch(6, 150, 44), runs(202, (44, 0, 6, 0, 9))],
    "lost: a batch that is elsewhere": [
        *GOOD,
        *batch(6, 150, 44),
        runs(202, (44, 0, 6, 5, 5), (49, 0, 6, 0, 5)),
    ],
    "moved": [*GOOD, *send(2, 110, 0)],
    "damaged": [*GOOD, read(210, (5, DAMAGED), final=True)],
    "damaged: full load": [*GOOD, runs(202, (44, DAMAGED, 0, 0, 3))],
    "damaged: full load, seen once and healed later": [*GOOD, runs(150, (5, DAMAGED, 0, 0, 1), final=False)],
    "damaged: full load that nobody sent": [*GOOD, runs(202, (44, 1, 1, 0, 10))],
    "damaged: a batch that is too long": [
        *GOOD,
        *batch(6, 150, None, end="info"),
        runs(202, (44, 0, 6, 0, 11)),
    ],
    "damaged: invented": [*GOOD, read(210, (5, 99), final=True)],
    "damaged: seen by a consumer only": [*GOOD, read(110, (5, DAMAGED))],
    "damaged: received by a gRPC consumer": [*GOOD, Receive(t=99, group="grpc", numbers=(DAMAGED,))],
    "undelivered": [
        *GOOD,
        Subscribe(t=15, group="another"),
        Receive(t=99, group="another", numbers=(2, 4)),
        Acknowledge(t=99, type="ok", group="another", numbers=(2, 4)),
    ],
    "unacknowledged": [*GOOD, Receive(t=99, group="grpc", numbers=(2,))],
    "reordered": [
        *send(1, 10, 1),
        *send(2, 20, 0),
        read(30, (0, 2), (1, 1), final=True),
    ],
    "reordered: an earlier copy stands behind": [
        *send(1, 10, 0),
        *send(2, 20, 1),
        read(30, (0, 2), (1, 1), final=True),
    ],
    "reordered: batches": [
        *GOOD,
        *batch(6, 150, 54),
        *batch(7, 160, 44),
        runs(202, (44, 0, 7, 0, 10), (54, 0, 6, 0, 10)),
    ],
    "vanished": [*GOOD, *send(6, 110, None, end="info"), read(120, (5, 6))],
    "vanished: replaced": [
        *GOOD,
        *send(6, 110, None, end="info"),
        read(120, (5, 6)),
        *send(7, 130, 5),
        read(210, (5, 7), final=True),
    ],
    "unexplained": [*GOOD, *send(6, 110, 5), read(210, (5, 6), (6, 6), final=True)],
    "unexplained: a batch": [*GOOD, *batch(6, 150, 44), runs(202, (44, 0, 6, 0, 10), (54, 0, 6, 0, 10))],
    "phantom: a batch": [*GOOD, runs(202, (44, 0, 4, 0, 10))],
    "phantom": [*GOOD, read(210, (5, 5), final=True)],
    "reused": [*GOOD, *send(6, 110, 5), *send(7, 120, 5), read(210, (5, 7), final=True)],
    "reused: read twice, differently": [
        *GOOD,
        *send(6, 110, 5),
        *send(7, 120, None, end="info"),
        read(115, (5, 6)),
        read(125, (5, 7)),
        read(210, (5, 6), final=True),
    ],
    "holes": [*GOOD, *send(6, 110, 7), read(210, (7, 6), final=True)],
    "holes: full load": [*GOOD, *batch(6, 150, 46), runs(202, (46, 0, 6, 0, 10))],
    "unhealed": [*GOOD, Scrub(t=301, program="broker-2", records=9, unhealed=("00: flip of 1 byte",))],
    "unhealed: what the check found": [
        *GOOD,
        Scrub(t=301, program="broker-2", records=9, faults=("damaged",)),
    ],
    "unhealed: not checked": [*GOOD, damage("broker-2")],
    "rewound": [*GOOD, commit(300, 5, "invoke"), commit(301, 5, "ok"), *fetch(310, 4)],
    "rewound: forgotten": [*GOOD, *fetch(310, None)],
    "rewound: nobody committed it": [*GOOD, *fetch(310, 3)],
    "masters": [*GOOD, Role(t=9, broker_id=2, master_epoch=1)],
    "diverged": [*GOOD, event("n2", "b")],
    "diverged: other bytes": [*GOOD, Log(t=0, program="broker-2", bytes=100, crc=2)],
    "diverged: too few bytes": [*GOOD, Log(t=0, program="broker-2", bytes=100, crc=None)],
    "diverged: not from the beginning": [*GOOD, Log(t=0, program="broker-2", bytes=100, crc=1, begin=50)],
    "crashed": [*GOOD, Exit(t=1, program="broker-0", code=-11)],
    "stalled": [
        *GOOD,
        LongTurn(t=0, program="broker-0", cpu_ms=70, at="snapshot (store.py:7) stack=snapshot:7"),
    ],
    "unrecovered": [*GOOD, fault(2, "start", 110), fault(2, "placed", 120)],
    "unrecovered: stuck": [*GOOD, Stuck(t=1, what="all replicas in sync")],
}


def test_a_good_history_passes() -> None:
    world = sort(GOOD)
    findings = check(world)
    assert not any(findings.values()), findings
    assert is_clean(world, findings)
    assert duplicated(world) == 1
    assert list(findings) == list(CHECKERS)


@pytest.mark.parametrize("case", BAD)
def test_a_bad_history_is_found(case: str) -> None:
    world = sort(BAD[case])
    findings = check(world)
    name = case.partition(":")[0]
    assert findings[name], case
    assert not is_clean(world, findings)
    assert any(line.startswith(f"{name}: ") for line in findings_text(findings))


def test_there_is_a_bad_history_for_every_checker() -> None:
    assert {case.partition(":")[0] for case in BAD} == set(CHECKERS)


def test_a_bad_history_of_messages_is_found_by_nobody_else() -> None:
    """So that a verdict names the right thing; these ones break one rule only, apart from messages that no
    gRPC consumer has received."""
    for name in (
        "lost", "lost: a batch", "damaged: full load", "damaged: full load, seen once and healed later",
        "reordered: batches", "vanished", "unexplained", "unexplained: a batch", "phantom",
        "phantom: a batch", "holes", "holes: full load", "unhealed", "unhealed: not checked", "rewound",
        "masters", "crashed", "stalled", "undelivered", "unacknowledged",
    ):  # fmt: skip
        findings = check(sort(BAD[name]))
        found = [each for each, lines in findings.items() if lines and each != "undelivered"]
        assert (found or ["undelivered"]) == [name.partition(":")[0]]


def test_without_the_last_reading_nobody_knows_what_is_lost() -> None:
    world = sort([Run(t=0, seed=1, wall_ms=0), *send(1, 10, 0), read(20, (0, 1)), Stuck(t=30, what="all")])
    findings = check(world)
    assert findings["lost"] is None and not is_clean(world, findings)
    assert " lost=unknown moved=unknown damaged=0 " in verdict(1, world, findings)
    assert list(findings_text(findings)) == ["unrecovered: not in time: all"]


def test_nothing_acknowledged_is_no_success() -> None:
    world = sort([Run(t=0, seed=1, wall_ms=0)])
    assert not is_clean(world, check(world))


def test_order_is_judged_per_sender_and_queue_and_only_for_ordered_ones() -> None:
    entries = [
        *send(1, 10, 5, queue=0),
        *send(2, 20, 3, queue=1),
        *send(3, 30, 2, queue=0, by="another"),
        *send(4, 40, 1, queue=0, by="unordered", ordered=False),
        *send(5, 50, 0, queue=0, by="unordered", ordered=False),
    ]
    assert list(CHECKERS["reordered"](sort(entries))) == []


def test_an_offset_asked_before_the_commit_was_acknowledged_may_be_the_old_one() -> None:
    entries: list[AnyEntry] = [
        commit(1, 2, "invoke"),
        commit(2, 2, "ok"),
        commit(3, 9, "invoke"),
        Fetch(t=4, type="invoke", group=GROUP, queue=0),
        commit(5, 9, "ok"),
        Fetch(t=6, type="ok", group=GROUP, queue=0, offset=2),
    ]
    assert list(CHECKERS["rewound"](sort(entries))) == []


def test_recovery_counts_from_the_begin_of_a_fault_to_a_send_that_began_in_it() -> None:
    entries: list[AnyEntry] = [
        fault(1, "start", 1_000_000),
        *send(1, 1_001_000, 0),  # begun before the fault was in effect: says nothing
        fault(1, "placed", 1_002_000),
        *send(2, 1_250_000, 1),
        fault(1, "end", 4_000_000),
        fault(2, "start", 5_000_000, "pause-slave"),
        fault(2, "placed", 5_000_000, "pause-slave"),
    ]
    first, second = recoveries(sort(entries))
    assert (first.ms, first.held_ms, first.targets) == (250, 3_000, ("broker-0",))
    assert second.ms is None
    assert (first.gap_ms, second.gap_ms) == (3_749, 0)
    lines = list(table([first, second]))
    assert lines[2].split() == ["kill-master", "1", "250", "250", "3749", "3749"]
    assert lines[3].split() == ["pause-slave", "1", "-", "-", "0", "0", "1", "x", "never"]


def test_the_verdict_has_every_count() -> None:
    world = sort(BAD["lost"])
    line = verdict(7, world, check(world))
    assert line.startswith(
        "CHAOS seed=7 faults=1 sent=6 acked=4 read=2 duplicated=1 lost=1 moved=0 damaged=0"
    )
    assert all(f" {name}=" in line for name in CHECKERS)
    assert " batched=30 damages=1 " in line


def test_only_the_first_findings_are_shown() -> None:
    assert shown(["a"]) == ["a"]
    assert shown([str(number) for number in range(12)])[-1] == "and 2 more"


# -- the file ----------------------------------------------------------------------------------------------


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with History(path) as history:
        for entry in GOOD[:9]:
            history.put(entry)
        assert isinstance(GOOD[8], Fault)
        assert read_history(path) == GOOD[:9]  # what came before a fault is in the file, whatever comes now
        for entry in GOOD[9:]:
            history.put(entry)
    history.put(GOOD[0])  # after the end: nowhere
    assert read_history(path) == GOOD
    assert run_of(GOOD).seed == 1


def test_half_a_last_line_is_left_out_and_a_bad_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with History(path) as history:
        for entry in GOOD[:3]:
            history.put(entry)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert read_history(path) == GOOD[:2]
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(HistoryError, match=r"history\.jsonl, line 1"):
        read_history(path)
    with pytest.raises(HistoryError, match="first line"):
        run_of(GOOD[1:])


def test_numbers() -> None:
    assert sender_of(make_number(2_003, 17)) == 2_003
    assert make_number(1, 0) - make_number(0, 999_999_999) == 1


def test_telemetry_becomes_masters_and_events() -> None:
    common = {"cluster_name": "c", "broker_name": "b"}
    view = GroupView(
        master_broker_id=1, master_epoch=2, sync_state_set=(1,), sync_state_set_epoch=3, replicas=(1, 2)
    )
    sample = HaSample(
        ts=1_500, broker_id=1, role="master", master_epoch=2, max_offset=0, confirm_offset=0, **common
    )
    slave = HaSample(
        ts=1_500, broker_id=2, role="slave", master_epoch=2, max_offset=0, confirm_offset=0, **common
    )
    change = RoleChange(
        ts=1_700,
        broker_id=2,
        role="master",
        master_epoch=3,
        previous_role="slave",
        previous_epoch=2,
        started_ts=1_690,
        max_offset=0,
        confirm_offset=0,
        **common,
    )
    elected = ControllerEvent(
        ts=1_600, event_id=4, type="electMaster", controller_id="n0", after=view, **common
    )
    snapshot = ControllerEvent(ts=1, event_id=4, type="snapshot", controller_id="n0", after=view, **common)
    entries = list(entries_of(iter([sample, sample, slave, change, elected, snapshot]), 1_000))
    assert entries[0] == Role(t=500_000, broker_id=1, master_epoch=2)
    assert entries[1] == Role(t=700_000, broker_id=2, master_epoch=3)
    assert isinstance(entries[2], Event) and entries[2].controller == "n0" and len(entries) == 3
