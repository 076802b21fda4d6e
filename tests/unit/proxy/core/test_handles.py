"""Receipt handles: of every kind of message, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pop.core.handles import bits_of
from keelmq.remoting.operations.pop import ChangeInvisibleTimeResponse, PopMessageResponse
from proxy.core.handles import Receipt, batch_ack_of, receipt_of, receipts_of
from proxy.core.statuses import Refused
from proxy.wire import messaging_pb2 as pb
from tests.unit.proxy.core.test_messages import stored

HEADER = PopMessageResponse(
    pop_time=1_000,
    invisible_time=60_000,
    revive_qid=2,
    start_offset_info="0 3 5;1 0 8",
    msg_offset_info="0 3 5,7;1 0 8",
)


def receipts(*messages: object, header: PopMessageResponse = HEADER) -> list[tuple[Receipt, int]]:
    return list(receipts_of(list(messages), header, group="g", topic="T", broker_name="b"))  # type: ignore[arg-type]


def test_a_handle_is_made_of_the_answer() -> None:
    [(receipt, attempt)] = receipts(stored({}))
    assert attempt == 1
    assert receipt.text() == "K1 g T 99 5 1000 60000 2 0 b 3 7"
    assert receipt_of(receipt.text(), group="g", topic="T") == receipt
    ack = receipt.ack()
    assert (ack.consumer_group, ack.topic, ack.queue_id, ack.offset) == ("g", "T", 3, 7)
    assert ack.extra_info == "5 1000 60000 2 0 b 3 7"


def test_acknowledgements_of_a_checkpoint_are_one() -> None:
    first, second, other = (
        receipt_of(f"K1 g T 99 {each}", group="g", topic="T")
        for each in ("5 1000 60000 2 0 b 3 7", "5 1000 60000 2 0 b 3 16", "8 1000 60000 2 1 b 0 8")
    )
    one, two = batch_ack_of([first, second, other]).acks
    assert (one.topic, one.group, one.queue_id, one.start_offset, one.pop_ms) == ("T", "g", 3, 5, 1_000)
    assert (one.retry, two.retry, one.revive_queue, one.invisible_ms) == ("0", "1", 2, 60_000)
    assert (bits_of(one.bits), bits_of(two.bits)) == ([2, 11], [0])


@pytest.mark.parametrize(("offset", "fits"), [(4, False), (5, True), (4_100, True), (4_101, False)])
def test_a_batch_names_messages_near_the_first_one(offset: int, fits: bool) -> None:
    assert receipt_of(f"K1 g T 99 5 1000 60000 2 0 b 3 {offset}", group="g", topic="T").fits_batch is fits


def test_a_retry_has_its_own_handle() -> None:
    own = "8 1000 60000 2 1 b 0 8"
    [(receipt, attempt)] = receipts(stored({"POP_CK": own}, queue_id=0, queue_offset=8, reconsume_times=2))
    assert (receipt.text(), attempt) == (f"K1 g T 99 {own}", 3)


def test_a_retry_without_room_for_it_has_that_of_its_topic() -> None:
    [(receipt, _)] = receipts(stored({}, topic="%RETRY%g_T", queue_id=0, queue_offset=8))
    assert receipt.text() == "K1 g T 99 8 1000 60000 2 1 b 0 8"


def test_a_property_that_is_no_handle_is_ignored() -> None:
    [(receipt, _)] = receipts(stored({"POP_CK": "x"}))
    assert receipt.text() == "K1 g T 99 5 1000 60000 2 0 b 3 7"


def test_deliveries_in_order_are_counted_by_the_broker() -> None:
    header = HEADER.model_copy(update={"revive_qid": 999, "order_count_info": "0 qo3%7 4;0 3 1"})
    [(receipt, attempt)] = receipts(stored({}), header=header)
    assert attempt == 5
    assert receipt.handle.is_ordered


def test_a_changed_handle_begins_at_its_message() -> None:
    [(receipt, _)] = receipts(stored({}))
    answer = ChangeInvisibleTimeResponse(pop_time=9, invisible_time=30_000, revive_qid=4)
    assert receipt.changed(answer).text() == "K1 g T 99 7 9 30000 4 0 b 3 7"


GOOD = "K1 g T 99 5 1000 60000 2 0 b 3 7"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "K1",
        "K1 g T",
        "K1 g T 99",
        GOOD.replace(" 99 ", " x "),
        GOOD.replace("K1", "K2"),
        GOOD.replace(" g ", " h "),
        GOOD.replace(" T ", " U "),
        GOOD.replace("1000", "-1"),
        GOOD.replace("1000", "1" * 40),
        GOOD.replace(" b ", "  "),
        GOOD.removesuffix(" 7"),
        "5 1000 60000 2 0 b 3 7",
        GOOD + "x" * 3_000,
    ],
)
def test_what_is_no_handle_of_this_group_and_topic_is_invalid(text: str) -> None:
    """Push consumers repeat every other refusal for ever."""
    with pytest.raises(Refused) as refused:
        receipt_of(text, group="g", topic="T")
    assert refused.value.status.code == pb.INVALID_RECEIPT_HANDLE


@given(text=st.text(), at=st.integers(0, len(GOOD)), end=st.integers(0, len(GOOD)))
def test_a_damaged_handle_is_invalid_or_of_the_same_group_and_topic(text: str, at: int, end: int) -> None:
    try:
        receipt = receipt_of(GOOD[:at] + text + GOOD[end:], group="g", topic="T")
    except Refused as refused:
        assert refused.status.code == pb.INVALID_RECEIPT_HANDLE
    else:
        assert (receipt.group, receipt.topic) == ("g", "T")
        assert receipt.offset >= 0
