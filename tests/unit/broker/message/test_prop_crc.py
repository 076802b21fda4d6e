"""The checksum of the whole record: on every way into the log, and looked at by a start."""

import asyncio
import struct
import zlib
from pathlib import Path

import pytest

from broker.handlers.slow_path_sends import stored_suffix
from broker.message.delay_levels import SCHEDULE_TOPIC, TIMER_TOPIC
from broker.message.prop_crc import (
    EMPTY_PROP_CRC,
    PROP_CRC_BYTES,
    batch_without_crcs,
    parse_with_prop_crc,
    prop_crc,
    recovery_parser,
)
from broker.message.record import PROPERTIES_BYTES_MAX, Record, decode, encode, host_bytes, parse
from broker.put.message_to_store import MessageToStore, PutMessageResult
from broker.store.client_batch import put_batch
from broker.store.log.mapped_file import file_name
from broker.store.message_store import MessageStore, StoreConfig
from broker.store.offline import offline_store
from broker.transactions.messages import HALF_TOPIC, OP_TOPIC
from keelmq.client import Message, Producer, PullConsumer, PushConsumer
from keelmq.client.message import MessageExt
from keelmq.client.producer.transaction import TransactionProducer, TransactionState
from keelmq.remoting.codes import ResponseCode
from pytest_keelmq.cluster import COMMIT_LOG_FILE_BYTES, CONSUME_QUEUE_FILE_BYTES, QUICK_LEVELS, TestBroker
from tests.support.batch_parts import as_stored, item
from tests.support.client_parts import Seen
from tests.support.handler_parts import Broker
from tests.support.store_parts import BORN_HOST, FILE_BYTES, TOPIC, bodies, crash, open_store, put
from tests.unit.broker.handlers.test_inner_batch_handlers import alter_topic, route
from tests.unit.broker.store.test_inner_batch import items, open_batches, put_alone, put_items
from tests.unit.keelmq.client.consumer.test_push_consumer import FIRST

PROP_CRC: dict[str, int] = {"append_prop_crc": True, "verify_prop_crc": True}


def checked(record: bytes) -> Record:
    """With plain zlib: the last 20 bytes say what is in front of them, lowest digit first."""
    digits = record[-11:-1].decode()
    assert record[-PROP_CRC_BYTES:-11] == b"__CRC32#\x01"
    assert record[-1:] == b"\x02"
    assert int(digits[::-1]) == zlib.crc32(record[:-PROP_CRC_BYTES]) & 0x7FFFFFFF
    found = decode(record)
    assert found.size == len(record)
    assert found.properties.count(b"__CRC32#\x01") == 1
    return found


def records(store: MessageStore) -> list[Record]:
    """All of the log, each of them checked."""
    found, at = list[Record](), store.commit_log.min_offset
    while at < store.commit_log.max_offset:
        view = store.commit_log.view(at, store.commit_log.file_bytes)
        parsed = parse(view, 0, len(view), offset=at)
        assert parsed is not None
        if view[4:8] != b"\xcb\xd4\x31\x94":
            found.append(checked(bytes(view[: parsed[0]])))
        at += parsed[0]
    return found


@pytest.mark.parametrize(
    ("crc", "digits"),
    [(0, b"0000000000"), (7, b"7000000000"), (120, b"0210000000"), (0x7FFFFFFF, b"7463847412")],
)
def test_digits(crc: int, digits: bytes) -> None:
    """store.md 2.5."""
    assert prop_crc(crc) == b"__CRC32#\x01" + digits + b"\x02"
    assert len(prop_crc(crc)) == 20


@pytest.mark.parametrize("host", [BORN_HOST, host_bytes("fd00::1", 9)])
@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (b"", b""),
        (b"A\x01b", b"A\x01b\x02"),
        (b"A\x01b\x02", b"A\x01b\x02"),
        (b"__CRC32#\x015\x02A\x01b", b"A\x01b\x02"),
        (b"A\x01b\x02__CRC32#\x011234567890\x02", b"A\x01b\x02"),
        (b"X__CRC32#\x011\x02", b"X__CRC32#\x011\x02"),
    ],
)
def test_a_message(tmp_path: Path, given: bytes, stored: bytes, host: bytes) -> None:
    store = open_store(tmp_path, **PROP_CRC)
    store.put(TOPIC, 0, b"body", given, 0, 0, 1, host, 0, 0)
    raw = bytes(store.commit_log.view(0, FILE_BYTES))
    assert decode(raw).properties[:-PROP_CRC_BYTES] == stored
    digits = raw[-11:-1].decode()
    assert int(digits[::-1]) == zlib.crc32(raw[:-PROP_CRC_BYTES]) & 0x7FFFFFFF
    store.close()


