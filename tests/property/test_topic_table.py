"""The topic table of a name server against a list of rows: routes, permissions and lists after every step,
while what is left of removed brokers is swept, and lists between whose slices other changes come."""

import random
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keelmq.remoting.operations.route import QueueData, TopicConfig
from keelmq.runtime.slices import at_once
from namesrv.core.broker_topics import CHANGES_SHOWN
from namesrv.core.topic_lists import SLICE_NAMES, in_order, topic_list
from namesrv.core.topics import UNIT_FLAG, UNIT_SUB_FLAG, TopicTable
from tests.support.slices import share

Row = tuple[int, int, int]
"""Queues, perm, topicSysFlag."""

TOPICS, BROKERS = [f"T{number}" for number in range(6)], ["b-a", "b-b", "b-c"]
NAMES = st.sampled_from(BROKERS)
ROWS = st.tuples(st.sampled_from([4, 8]), st.sampled_from([4, 6, 7]), st.integers(0, 3))
REGISTER = st.tuples(
    st.just("register"), NAMES, st.dictionaries(st.sampled_from(TOPICS), ROWS, max_size=6), st.booleans()
)
REMOVE = st.tuples(st.just("remove"), NAMES, st.sampled_from(TOPICS))
LEAVE = st.tuples(st.just("leave"), NAMES)
SWEEP = st.tuples(st.just("sweep"), st.integers(1, 4))
PERM = st.tuples(st.sampled_from(["clear", "add"]), NAMES)
STEP = REGISTER | REMOVE | LEAVE | SWEEP | PERM


