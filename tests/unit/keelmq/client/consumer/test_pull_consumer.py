"""Records of pull bodies, and the pull consumer against a scripted broker."""

import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keelmq.client import DamagedRecord, MessageQueue, PullConsumer, PullError, PullErrorKind, PullStatus
from keelmq.client.message import (
    INNER_BATCH_FLAGS,
    MessageExt,
    decode_messages,
    decode_properties,
    decode_pull,
)
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import decode
from keelmq.remoting.damage_remarks import DamagedMessage, message_remark
from keelmq.remoting.operation import CommandError, RemoteProtocolError
from tests.support.fake_cluster import FakeBroker, FakeNameServer, pull_reply
from tests.support.java_reader import java_decodes

FRAME = Path(__file__).parents[4] / "fixtures" / "frames" / "11-pull-pull-consumer-1.resp.bin"
TOPIC = "TopicX"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)


@pytest.fixture(scope="module")
def captured() -> bytes:
    """The body of a pull answered by a Java broker: 28 records."""
    return decode(FRAME.read_bytes()[4:]).body


def test_captured_records(captured: bytes) -> None:
    messages = decode_messages(captured, "broker-a")
    assert [message.queue_offset for message in messages] == list(range(28))
    first = messages[0]
    assert (first.topic, first.body, first.tags, first.keys) == (
        "FxNormal",
        b"body ",
        "TagA",
        "key-0 order-0",
    )
    assert (first.born_host, first.store_host) == ("127.0.0.1:35568", "127.0.0.1:18811")
    assert (first.born_timestamp, first.physical_offset, first.stored_bytes) == (1795247422220, 0, 294)
    assert first.msg_id == "FD00000000000000000000000000000270785FFD2B2768ADD30A0000"
    assert first.properties["地区"].startswith("东京")
    assert len(captured) == sum(message.stored_bytes for message in messages)


def test_every_cut_is_refused(captured: bytes) -> None:
    body = captured[:294]
    assert len(decode_messages(body)) == 1
    for end in range(1, len(body)):
        with pytest.raises(RemoteProtocolError):
            decode_messages(body[:end])


@pytest.mark.parametrize("position", [4, 8, 90], ids=["magic", "crc", "body"])
def test_damage_is_refused(captured: bytes, position: int) -> None:
    body = bytearray(captured[:294])
    body[position] ^= 0x55
    with pytest.raises(RemoteProtocolError):
        decode_messages(bytes(body))


HOST = bytes([10, 0, 0, 1]) + struct.pack(">i", 9)


def record(
    body: bytes,
    *,
    sys_flag: int,
    born: bytes = HOST,
    store: bytes = HOST,
    topic: str | bytes,
    v2: bool,
    properties: bytes = b"a\x01b\x02",
) -> bytes:
    name = topic.encode() if isinstance(topic, str) else topic
    length = struct.pack(">h" if v2 else ">B", len(name))
    magic = -626843477 if v2 else -626843481
    crc = zlib.crc32(body) & 0x7FFFFFFF
    rest = struct.pack(">iiiiqqiq", magic, crc, 3, 9, 5, 700, sys_flag, 1234) + born
    rest += struct.pack(">q", 5678) + store + struct.pack(">iqi", 2, 0, len(body)) + body
    rest += length + name + struct.pack(">h", len(properties)) + properties
    return struct.pack(">i", len(rest) + 4) + rest


def test_v2_record_with_ipv6_hosts_and_compressed_body() -> None:
    host6 = bytes.fromhex("20010db8000000000000000000000001") + struct.pack(">i", 10911)
    host4 = bytes([10, 0, 0, 1]) + struct.pack(">i", 9)
    topic = "T" * 200
    packed = zlib.compress(b"hello")
    body = record(packed, sys_flag=0x301 | 0x10 | 0x20, born=host6, store=host6, topic=topic, v2=True)
    body += record(b"lz4?", sys_flag=0x101, born=host4, store=host4, topic="t", v2=False)
    first, second = decode_messages(body)
    assert (first.topic, first.body, first.properties) == (topic, b"hello", {"a": "b"})
    assert first.born_host == first.store_host == "[2001:db8:0:0:0:0:0:1]:10911"
    assert (first.queue_id, first.flag, first.queue_offset, first.physical_offset) == (3, 9, 5, 700)
    assert (first.born_timestamp, first.store_timestamp, first.reconsume_times) == (1234, 5678, 2)
    assert second.born_host == "10.0.0.1:9" and second.body_error.startswith("the body cannot be inflated")