def test_without_the_setting_nothing_is_different(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, tags="a")
    assert decode(bytes(store.commit_log.view(0, FILE_BYTES))).properties == b"TAGS\x01a"
    store.close()


def test_batches_and_records_over_the_end_of_a_file(tmp_path: Path) -> None:
    """What must be removed is removed from each item (pitfall 8: the room is reserved whatever is there)."""
    store = open_batches(tmp_path, **PROP_CRC)
    body = item(b"1", b"A\x01b") + item(b"2", b"__CRC32#\x013\x02A\x01b", 7) + item(b"", b"")
    for number in range(40):
        put(store, b"%d" % number)
        put_batch(store, TOPIC, 1, body, b"CLUSTER\x01c", 0, 7, BORN_HOST, 0, 5_000)
        put_items(store, items(3))
        put_alone(store, b"alone", b"__CRC32#\x013")
    found = records(store)
    assert len(found) == 40 * 6
    assert store.commit_log.max_offset > 3 * FILE_BYTES
    assert (
        found[1].properties[:-PROP_CRC_BYTES]
        == found[2].properties[:-PROP_CRC_BYTES]
        == b"A\x01b\x02CLUSTER\x01c\x02"
    )
    assert found[3].properties[:-PROP_CRC_BYTES] == b"CLUSTER\x01c\x02"
    assert found[4].body == items(3)
    store.set_confirm_offset(store.commit_log.max_offset)
    wanted = bodies(store, 1)
    crash(store)
    store = open_batches(tmp_path, **PROP_CRC)
    assert bodies(store, 1) == wanted
    store.close()


def test_items_without_checksums_are_the_same_bytes() -> None:
    body = item(b"1", b"A\x01b", 5) + item(b"__CRC32#\x01", b"")
    assert batch_without_crcs(item(b"x")) == item(b"x")
    assert as_stored(batch_without_crcs(body)) == as_stored(body)
    with_one = item(b"1", b"__CRC32#\x011\x02A\x01b\x02", 5)
    assert as_stored(batch_without_crcs(with_one)) == [(5, b"1", b"A\x01b\x02")]
    with pytest.raises((ValueError, struct.error)):
        batch_without_crcs(with_one[:-1] + b"\0\0\x02")


def test_properties_leave_room_for_it(tmp_path: Path) -> None:
    """store.md pitfall 8: with the longest properties the record has its size, and its checksum."""
    store = open_store(tmp_path, **PROP_CRC, commit_log_file_bytes=1 << 20)
    longest = PROPERTIES_BYTES_MAX - PROP_CRC_BYTES - len(b"A\x01\x02")
    store.put(TOPIC, 0, b"body", b"A\x01" + b"x" * longest, 0, 0, 1, BORN_HOST, 0, 0)
    with pytest.raises(ValueError, match="properties of 32768 bytes, with the checksum"):
        store.put(TOPIC, 0, b"body", b"A\x01" + b"x" * (longest + 1), 0, 0, 1, BORN_HOST, 0, 0)
    with pytest.raises(ValueError, match="properties of item 0"):
        body = item(b"", b"A\x01" + b"x" * (longest + 1))
        put_batch(store, TOPIC, 0, body, b"", 0, 7, BORN_HOST, 0, 5_000)
    (record,) = records(store)
    assert len(record.properties) == PROPERTIES_BYTES_MAX
    assert put(store)[2] == 1
    store.close()


def with_flag(raw: bytes, flag: int) -> bytes:
    return raw[:16] + flag.to_bytes(4, "big") + raw[20:]


def flag_for(raw: bytes, wanted: int) -> int:
    """That gives the record this CRC-32: it is linear, so each bit of the flag turns the same bits of it."""
    base = zlib.crc32(with_flag(raw, 0))
    basis: dict[int, tuple[int, int]] = {}
    for bit in range(32):
        turned, flag = zlib.crc32(with_flag(raw, 1 << bit)) ^ base, 1 << bit
        while turned and turned.bit_length() in basis:
            other = basis[turned.bit_length()]
            turned, flag = turned ^ other[0], flag ^ other[1]
        assert turned, "four bytes reach every CRC"
        basis[turned.bit_length()] = turned, flag
    rest, found = base ^ wanted, 0
    while rest:
        turned, flag = basis[rest.bit_length()]
        rest, found = rest ^ turned, found ^ flag
    return found


