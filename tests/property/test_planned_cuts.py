"""A cut whose queues were found in slices, against one that looks at every queue: the same state and files,
also if records are dispatched and scanned between the slices, and if the plan is for another cut."""

import random
from pathlib import Path

import pytest

from broker.store.cut_store import CutPlan
from broker.store.message_store import MessageStore
from broker.store.queue import queue_table
from keelmq.runtime.slices import Slices
from tests.support.slices import first
from tests.support.store_parts import BORN_HOST, TOPIC, crash, open_store
from tests.unit.broker.store.test_message_store import copy_log

QUEUES = 12
State = tuple[object, ...]


def state_of(store: MessageStore, root: Path) -> State:
    return (
        store.commit_log.max_offset,
        store.confirm_offset,
        store.dispatch_offset,
        store.dispatcher.scanned_offset,
        store.cutter.cut_count,
        [(q.topic, q.queue_id, q.min_offset, q.max_offset, q.next_offset) for q in store.queues.each()],
        {
            str(path.relative_to(root)): path.read_bytes().rstrip(b"\0")
            for kind in ("commitlog", "consumequeue")
            for path in sorted((root / kind).rglob("*"))
            if path.is_file()
        },
    )


def replica(root: Path, seed: int) -> tuple[MessageStore, list[int], random.Random]:
    """A replica that has dispatched and scanned some of the log, or a master that was demoted, and the ends
    of the records of its log."""
    dice = random.Random(seed)
    master, ends = open_store(root / "master", index_enable=False), list[int]()
    for _ in range(dice.randrange(5, 60)):
        body = b"x" * dice.randrange(200)
        ends.append(master.put(TOPIC, dice.randrange(QUEUES), body, b"", 0, 0, 1, BORN_HOST, 0, 0, 1)[1])
        if dice.random() < 0.5:
            master.set_confirm_offset(dice.choice(ends[-3:]))
    if dice.random() < 0.3:
        master.become_slave()
        return master, ends, dice
    slave = open_store(root / "slave", master=False, index_enable=False)
    slave.become_slave()
    copy_log(master, slave)
    slave.set_confirm_offset(dice.choice(ends))
    crash(master)
    for _ in range(dice.randrange(30)):
        slave.dispatcher.scan(dice.randrange(1, 3))
        slave.dispatcher.dispatch(dice.randrange(1, 3))
    return slave, ends, dice


@pytest.mark.parametrize("seed", first(40, range(200)))
def test_a_planned_cut_is_like_an_unplanned_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(queue_table, "CUT_AT_ONCE", 1)
    states = []
    for name in ("planned", "unplanned"):
        store, ends, dice = replica(tmp_path / name, seed)
        offset = dice.choice(ends) - dice.choice([0, 0, 7])
        plan, slices, work = None, store.cutter.plan_cut(offset), []
        for _ in range(QUEUES):
            work.append((dice.random() < 0.4, dice.random() < 0.3))
        between = dice.randrange(-1, QUEUES)  # another cut, or a promotion, in between: this plan is void
        for number, (dispatches, scans) in enumerate(work):
            if name == "planned" and plan is None:
                try:
                    next(slices)
                except StopIteration as end:
                    plan = end.value
            if dispatches:
                store.dispatcher.dispatch(1)
            if scans:
                store.dispatcher.scan(1)
            if number == between and seed % 5 == 0:
                store.cutter.truncate(store.commit_log.max_offset)
            if number == between and seed % 5 == 1:
                store.become_master()
                for _ in range(5):
                    store.put(TOPIC, dice.randrange(QUEUES), b"later", b"", 0, 0, 1, BORN_HOST, 0, 0, 1)
                store.set_confirm_offset(store.commit_log.max_offset)
                store.become_slave()
        while name == "planned" and plan is None:
            try:
                next(slices)
            except StopIteration as end:
                plan = end.value
        store.cutter.begin_cut(offset, plan)
        store.cutter.write_cut()
        assert all(queue.seen_to <= store.commit_log.max_offset for queue in store.queues.each())
        store.cutter.end_cut()
        root = next(each for each in (tmp_path / name).iterdir() if each == store.root)
        states.append(state_of(store, root))
        crash(store)
    assert states[0] == states[1]


def test_only_the_queues_at_the_end_are_cut(tmp_path: Path) -> None:
    """Else the step at the end of the plan is proportional to all queues."""
    store = open_store(tmp_path, index_enable=False)
    for queue_id in range(QUEUES):
        store.put(TOPIC, queue_id, b"x", b"", 0, 0, 1, BORN_HOST, 0, 0, 1)
    store.set_confirm_offset(store.commit_log.max_offset)
    end = store.commit_log.max_offset
    for queue_id in (3, 7):
        store.put(TOPIC, queue_id, b"x", b"", 0, 0, 1, BORN_HOST, 0, 0, 1)
    store.put(TOPIC, 9, b"not confirmed", b"", 0, 0, 1, BORN_HOST, 0, 0, 1)
    store.set_confirm_offset(store.commit_log.max_offset - 1)
    store.become_slave()
    plan = ended(store.cutter.plan_cut(end))
    assert sorted(queue.queue_id for queue in plan.queues) == [3, 7, 9]
    assert plan.newest is store.queues.find("TopicA", QUEUES - 1)
    crash(store)


def test_what_a_scan_has_seen_ends_in_front_of_the_cut(tmp_path: Path) -> None:
    """Else a new master takes a damaged range behind it for one without records of the queue, and gives their
    queue offsets again."""
    master = open_store(tmp_path / "master", index_enable=False)
    for queue_id in (0, 1, 0, 1):
        end = master.commit_log.max_offset
        master.put(TOPIC, queue_id, b"x", b"", 0, 0, 1, BORN_HOST, 0, 0, 1)
    slave = open_store(tmp_path / "slave", master=False, index_enable=False)
    slave.become_slave()
    copy_log(master, slave)
    crash(master)
    slave.dispatcher.scan(2)
    slave.dispatcher.scan(100)
    slave.set_confirm_offset(end)
    while slave.dispatcher.dispatch(1):
        pass
    queue = slave.queues.get("TopicA", 0)
    assert queue.next_offset == queue.max_offset == 2 and queue.seen_to > end, "as a scan leaves it"
    plan = ended(slave.cutter.plan_cut(end))
    slave.cutter.begin_cut(end, plan)
    assert queue.seen_to <= end and queue.max_offset == 2
    slave.cutter.write_cut()
    slave.cutter.end_cut()
    crash(slave)


def ended(slices: Slices[CutPlan]) -> CutPlan:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            plan: CutPlan = end.value
            return plan