def pulled(
    body: bytes, name: str = "", *, begin: int, end: int
) -> tuple[list[MessageExt], list[DamagedRecord]]:
    found = decode_pull(body, name, begin=begin, end=end)
    assert found.end == end
    return found.messages, found.damaged


def item(body: bytes, properties: bytes) -> bytes:
    """A message of an inner batch."""
    size = 22 + len(body) + len(properties)
    return (
        struct.pack(">iiiii", size, 0, 0, 0, len(body))
        + body
        + struct.pack(">h", len(properties))
        + properties
    )


def test_text_that_is_not_utf_8_comes_with_replacement_characters() -> None:
    """It would be pulled again and again, and hold up its queue for every group."""
    latin = "k\x01café\x02".encode("latin-1")
    pulled = record(b"1", sys_flag=0, topic="té".encode("latin-1"), v2=False, properties=latin)
    pulled += record(item(b"2", latin) + item(b"3", b""), sys_flag=INNER_BATCH_FLAGS, topic="T", v2=True)
    first, second, third = decode_messages(pulled)
    assert (first.topic, first.properties) == ("t\ufffd", {"k": "caf\ufffd"})
    assert (second.body, second.properties, third.body) == (b"2", {"k": "caf\ufffd"}, b"3")


def test_a_batch_with_a_negative_length_is_one_message() -> None:
    """RocketMQ's brokers store it without a check. Such an item ends where it begins: it was read for
    ever."""
    backwards = struct.pack(">iiiiih", 0, 0, 0, 0, 0, -22)
    (found,) = decode_messages(record(backwards, sys_flag=INNER_BATCH_FLAGS, topic="T", v2=True))
    assert found.body == backwards


def test_properties_are_read_leniently() -> None:
    assert decode_properties("a\x01b\x02c\x01\x02\x01d\x02e\x02f\x01g\x01h") == {"a": "b", "f": "g\x01h"}


@pytest.fixture
async def consumer(name_server: FakeNameServer) -> AsyncIterator[PullConsumer]:
    async with PullConsumer(name_server.address, "cg") as consumer:
        yield consumer


async def test_queues_and_offsets(consumer: PullConsumer) -> None:
    queues = await consumer.fetch_queues(TOPIC)
    assert queues == [MessageQueue(TOPIC, "broker-a", index) for index in range(4)]
    assert (await consumer.min_offset(queues[0]), await consumer.max_offset(queues[0])) == (2, 7)


async def test_found(consumer: PullConsumer, broker: FakeBroker, captured: bytes) -> None:
    broker.pull_replies = [pull_reply(0, next_begin_offset=28, body=captured)]
    result = await consumer.pull(QUEUE, 0, suspend_ms=1_500)
    assert (result.status, len(result.messages), result.next_begin_offset) == (PullStatus.FOUND, 28, 28)
    request = broker.pulls[0]
    assert (request.sys_flag, request.suspend_timeout_millis, request.consumer_group) == (6, 1_500, "cg")
    assert result.messages[0].broker_name == "broker-a"


async def test_tags_are_compared_as_text(consumer: PullConsumer, broker: FakeBroker, captured: bytes) -> None:
    broker.pull_replies = [pull_reply(0, next_begin_offset=28, body=captured)]
    result = await consumer.pull(QUEUE, 0, subscription="TagA || Nothing")
    assert result.messages and {message.tags for message in result.messages} == {"TagA"}
    assert (broker.pulls[0].subscription, broker.pulls[0].sys_flag) == ("TagA || Nothing", 4)


@pytest.mark.parametrize(
    "status", [PullStatus.NO_NEW_MSG, PullStatus.NO_MATCHED_MSG, PullStatus.OFFSET_ILLEGAL]
)
async def test_nothing_found(consumer: PullConsumer, broker: FakeBroker, status: PullStatus) -> None:
    broker.pull_replies = [pull_reply(int(status), next_begin_offset=11)]
    result = await consumer.pull(QUEUE, 40)
    assert (result.status, result.messages, result.next_begin_offset) == (status, (), 11)


async def test_reads_go_on_at_a_slave_when_the_master_is_gone(
    consumer: PullConsumer, broker: FakeBroker, name_server: FakeNameServer
) -> None:
    await consumer.fetch_queues(TOPIC)
    async with FakeBroker() as slave:
        slave.pull_replies = [pull_reply(19, next_begin_offset=3)]
        await broker.server.close()
        name_server.routes[TOPIC] = {2: slave.address}
        assert (await consumer.pull(QUEUE, 3)).status is PullStatus.NO_NEW_MSG


