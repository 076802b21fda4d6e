"""Messages with a priority: the broker chooses their queue, whatever type the topic is of."""

from pathlib import Path

import pytest

from broker.handlers.priority import with_queue
from broker.message.record import parse_properties
from keelmq.remoting.operations.route import TopicConfig
from tests.support.handler_parts import Broker, last_record

PRIORITY = "_SYS_MSG_PRIORITY_"


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    broker = Broker(tmp_path)
    broker.topics.update(TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=4))
    return broker


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize(
    ("priority", "queue_id"), [("0", 0), ("2", 2), ("3", 3), ("4", 3), ("2147483647", 3), ("007", 3)]
)
def test_the_priority_is_the_queue(broker: Broker, priority: str, queue_id: int, lenient: bool) -> None:
    """A Java producer sends only the property, and the queue that it would have chosen without."""
    text = f"TAGS\x01A\x02{PRIORITY}\x01{priority}"
    reply = broker.send(b"m", b="T", e="1", i=text, lenient=lenient)
    assert reply is not None and (reply.code, reply.ext_fields["queueId"]) == (0, str(queue_id))
    record = last_record(broker)
    assert record.queue_id == queue_id
    assert parse_properties(record.properties)[PRIORITY] == priority


@pytest.mark.parametrize(
    ("properties", "queue_id"),
    [
        (f"X{PRIORITY}\x013", 1),
        (f"{PRIORITY}X\x013", 1),
        (f"A\x01{PRIORITY}", 1),
        (f"{PRIORITY}\x01", 1),
        ("", 1),
    ],
)
def test_without_a_priority_the_producer_chooses(broker: Broker, properties: str, queue_id: int) -> None:
    reply = broker.send(b"m", b="T", e="1", i=properties)
    assert reply is not None and (reply.code, reply.ext_fields["queueId"]) == (0, str(queue_id))


@pytest.mark.parametrize("other", ["DELAY\x010", "TIMER_DELIVER_MS\x011", "__SHARDINGKEY\x01k"])
def test_another_type_of_message_loses_its_priority(broker: Broker, other: str) -> None:
    """As in RocketMQ 5.5, whose consumers would take such a message for one of the type PRIORITY."""
    reply = broker.send(b"m", b="T", e="1", i=f"{PRIORITY}\x013\x02{other}\x02K\x01v")
    assert reply is not None and (reply.code, reply.ext_fields["queueId"]) == (0, "1")
    stored = parse_properties(last_record(broker).properties)
    assert PRIORITY not in stored
    assert stored["K"] == "v"


def test_a_delayed_message_loses_its_priority(broker: Broker) -> None:
    reply = broker.send(b"m", b="T", e="1", i=f"{PRIORITY}\x013\x02DELAY\x013")
    assert reply is not None and reply.code == 0
    stored = parse_properties(last_record(broker).properties)
    assert (stored["REAL_QID"], PRIORITY in stored) == ("1", False)


def test_a_half_message_loses_its_priority() -> None:
    assert with_queue(f"{PRIORITY}\x013\x02TRAN_MSG\x01true\x02".encode(), 1, 4) == (
        b"TRAN_MSG\x01true\x02",
        1,
    )


@pytest.mark.parametrize("priority", ["3", "high"])
def test_a_consumers_retry_keeps_what_it_has(broker: Broker, priority: str) -> None:
    """Its queue belongs to the retry topic; refused, the message would be lost to the consumer."""
    broker.topics.update(TopicConfig(topic_name="%RETRY%g", read_queue_nums=8, write_queue_nums=8))
    properties = f"{PRIORITY}\x01{priority}\x02DELAY\x013"
    reply = broker.send(b"m", b="%RETRY%g", e="0", i=properties, j="1", l="16")
    assert reply is not None and reply.code == 0, reply
    stored = parse_properties(last_record(broker).properties)
    assert (stored["REAL_QID"], stored[PRIORITY]) == ("0", priority)