@pytest.mark.parametrize("crc", [0, 0x80000000])
def test_a_checksum_of_zero_is_one(tmp_path: Path, crc: int) -> None:
    """store.md pitfall 7: RocketMQ takes it for none, and the log to end there."""
    store = open_store(tmp_path, **PROP_CRC)
    put(store)
    raw = bytes(store.commit_log.view(0, FILE_BYTES))[:-PROP_CRC_BYTES]
    raw = with_flag(raw, flag_for(raw, crc))
    assert zlib.crc32(raw) == crc
    store.commit_log.truncate(0)
    store.commit_log.store(raw + EMPTY_PROP_CRC)
    crash(store)
    store = open_store(tmp_path, **PROP_CRC)
    assert store.commit_log.max_offset == len(raw) + PROP_CRC_BYTES
    crash(store)
    path = tmp_path / "commitlog" / file_name(0)
    path.write_bytes(raw + prop_crc(1) + path.read_bytes()[len(raw) + PROP_CRC_BYTES :])
    store = open_store(tmp_path, **PROP_CRC)
    assert store.commit_log.max_offset == 0
    store.close()


# -- a start -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "body_crc_sees_it"),
    [(19, False), (47, False), (63, False), (79, False), (-25, False), (88, True), (23, False), (-5, False)],
    ids=["flag", "born", "stored", "prepared", "tag", "body", "queue offset", "checksum"],
)
def test_a_start_sees_what_the_checksum_covers(tmp_path: Path, place: int, body_crc_sees_it: bool) -> None:
    """One bit of the second record: the log ends in front of it."""
    store = open_store(tmp_path, **PROP_CRC)
    _, first_end, _ = put(store, b"one", tags="abcdefgh")
    _, end, _ = put(store, b"two", tags="abcdefgh")
    crash(store)
    path = tmp_path / "commitlog" / file_name(0)
    raw = bytearray(path.read_bytes())
    raw[place + (first_end if place >= 0 else end)] ^= 1
    path.write_bytes(bytes(raw))
    store = open_store(tmp_path, append_prop_crc=True)
    assert store.commit_log.max_offset == (first_end if body_crc_sees_it else end)
    crash(store)
    path.write_bytes(bytes(raw))
    store = open_store(tmp_path, **PROP_CRC)
    assert store.commit_log.max_offset == first_end
    assert put(store)[2] == 1
    store.close()


def test_older_records_have_their_bodys(tmp_path: Path) -> None:
    """The setting may be younger than the log: nothing of it is lost. RocketMQ would cut it."""
    store = open_store(tmp_path)
    ends = [put(store, b"%d" % number)[1] for number in range(3)]
    crash(store)
    store = open_store(tmp_path, **PROP_CRC)
    assert store.commit_log.max_offset == ends[-1]
    put(store, b"with a checksum")
    end = store.commit_log.max_offset
    crash(store)
    path = tmp_path / "commitlog" / file_name(0)
    whole = path.read_bytes()
    for settings in ({}, PROP_CRC):
        path.write_bytes(whole)
        store = open_store(tmp_path, **settings)
        assert store.commit_log.max_offset == end
        crash(store)
    raw = bytearray(whole)
    raw[ends[0] + 88] ^= 1  # of the second one's body
    path.write_bytes(bytes(raw))
    store = open_store(tmp_path, **PROP_CRC)
    assert store.commit_log.max_offset == ends[0]
    store.close()


def test_what_only_looks_like_one_is_none(tmp_path: Path) -> None:
    """A client's own property of that name, in front of the broker's; or with letters for digits."""
    store = open_store(tmp_path)
    for properties in (
        b"__CRC32#\x010000000000\x02CLUSTER\x01c",
        b"__CRC32#\x01zzzzzzzzzz\x02",
        b"C32#\x01123\x02",
    ):
        store.put(TOPIC, 0, b"body", properties, 0, 0, 1, BORN_HOST, 0, 0)
    end = store.commit_log.max_offset
    crash(store)
    store = open_store(tmp_path, **PROP_CRC)
    assert store.commit_log.max_offset == end
    store.close()