async def test_refusal_until_the_deadline(consumer: PullConsumer, broker: FakeBroker) -> None:
    broker.pull_replies = [CommandError(ResponseCode.NO_PERMISSION, "no") for _ in range(100)]
    with pytest.raises(PullError) as caught:
        await consumer.pull(QUEUE, 0, timeout_ms=60)
    assert caught.value.kind is PullErrorKind.REFUSED and "16 no" in caught.value.remark


# -- damaged records ---------------------------------------------------------------------------------------


def starts_of(captured: bytes) -> list[int]:
    """Returns the position of each of the 28 records, and the end."""
    sizes = [message.stored_bytes for message in decode_messages(captured)]
    return [sum(sizes[:number]) for number in range(len(sizes) + 1)]


def spoiled(captured: bytes, number: int, *, zeros: bool = False, at: int = 8) -> bytes:
    """Returns the body with one damaged record: zeros, or a flipped bit, in BODYCRC unless `at` says
    otherwise."""
    starts = starts_of(captured)
    body = bytearray(captured)
    if zeros:
        body[starts[number] : starts[number + 1]] = bytes(starts[number + 1] - starts[number])
    else:
        body[starts[number] + at] ^= 1
    return bytes(body)


@pytest.mark.parametrize("zeros", [False, True], ids=["flipped bit", "zeros"])
def test_the_good_records_around_every_damaged_one_are_messages(captured: bytes, zeros: bool) -> None:
    for number in range(28):
        messages, damaged = pulled(spoiled(captured, number, zeros=zeros), "b", begin=0, end=28)
        assert [each.queue_offset for each in messages] == [each for each in range(28) if each != number]
        (record,) = damaged
        assert (record.queue_offset, record.end_offset) == (number, number + 1)
        assert record.physical_offset == (
            None if zeros else decode_messages(captured)[number].physical_offset
        )
        assert ("magic code 0" if zeros else "CRC") in record.reason


def test_a_java_client_loses_the_rest_of_a_pull_with_zeros_and_delivers_a_flipped_bit(
    captured: bytes,
) -> None:
    """So a broker must not send them: every client but ours is left with less."""
    assert [each.queue_offset for each in java_decodes(captured)] == list(range(28))
    assert [each.body for each in java_decodes(captured)] == [each.body for each in decode_messages(captured)]
    assert [each.queue_offset for each in java_decodes(spoiled(captured, 5, zeros=True))] == list(range(5))
    flipped = java_decodes(spoiled(captured, 5, at=90))
    assert len(flipped) == 28 and flipped[5].body != decode_messages(captured)[5].body


def test_a_wrong_size_or_a_cut_hides_only_what_it_covers(captured: bytes) -> None:
    starts = starts_of(captured)
    for field in range(8):  # TOTALSIZE, MAGICCODE
        body = bytearray(captured)
        body[starts[3] + field] ^= 0x40
        messages, damaged = pulled(bytes(body), begin=0, end=28)
        assert [each.queue_offset for each in messages] == [each for each in range(28) if each != 3], field
        assert [(each.queue_offset, each.end_offset) for each in damaged] == [(3, 4)]
    messages, damaged = pulled(captured[:-1], begin=0, end=28)
    assert len(messages) == 27 and [(each.queue_offset, each.end_offset) for each in damaged] == [(27, 28)]
    messages, damaged = pulled(captured[: starts[20]] + bytes(500), begin=0, end=28)
    assert len(messages) == 20 and [(each.queue_offset, each.end_offset) for each in damaged] == [(20, 28)]
    nothing, damaged = pulled(b"garbage", begin=4, end=4)
    assert nothing == [] and [(each.queue_offset, each.end_offset) for each in damaged] == [(4, 5)]


def test_a_record_between_messages_that_were_filtered_out_is_one_message(captured: bytes) -> None:
    """Its header says which one. Zeros say nothing: any of those between the good ones may be meant."""
    starts = starts_of(captured)
    for zeros, expected in ((False, (5, 6)), (True, (4, 9))):
        bad = spoiled(captured, 5, zeros=zeros)[starts[5] : starts[6]]
        body = captured[starts[3] : starts[4]] + bad + captured[starts[9] : starts[10]]
        messages, (record,) = pulled(body, begin=0, end=28)
        assert [each.queue_offset for each in messages] == [3, 9]
        assert (record.queue_offset, record.end_offset) == expected


