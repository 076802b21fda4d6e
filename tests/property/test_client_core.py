"""Decisions of clients against plain models: assignments, offset windows, queue choice, batches."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.message.record import tag_code
from keelmq.client.core.batches import Item, encode_batches
from keelmq.client.core.queue_choice import FaultTable, QueueChooser, back_off_ms, queue_of_key
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.rebalance import allocate_averagely, changes
from keelmq.client.core.subscription import ExpressionType, Subscription, java_hash
from keelmq.client.core.window import Limits, OffsetWindow
from tests.support.batch_parts import as_stored

QUEUES = st.lists(
    st.builds(MessageQueue, st.just("T"), st.sampled_from(["a", "b", "c"]), st.integers(0, 15)), unique=True
)

IDS = st.lists(st.text("ab12", min_size=1, max_size=3), min_size=1, max_size=8)


# -- assignments ------------------------------------------------------------------------------------------


@given(IDS, QUEUES)
def test_every_queue_has_exactly_one_owner_and_nobody_has_two_more_than_another(
    ids: list[str], queues: list[MessageQueue]
) -> None:
    """clients.md checklist 18: ids that are there twice do not break it; any order of the lists will do."""
    shares = [allocate_averagely(each, list(reversed(ids)), queues) for each in sorted(set(ids))]
    assert [queue for share in shares for queue in share] == sorted(queues)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


def test_as_java_divides() -> None:
    """Worked by hand from the rule in clients.md §8: 8 queues, 3 members."""
    queues = [MessageQueue("T", name, index) for name in ("b", "a") for index in (3, 1, 0, 2)]
    share = [allocate_averagely(each, ["y", "x", "z"], queues) for each in "xyz"]
    flat = [[(queue.broker_name, queue.queue_id) for queue in part] for part in share]
    assert flat == [
        [("a", 0), ("a", 1), ("a", 2)], [("a", 3), ("b", 0), ("b", 1)], [("b", 2), ("b", 3)],
    ]  # fmt: skip
    ten = [MessageQueue("T", "a", index) for index in (10, 9, 2)]
    assert [queue.queue_id for queue in allocate_averagely("x", ["x"], ten)] == [2, 9, 10], "by number"


def test_who_is_not_in_the_list_gets_nothing() -> None:
    assert allocate_averagely("me", ["you"], [MessageQueue("T", "a", 0)]) == ()


@given(QUEUES, QUEUES)
def test_changes(before: list[MessageQueue], after: list[MessageQueue]) -> None:
    found = changes(before, after)
    assert set(before) - set(found.removed) | set(found.added) == set(after)
    assert not set(found.added) & set(before) and set(found.removed) <= set(before)


# -- windows ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    queue_offset: int
    held_bytes: int = 100


class Windows(RuleBasedStateMachine):
    """A queue whose consumer pulls, finishes in any order, fails and tries again. The model is a set of all
    offsets that were finished: a crash at any moment must repeat all others, and skip none."""

    def __init__(self) -> None:
        super().__init__()
        self.window: OffsetWindow[Held] = OffsetWindow(5)
        self.taken: list[Held] = []
        self.unfinished: set[int] = set()

    @rule(gaps=st.lists(st.integers(1, 3), max_size=5), skipped=st.integers(0, 3))
    def pull(self, gaps: list[int], skipped: int) -> None:
        """Filtered messages leave gaps, and may end a pull."""
        offset, messages = self.window.next_offset - 1, []
        for gap in gaps:
            offset += gap
            messages.append(Held(offset))
        self.window.add(messages, offset + 1 + skipped)
        self.unfinished |= {message.queue_offset for message in messages}

    @rule()
    def pull_again(self) -> None:
        """An answer that came twice changes nothing."""
        self.window.add([Held(offset) for offset in sorted(self.unfinished)], 0)

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        ready = self.unfinished - {message.queue_offset for message in self.taken}
        found = self.window.take(count)
        assert len(found) == min(count, len(ready)) and not set(found) & set(self.taken)
        self.taken += found

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        message = data.draw(st.sampled_from(self.taken))
        self.taken.remove(message)
        self.window.finish([message, message])
        self.unfinished.discard(message.queue_offset)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def fails(self, data: st.DataObject) -> None:
        message = data.draw(st.sampled_from(self.taken))
        self.taken.remove(message)
        self.window.put_back([message, message])

    @invariant()
    def as_the_model(self) -> None:
        window = self.window
        window.check_invariants()
        assert window.commit_offset == min(self.unfinished, default=window.next_offset)
        assert len(window) == len(self.unfinished)
        assert window.held_bytes == 100 * len(self.unfinished)


TestWindows = Windows.TestCase


def test_limits() -> None:
    window: OffsetWindow[Held] = OffsetWindow(0)
    window.add([Held(0), Held(9)], 10)
    assert window.is_full(Limits(messages_max=2)) and not window.is_full(Limits(messages_max=3))
    assert window.is_full(Limits(bytes_max=200)) and not window.is_full(Limits(bytes_max=201))
    assert window.is_full(Limits(span_max=8)) and not window.is_full(Limits(span_max=9))
    assert not window.is_full(Limits(span_max=None))


# -- queue choice -----------------------------------------------------------------------------------------


@given(QUEUES.filter(bool), st.dictionaries(st.sampled_from("abc"), st.integers(0, 40_000)), st.data())
def test_a_bad_name_is_avoided_while_there_is_another(
    queues: list[MessageQueue], latencies: dict[str, int], data: st.DataObject
) -> None:
    """clients.md pitfall 20: never the broker that just failed, if there is any other one."""
    faults = FaultTable()
    for name, latency in latencies.items():
        faults.answered(name, latency, now_ms=1_000)
    last = data.draw(st.sampled_from(["", "a", "b", "c"]))
    chooser = QueueChooser(faults)
    names = {queue.broker_name for queue in queues}
    others = names - {last} or names
    good = {name for name in others if back_off_ms(latencies.get(name, 0)) == 0}
    for _ in range(3):
        queue = chooser.choose(queues, last, now_ms=1_000)
        assert queue in queues and queue.broker_name in (good or others)


def test_slow_brokers_come_back() -> None:
    faults = FaultTable()
    assert [back_off_ms(ms) for ms in (549, 550, 1_800, 3_000, 5_000, 15_000)] == [
        0, 2_000, 5_000, 6_000, 10_000, 30_000,
    ]  # fmt: skip
    faults.failed("a", now_ms=0)
    assert not faults.is_available("a", now_ms=9_999) and faults.is_available("a", now_ms=10_000)
    faults.failed("b", now_ms=0)
    faults.answered("b", 3, now_ms=1)
    assert faults.is_available("b", now_ms=1), "a good answer clears its name"


@given(QUEUES.filter(bool))
def test_queues_come_in_turn(queues: list[MessageQueue]) -> None:
    chooser = QueueChooser()
    assert [chooser.choose(queues, "", now_ms=0) for _ in range(2 * len(queues))] == queues * 2
    assert QueueChooser().choose([], "", now_ms=0) is None


@given(QUEUES.filter(bool), st.text())
def test_a_key_keeps_its_queue(queues: list[MessageQueue], key: str) -> None:
    chosen = queue_of_key(queues, key)
    assert chosen in queues and chosen == queue_of_key(list(queues), key)
    assert queue_of_key([], key) is None


# -- batches, subscriptions -------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.binary(max_size=300), st.text("abc\x01", max_size=20), st.integers(0, 9))),
    st.integers(1, 900),
    st.integers(1, 5),
)
def test_batches_are_read_by_the_broker_as_they_were_written(
    wanted: list[tuple[bytes, str, int]], bytes_max: int, items_max: int
) -> None:
    items = [Item(body, text + "\x02" if text else "", flag) for body, text, flag in wanted]
    batches = list(encode_batches(items, bytes_max=bytes_max, items_max=items_max))
    read = [item for _, body in batches for item in as_stored(body)]
    assert read == [(item.flag, item.body, item.properties.encode()) for item in items]
    for count, body in batches:
        assert 1 <= count <= items_max and (count == 1 or len(body) <= bytes_max)


def test_properties_that_do_not_fit_a_batch() -> None:
    with pytest.raises(ValueError, match="32767"):
        list(encode_batches([Item(b"", "x" * 32_768)]))


@given(st.text())
def test_tags_have_the_hash_of_the_brokers(tag: str) -> None:
    assert java_hash(tag) == tag_code(tag)


def test_subscriptions() -> None:
    both = Subscription("T", "Aa || BB")
    assert both.wants("Aa") and both.wants("BB") and not both.wants("C") and not both.wants(None)
    assert java_hash("Aa") == java_hash("BB"), "which is why the text is looked at"
    assert Subscription("T", "*").wants(None) and Subscription("T", "a || *").wants("b")
    assert Subscription("T", "a = 'x||y'", ExpressionType.SQL92).wants("anything"), "the broker has judged"
    with pytest.raises(ValueError, match="SQL92"):
        Subscription("T", "*", ExpressionType.SQL92)
