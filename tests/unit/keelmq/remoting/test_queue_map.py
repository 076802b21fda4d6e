"""Maps with queues as keys: what Java's tools read and RocketMQ's brokers write."""

import pytest

from keelmq.remoting.queue_map import QueueKey, dump_queue_map, load_queue_map, load_standard

WRITTEN = (
    b'{"consumeTps":0.5,"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"brokerOffset":7},'
    b'{"brokerName":"b{:\\"x}","queueId":1,"topic":"%RETRY%g"}:{"brokerOffset":8}}}'
)
TABLE = {QueueKey("T", "b", 0): {"brokerOffset": 7}, QueueKey("%RETRY%g", 'b{:"x}', 1): {"brokerOffset": 8}}


def test_written_as_fastjson_does_and_read_again() -> None:
    assert dump_queue_map("offsetTable", TABLE.items(), consumeTps=0.5) == WRITTEN
    assert load_queue_map(WRITTEN, "offsetTable") == (TABLE, {"consumeTps": 0.5})


def test_blanks_other_orders_and_nothing_at_all() -> None:
    text = b'{"offsetTable":{ {"topic":"T","queueId":"3","brokerName":"b"} : 5 } , "x": {"a":{"b":1}}}'
    assert load_queue_map(text, "offsetTable") == ({QueueKey("T", "b", 3): 5}, {"x": {"a": {"b": 1}}})
    assert load_queue_map(b"{}", "offsetTable") == ({}, {})
    note = b'{"note":"x,{1}: y","offsetTable":{}}'  # text that only looks like a key
    assert load_queue_map(note, "offsetTable") == ({}, {"note": "x,{1}: y"})
    assert dump_queue_map("offsetTable", []) == b'{"offsetTable":{}}'


@pytest.mark.parametrize("end", [b"", b"\\", b"\\\n"])
@pytest.mark.parametrize("start", [b'"', b'{{"'])
def test_a_string_that_does_not_end_is_read_in_linear_time(start: bytes, end: bytes) -> None:
    with pytest.raises(ValueError):
        load_queue_map(start + b'\\"' * 500_000 + end, "offsetTable")


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"offsetTable":{{"a":1}:2}}', b'{"offsetTable":[1]}', b"\xff"]
)
def test_anything_else_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        load_queue_map(text, "offsetTable")


def test_what_becomes_standard_json_has_a_limit() -> None:
    """A consumer makes such answers, and the event loop waits while they are rewritten."""
    assert load_standard(b'{"a":{{"b":1}:2}}') == {"a": {'{"b":1}': 2}}
    with pytest.raises(ValueError, match="more than 1048576 bytes"):
        load_standard(b'{"a":"%s"}' % (b"x" * 1_048_576))