async def test_a_copy_does_not_keep_its_originals(tmp_path: Path) -> None:
    """A record that was stored with the setting, and comes back when it is off: at the end of the copy's
    properties it would be taken for the copy's own."""
    broker = Broker(tmp_path, **PROP_CRC)
    broker.send(i="UNIQ_KEY\x01K\x02DELAY\x013")
    broker.tick()
    (delayed,) = records(broker.store)
    broker.store.close()
    broker = Broker(tmp_path)
    topic = broker.topics.get("TopicA")
    assert topic is not None
    letter = MessageToStore(topic, 0, delayed.body, delayed.properties, 0, 0, 1, BORN_HOST, 0)
    stored = broker.writer.put(letter)
    assert isinstance(stored, PutMessageResult)
    copy = decode(broker.store.commit_log.view(stored.offset, FILE_BYTES))
    assert copy.properties == delayed.properties[:-PROP_CRC_BYTES].removesuffix(b"\x02")
    broker.store.close(clean=False)
    again = open_store(tmp_path, commit_log_file_bytes=1 << 20, **PROP_CRC)
    assert again.commit_log.max_offset == stored.end
    again.close()


def test_which_look() -> None:
    assert recovery_parser(check_crc=False, check_prop_crc=True) is parse
    assert recovery_parser(check_crc=True, check_prop_crc=True) is parse_with_prop_crc
    raw = bytearray(encode(decode_of(b"body")))
    raw[88] ^= 1
    assert (
        recovery_parser(check_crc=False, check_prop_crc=False)(bytes(raw), 0, len(raw), offset=0) is not None
    )
    assert recovery_parser(check_crc=True, check_prop_crc=False)(bytes(raw), 0, len(raw), offset=0) is None


def decode_of(body: bytes) -> Record:
    return Record(0, 0, 0, 0, 0, 0, 0, 0, 1, BORN_HOST, 2, BORN_HOST, 0, 0, body, "T", b"")


def test_a_client_is_told_that_its_properties_are_too_long(tmp_path: Path) -> None:
    """Code 13 for what would fit without the checksum, and nothing is stored."""
    plain, with_crc = Broker(tmp_path / "plain"), Broker(tmp_path / "with-crc", **PROP_CRC)
    given = "UNIQ_KEY\x01K\x02A\x01"
    suffix = len(stored_suffix("c")) + 1
    left = PROPERTIES_BYTES_MAX - suffix - PROP_CRC_BYTES - len(given) - 1
    for broker, length, code in (
        (with_crc, left, 0),
        (with_crc, left + 1, ResponseCode.MESSAGE_ILLEGAL),
        (plain, left + 1, 0),
    ):
        for topic in ("TopicA", "New"):  # the fast path, and the slow path
            reply = broker.send(i=given + "x" * length, b=topic)
            assert reply is not None
            assert reply.code == code
    assert [len(record.properties) for record in records(with_crc.store)] == [PROPERTIES_BYTES_MAX] * 2


# -- every way into the log ----------------------------------------------------------------------------------


async def commits(message: MessageExt) -> TransactionState:
    return TransactionState.COMMIT


@pytest.mark.slow
def test_every_record_of_a_broker_has_it(tmp_path: Path) -> None:
    """Plain, batch, inner batch, delayed and its delivery, timer, half message and what decides it, a message
    that is sent back: each once, also the copies of records that have one."""
    with TestBroker(tmp_path, {"enabledAppendPropCRC": True, "messageDelayLevel": QUICK_LEVELS}) as broker:
        assert not alter_topic(broker, "Batches", "-a", "+queue.type=BatchCQ")
        asyncio.run(all_ways(broker.namesrv_addr))
    store = offline_store(StoreConfig(tmp_path / "store", COMMIT_LOG_FILE_BYTES, CONSUME_QUEUE_FILE_BYTES))
    store.load()
    found = records(store)
    topics = {record.topic for record in found}
    assert {
        "Plain",
        "Batches",
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC.name,
        OP_TOPIC.name,
        "%RETRY%g",
    } <= topics
    store.close()


async def all_ways(address: str) -> None:
    seen = Seen(lambda message: ValueError("once") if message.reconsume_times == 0 else None)
    async with PullConsumer(address) as consumer, Producer(address) as producer:
        await route(consumer, "Batches")
        await producer.send(Message("Plain", b"1"))
        await producer.send(Message("Plain", b"2", delay_level=1))
        await producer.send(Message("Plain", b"3", properties={"TIMER_DELAY_MS": "1000"}))
        for topic in ("Plain", "Batches"):
            await producer.send_batch([Message(topic, b"4"), Message(topic, b"5")])
        async with TransactionProducer(address, "g", commits) as halves:
            assert await (await halves.begin(Message("Plain", b"6"))).commit()
        async with PushConsumer(address, "g", seen, settings=FIRST).subscribe("Plain"):
            await seen.has(12)
    again = [each.body for each in seen.messages if each.reconsume_times]
    assert sorted(again) == [b"1", b"2", b"3", b"4", b"5", b"6"]
