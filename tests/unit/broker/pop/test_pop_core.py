"""The pure parts of pop consumption: handles, bit sets, ordered blocks, and who gets which queues."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.metadata.core.topic_names import retry_topics
from broker.pop.core.allocate import STRATEGIES, Queue, for_pop, for_pull
from broker.pop.core.handles import (
    BadHandle,
    Handle,
    bits_of,
    bits_text,
    order_count_infos,
    parse_handle,
    retry_flag,
    topic_of,
)
from broker.pop.core.order import Block, OrderState, QueueOfGroup
from broker.pop.service import origin_of

NUMBERS = st.integers(0, 2**63 - 1)
PLACE = QueueOfGroup("g", "T", 0)


@given(
    st.builds(
        Handle, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from("012"),
        st.from_regex(r"[a-z0-9-]{1,9}", fullmatch=True), NUMBERS, st.none() | NUMBERS,
    )
)  # fmt: skip
def test_a_handle_is_read_as_it_was_written(handle: Handle) -> None:
    assert parse_handle(handle.text()) == handle


@given(st.text())
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(BadHandle):
        parse_handle(text)


@pytest.mark.parametrize(
    "text", ["1 2 3 4 0", "1 2 3 4 0 b -1", "1 2 3 4 0 b 0 +1", "1 2 3 x 0 b 0 1", "\u0661 2 3 4 0 b 0"]
)
def test_handles_that_are_nearly_one(text: str) -> None:
    with pytest.raises(BadHandle):
        parse_handle(text)


@pytest.mark.parametrize(
    ("text", "queue_id", "offset", "topic"),
    [
        ("1 2 3 4 0 b", -1, None, "T"),  # ExtraInfoUtil reads one field at a time
        ("1 2 3 4 0 b 5", 5, None, "T"),
        ("1 2 3 4 0 b 5 6", 5, 6, "T"),
        ("1 2 3 4 1 b 5 6 7", 5, 6, "%RETRY%g_T"),  # commitLogOffset, of Java's proxy
        ("1 2 3 4 2 b 5 6 7 x", 5, 6, "%RETRY%g+T"),
        ("1 2 3 4 9 b 5 6 7", 5, 6, "T"),  # getRealTopic: any other flag is the topic itself
        ("1 2 3 4 0 b 5 6 ", 5, 6, "T"),  # String.split drops empty fields at the end
    ],
)
def test_a_handle_needs_what_java_reads_of_it(
    text: str, queue_id: int, offset: int | None, topic: str
) -> None:
    found = parse_handle(text)
    assert (found.start_offset, found.pop_ms, found.invisible_ms, found.revive_queue) == (1, 2, 3, 4)
    assert (found.broker_name, found.queue_id, found.offset) == ("b", queue_id, offset)
    assert topic_of(found.retry, "g", "T") == topic


@given(st.sets(st.integers(0, 200)))
def test_bit_sets(bits: set[int]) -> None:
    number = sum(1 << bit for bit in bits)
    raw = base64.b64encode(number.to_bytes(26, "little")).decode()
    assert bits_of(raw) == bits_of(bits_text(bits)) == sorted(bits)


@pytest.mark.parametrize("text", ["*", "A", base64.b64encode(bytes(513)).decode()])
def test_what_is_no_bit_set_is_refused(text: str) -> None:
    with pytest.raises(BadHandle):
        bits_of(text)


def test_names_of_retry_topics() -> None:
    for flag, name in zip("12", retry_topics("g", "T"), strict=True):
        assert retry_flag(name, "g") == flag
        assert topic_of(flag, "g", "T") == name
        assert origin_of("g", name) == "T"
    assert (retry_flag("T", "g"), topic_of("0", "g", "T"), origin_of("g", "T")) == ("0", "T", "T")


def test_counts_of_ordered_messages() -> None:
    assert list(order_count_infos("0", 3, {7: 2, 8: 1}, 2)) == ["0 qo3%7 2", "0 qo3%8 1", "0 3 1"]
    assert list(order_count_infos("0", 3, {7: 2}, 2)) == ["0 qo3%7 2", "0 3 0"]
    assert list(order_count_infos("0", 3, {}, 2)) == ["0 3 0"]


def test_a_block_ends_with_its_last_acknowledgement() -> None:
    pop_state = OrderState()
    pop_state.popped(PLACE, Block(100, 50, (4, 5, 9), 12))
    assert pop_state.is_blocked(PLACE, "", now_ms=149) and not pop_state.is_blocked(PLACE, "", now_ms=150)
    assert pop_state.ack(PLACE, 5, 99) is None and pop_state.ack(PLACE, 6, 100) is None
    for offset, progress in ((5, 4), (4, 9), (9, 12)):
        block = pop_state.ack(PLACE, offset, 100)
        assert block is not None and block.progress == progress
    assert not pop_state.is_blocked(PLACE, "", now_ms=101)
    assert pop_state.blocks == {}
    assert pop_state.next_free(10_000) is None


def test_a_queue_is_free_once_when_its_messages_are_visible() -> None:
    pop_state = OrderState()
    pop_state.popped(PLACE, Block(100, 50, (4, 5), 6))
    assert pop_state.change(PLACE, 4, 100, 300) is not None
    assert pop_state.next_free(299) is None
    assert pop_state.next_free(300) == PLACE
    assert pop_state.next_free(300) is None


def test_a_queue_is_free_earlier_without_its_last_message() -> None:
    pop_state = OrderState()
    pop_state.popped(PLACE, Block(100, 50, (4, 5), 6))
    assert pop_state.change(PLACE, 4, 100, 120) is not None
    assert pop_state.next_free(149) is None
    pop_state.ack(PLACE, 5, 100)
    assert pop_state.next_free(149) == PLACE


QUEUES = [Queue("T", name, queue_id) for name in ("a", "b") for queue_id in range(4)]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("count", [1, 3, 8, 11])
def test_every_queue_is_pulled_by_one(name: str, count: int) -> None:
    clients = [f"c{number:02d}" for number in range(count)]
    shares = [for_pull(client, clients, QUEUES, STRATEGIES[name]) for client in clients]
    assert sorted(queue for share in shares for queue in share) == QUEUES
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert for_pull("other", clients, QUEUES, STRATEGIES[name]) == []


@pytest.mark.parametrize("share", [-1, 0, 2, 5])
def test_everybody_pops_everywhere(share: int) -> None:
    everywhere = [Queue("T", "a", -1), Queue("T", "b", -1)]
    assert for_pop("c1", ["c1", "c2", "c3"], QUEUES, STRATEGIES["AVG"], share) == everywhere


def test_queues_are_shared_with_the_next_ones() -> None:
    clients = [f"c{number}" for number in range(4)]
    mine = for_pop("c3", clients, QUEUES, STRATEGIES["AVG"], 1)
    assert mine == [*QUEUES[6:8], *QUEUES[0:2]]
    many = [f"c{number:02d}" for number in range(11)]
    found = {queue for client in many for queue in for_pop(client, many, QUEUES, STRATEGIES["AVG"], 1)}
    assert found == set(QUEUES)