def test_any_flipped_bit_costs_one_message_at_most(captured: bytes) -> None:
    starts = starts_of(captured)
    body, whole = captured[: starts[3]], decode_messages(captured[: starts[3]])
    for position in range(starts[1], starts[2]):
        for bit in (0x01, 0x80):
            copy = bytearray(body)
            copy[position] ^= bit
            messages, damaged = pulled(bytes(copy), begin=0, end=3)
            assert messages[0] == whole[0] and messages[-1] == whole[2], position
            assert len(messages) == 3 or [each.queue_offset for each in damaged] == [1], position
            assert bool(damaged) is (len(messages) == 2)


async def test_a_damaged_record_comes_from_another_replica(
    consumer: PullConsumer, broker: FakeBroker, name_server: FakeNameServer, captured: bytes
) -> None:
    starts = starts_of(captured)
    async with FakeBroker() as slave:
        name_server.routes[TOPIC] = {0: broker.address, 2: slave.address}
        whole = pull_reply(0, next_begin_offset=6, body=captured[starts[5] : starts[6]])
        damaged = pull_reply(0, next_begin_offset=28, body=spoiled(captured, 5))
        at_master = pull_reply(0, next_begin_offset=6, body=spoiled(captured, 5)[starts[5] : starts[6]])
        broker.pull_replies, slave.pull_replies = [damaged, at_master], [whole]
        result = await consumer.pull(QUEUE, 0, suspend_ms=1_000)
        assert [each.queue_offset for each in result.messages] == list(range(28)) and result.damaged == ()
        assert result.messages[5].body == decode_messages(captured)[5].body
        (asked,) = slave.pulls
        assert (asked.queue_offset, asked.max_msg_nums, asked.sys_flag, asked.suspend_timeout_millis) == (
            5,
            1,
            4,
            0,
        )


async def test_what_no_replica_can_deliver_is_reported(
    consumer: PullConsumer, broker: FakeBroker, captured: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    starts = starts_of(captured)
    damaged = pull_reply(0, next_begin_offset=28, body=spoiled(captured, 5))
    again = pull_reply(0, next_begin_offset=6, body=spoiled(captured, 5)[starts[5] : starts[6]])
    broker.pull_replies = [damaged, again]
    result = await consumer.pull(QUEUE, 0)
    assert [each.queue_offset for each in result.messages] == [each for each in range(28) if each != 5]
    assert [each.queue_offset for each in result.damaged] == [5] and result.next_begin_offset == 28
    (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "topic TopicX, broker broker-a, queue 0, offset 5" in line.getMessage()


REMARK = message_remark(DamagedMessage("TopicX", 0, 5, 6, 1470, 1764, "its checksum is wrong"))


async def test_a_broker_that_knows_of_the_damage_is_not_asked_until_the_timeout(
    consumer: PullConsumer, broker: FakeBroker
) -> None:
    """Its refusal says which message, so the caller can wait, or go on behind it."""
    refusal = CommandError(ResponseCode.SYSTEM_ERROR, REMARK)
    broker.pull_replies = [refusal, refusal]
    with pytest.raises(PullError, match="is damaged") as caught:
        await consumer.pull(QUEUE, 5, timeout_ms=60_000)
    assert caught.value.damaged == DamagedRecord(5, 6, 1470, "its checksum is wrong")
    assert caught.value.kind is PullErrorKind.REFUSED and len(broker.pulls) == 2


async def test_a_message_that_the_master_refuses_as_damaged_is_read_at_a_slave(
    consumer: PullConsumer, broker: FakeBroker, name_server: FakeNameServer, captured: bytes
) -> None:
    starts = starts_of(captured)
    async with FakeBroker() as slave:
        name_server.routes[TOPIC] = {0: broker.address, 2: slave.address}
        refusal = CommandError(ResponseCode.SYSTEM_ERROR, REMARK)
        broker.pull_replies = [refusal, refusal]
        slave.pull_replies = [pull_reply(0, next_begin_offset=6, body=captured[starts[5] : starts[6]])]
        result = await consumer.pull(QUEUE, 5)
        assert [each.queue_offset for each in result.messages] == [5] and result.next_begin_offset == 6


@pytest.mark.parametrize(("asked", "end"), [(5, 8), (6, 8), (9, 10)])
async def test_a_damaged_batch_is_known_with_all_its_messages(
    consumer: PullConsumer, broker: FakeBroker, asked: int, end: int
) -> None:
    """So a consumer that goes on behind it does not ask for the same batch again; nor one in front of it."""
    remark = REMARK.replace("message 5", "messages 5 to 7")
    broker.pull_replies = [CommandError(ResponseCode.SYSTEM_ERROR, remark)] * 2
    with pytest.raises(PullError, match="is damaged") as caught:
        await consumer.pull(QUEUE, asked)
    assert caught.value.damaged == DamagedRecord(asked, end, 1470, "its checksum is wrong")