class Rows:
    """The simple version: a dict of rows that is searched from end to end."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}  # (topic, brokerName)

    def take(self, step: tuple[object, ...]) -> tuple[int, int]:
        """Returns how many topics the broker has, and of how many the perm changed."""
        match step:
            case ("register", str(name), dict(topics), bool(changed)):
                for topic, row in topics.items():
                    if changed or (topic, name) not in self.rows:
                        self.rows[topic, name] = row
            case ("remove", str(name), str(topic)):
                self.rows.pop((topic, name), None)
            case ("leave", str(name)):
                self.rows = {key: row for key, row in self.rows.items() if key[1] != name}
            case ("clear" | "add" as verb, str(name)):
                before = self.rows
                self.rows = {
                    key: (row[0], row[1] & ~2 if verb == "clear" else row[1] | 6, row[2])
                    if key[1] == name
                    else row
                    for key, row in before.items()
                }
                count = sum(self.rows[key] != before[key] for key in before)
                return sum(key[1] == name for key in before), count
        return 0, 0

    def topics(self, *names: str) -> list[str]:
        return sorted({topic for topic, name in self.rows if not names or name in names})

    def flagged(self, present: int, absent: int) -> list[str]:
        return sorted({
            topic for (topic, _), (*_, flag) in self.rows.items() if flag & present and not flag & absent
        })  # fmt: skip


def take(table: TopicTable, step: tuple[object, ...]) -> tuple[int, int]:
    match step:
        case ("register", str(name), dict(topics), bool(changed)):
            configs = {
                topic: TopicConfig(
                    topic_name=topic,
                    read_queue_nums=nums,
                    write_queue_nums=nums,
                    perm=perm,
                    topic_sys_flag=flag,
                )
                for topic, (nums, perm, flag) in topics.items()
            }
            table.update(name, configs, changed=changed, keeps_write=True)
        case ("remove", str(name), str(topic)):
            table.remove(topic, name)
        case ("leave", str(name)):
            table.remove_broker(name)
        case ("sweep", int(count)):
            table.sweep(count)
        case ("clear" | "add" as verb, str(name)):
            change = table.clear_write(name) if verb == "clear" else table.add_write(name)
            assert list(change.before) == list(change.after) == sorted(change.before)
            assert len(change.before) == min(change.changed, CHANGES_SHOWN)
            for topic, perm in change.after.items():
                assert table.queues(topic)[name].perm == perm != change.before[topic]
            return change.topics, change.changed
    return 0, 0


def routes(table: TopicTable) -> dict[tuple[str, str], Row]:
    return {
        (topic, name): (queue.write_queue_nums, queue.perm, queue.topic_sys_flag)
        for topic in TOPICS
        for name, queue in table.queues(topic).items()
    }


@settings(max_examples=share(400), deadline=None)
@given(st.lists(STEP, max_size=40))
def test_a_topic_table(steps: list[tuple[object, ...]]) -> None:
    table, model = TopicTable(), Rows()
    for step in steps:
        shown, version = dict(model.rows), table.version
        assert take(table, step) == model.take(step)
        table.check_invariants()
        assert routes(table) == model.rows
        assert shown == model.rows or table.version != version, "cached replies would stay"
        assert sorted(table) == model.topics() and table.pair_count == len(model.rows)
        for name in BROKERS:
            assert sorted(table.of_broker(name)) == model.topics(name)
        assert listed(at_once(topic_list(table.names()))) == model.topics()
        assert listed(at_once(topic_list(table.names(BROKERS[:2])))) == model.topics(*BROKERS[:2])
        for present, absent in ((UNIT_FLAG, 0), (UNIT_SUB_FLAG, 0), (UNIT_SUB_FLAG, UNIT_FLAG)):
            found = at_once(topic_list(table.with_flags(present=present, absent=absent)))
            assert listed(found) == model.flagged(present, absent)
    while table.sweep(1):
        table.check_invariants()
    table.check_invariants()
    assert len(table) == len(model.topics()) and routes(table) == model.rows


def listed(body: bytes) -> list[str]:
    found: dict[str, list[str]] = msgspec.json.decode(body)
    assert list(found) == ["topicList"]
    return found["topicList"]


@pytest.mark.parametrize("count", [0, 1, 4_000, 4_001, 12_000, 12_001, 20_000, 27_999])
def test_names_are_sorted_as_sorted_does(count: int) -> None:
    dice = random.Random(count)
    names = [f"topic{dice.randrange(1 << 40)}" for _ in range(count)]
    assert at_once(in_order(names)) == sorted(names)


def made(topics: Iterable[str]) -> dict[str, TopicConfig]:
    one = TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=8)
    return dict.fromkeys(topics, one)


@pytest.mark.parametrize(("after", "more"), [(0, 0), (0, 1), (1, 1), (2, 2), (4, 0), (7, 3)])
@pytest.mark.parametrize("gone", [False, True])
def test_a_list_has_all_or_none_of_a_broker_that_leaves_meanwhile(after: int, more: int, gone: bool) -> None:
    """A consumer of the list would take topics for deleted."""
    table, many = TopicTable(), [f"topic{number}" for number in range(3 * SLICE_NAMES)]
    table.update("b-b", made([*many[: SLICE_NAMES // 2], "own"]), changed=True, keeps_write=True)
    table.update("b-a", made(many), changed=True, keeps_write=True)
    if gone:
        table.update("b-c", made(["c"]), changed=True, keeps_write=True)
        table.remove_broker("b-c")
    slices = topic_list(table.names())
    for number in range(1 << 10):
        try:
            next(slices)
        except StopIteration as end:
            assert listed(end.value) == sorted([*many, "own"])
            break
        if number == after:
            table.remove_broker("b-a")
        if number == after + more:
            table.sweep()
    assert listed(at_once(topic_list(table.names()))) in (
        sorted([*many, "own"]),
        sorted([*many[: SLICE_NAMES // 2], "own"]),
    )


def test_a_broker_that_returns_before_it_is_swept_keeps_its_topics() -> None:
    table = TopicTable()
    table.update("b-a", made(["T1", "T2"]), changed=True, keeps_write=True)
    table.remove_broker("b-a")
    table.put("T1", QueueData(broker_name="b-a", read_queue_nums=4, write_queue_nums=4, perm=6))
    assert table.queues("T2") == {} and list(table) == ["T1"] and len(table) == 2
    assert not table.sweep()
    table.check_invariants()
    assert table.queues("T1")["b-a"].write_queue_nums == 4 and len(table) == 1
