"""What a broker writes about a damaged message is what a client reads."""

import pytest

from keelmq.remoting.damage_remarks import DamagedMessage, damaged_message, message_remark, record_remark


@pytest.mark.parametrize(
    "reason",
    [
        "the checksum of the record at 1470 does not match its body",
        "no record is at 1470: size 0, magic code 0x0",
        "a text; with a semicolon",
    ],
)
@pytest.mark.parametrize("topic", ["T", "%RETRY%a-group", "t,queue"])
@pytest.mark.parametrize("messages", [1, 3])
def test_a_remark_is_read_as_it_was_written(topic: str, messages: int, reason: str) -> None:
    message = DamagedMessage(topic, 3, 5, 5 + messages, 1470, 1764, reason)
    assert damaged_message(message_remark(message)) == message
    assert damaged_message(f"127.0.0.1:1 answered 1 {message_remark(message)}") == message


def test_another_remark_names_no_message() -> None:
    assert damaged_message(record_remark("the record at 1470", 1470, 1764, "x")) is None
    assert (
        damaged_message("") is None and damaged_message("message 5 of topic T, queue 0, is damaged") is None
    )
