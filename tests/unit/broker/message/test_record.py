"""Records: the peer's own files decoded and encoded to equal bytes, and damage of every kind refused."""

import base64
import json
import struct
from pathlib import Path

import pytest

from broker.message.record import (
    MAGIC_V1,
    MAGIC_V2,
    Record,
    decode,
    encode,
    host_bytes,
    is_incomplete,
    java_hash,
    offset_message_id,
    parse,
    parse_properties,
    property_value,
    tags_code,
    topic_bytes,
)
from broker.store.log.commit_log import CommitLog
from broker.store.log.sync_fault import SyncFault

FIXTURES = Path(__file__).parents[3] / "fixtures" / "store"
FILE_BYTES = 65_536


def peer_records() -> list[tuple[bytes, Record]]:
    """Every record in the peer's CommitLog with its bytes, found by walking the sizes."""
    found = []
    for path in sorted((FIXTURES / "commitlog").iterdir()):
        raw, base, at = path.read_bytes(), int(path.name), 0
        while (parsed := parse(raw, at, len(raw), offset=base + at, check_crc=True)) is not None:
            if raw[at + 4 : at + 8] != b"\xcb\xd4\x31\x94":
                found.append((raw[at : at + parsed[0]], decode(raw, at)))
            at += parsed[0]
        assert not any(raw[at : at + 8]), f"{path.name}: stopped at {at}, before the end"
    return found


RECORDS = peer_records()


def append(log: CommitLog, record: Record) -> int:
    return log.append(
        topic_bytes(record.topic), record.queue_id, record.queue_offset, record.flag, record.sys_flag,
        record.born_timestamp, record.born_host, record.store_host, record.store_timestamp,
        record.reconsume_times, record.body, record.properties, record.prepared_offset,
    )  # fmt: skip


def test_all_of_the_peers_records_decode_as_its_consumer_saw_them() -> None:
    by_offset = {record.offset: record for _, record in RECORDS}
    assert len(by_offset) == 121
    for seen in json.loads((FIXTURES / "messages.json").read_text()):
        record = by_offset[seen["commitLogOffset"]]
        assert (record.topic, record.queue_id, record.queue_offset) == (
            seen["topic"], seen["queueId"], seen["queueOffset"],
        )  # fmt: skip
        assert (record.size, record.crc) == (seen["storeSize"], seen["bodyCRC"])
        assert (record.flag, record.sys_flag) == (seen["flag"], seen["sysFlag"])
        assert record.born_timestamp == seen["bornTimestamp"]
        assert record.store_timestamp == seen["storeTimestamp"]
        assert record.reconsume_times == seen["reconsumeTimes"]
        assert offset_message_id(record.store_host, record.offset) == seen["offsetMsgId"]
        added = {"MIN_OFFSET", "MAX_OFFSET"}
        stored = {key: value for key, value in seen["properties"].items() if key not in added}
        mine = parse_properties(record.properties)
        assert {key: mine.get(key) for key in stored} == stored
        if seen["bodyBase64"] is not None and not record.sys_flag & 1:
            assert record.body == base64.b64decode(seen["bodyBase64"])


def test_re_encoded_records_are_equal_byte_for_byte(tmp_path: Path) -> None:
    """The whole first file of the peer, blank record included."""
    log = CommitLog(tmp_path, FILE_BYTES, sync_fault=SyncFault(pytest.fail))
    log.load()
    for raw, record in RECORDS:
        assert encode(record) == raw
        if record.offset == log.max_offset:
            assert append(log, record) == record.offset
            assert bytes(log.view(record.offset, record.size)) == raw
    assert log.max_offset > 60_000
    log.close()


def test_queue_units_point_at_the_peers_records() -> None:
    by_offset = {record.offset: record for _, record in RECORDS}
    for path in (FIXTURES / "consumequeue" / "FxNormal").rglob("0" * 20):
        raw = path.read_bytes()
        for index in range(len(raw) // 20):
            at = index * 20
            offset, size = (
                int.from_bytes(raw[at : at + 8], "big"),
                int.from_bytes(raw[at + 8 : at + 12], "big"),
            )
            if size == 0:
                break
            record = by_offset[offset]
            assert (record.size, record.queue_offset) == (size, index)
            assert tags_code(record.properties) == int.from_bytes(raw[at + 12 : at + 20], "big", signed=True)


@pytest.mark.parametrize(
    ("topic", "magic"), [("t", MAGIC_V1), ("t" * 127, MAGIC_V1), ("t" * 128, MAGIC_V2), ("名" * 60, MAGIC_V2)]
)
@pytest.mark.parametrize("hosts", ["10.0.0.1", "fd00::1"])
def test_topic_lengths_and_host_widths(tmp_path: Path, topic: str, magic: int, hosts: str) -> None:
    log = CommitLog(tmp_path, FILE_BYTES, sync_fault=SyncFault(pytest.fail))
    log.load()
    host = host_bytes(hosts, 10911)
    sys_flag = 0x30 if ":" in hosts else 0
    record = Record(
        0, magic, 0, 3, 7, 5, 0, sys_flag, 11, host, 12, host, 1, 0, b"body", topic, b"TAGS\x01TagA\x02k\x01v"
    )
    append(log, record)
    view = log.view(0, FILE_BYTES)
    found = decode(view)
    assert (found.magic, found.topic, found.born_host, found.store_host) == (magic, topic, host, host)
    assert (found.flag, found.store_timestamp, found.reconsume_times, found.body) == (7, 12, 1, b"body")
    parsed = parse(view, 0, len(view), offset=0, check_crc=True)
    assert parsed == (len(view), topic.encode(), 3, 5, java_hash("TagA"), 12, record.properties)
    log.close()


def test_every_cut_is_refused() -> None:
    raw, record = RECORDS[0]
    for length in range(len(raw)):
        assert parse(raw[:length], 0, length, offset=record.offset) is None
    assert parse(raw + b"more", 0, len(raw) + 4, offset=record.offset) is not None


def test_every_zeroed_tail_is_refused() -> None:
    """A record that the process died in the middle of: the rest of the file is still zero. Its properties
    have no checksum: a replica that took it for whole had other properties than its master for ever."""
    raw, record = RECORDS[1]
    assert record.properties
    for length in range(len(raw)):
        torn = raw[:length] + bytes(len(raw) - length)
        if torn != raw:
            assert parse(torn, 0, len(raw), offset=record.offset, check_crc=True) is None


def test_a_flipped_body_bit_and_a_foreign_offset_are_refused() -> None:
    raw, record = RECORDS[0]
    flipped = bytearray(raw)
    flipped[88] ^= 1
    assert parse(flipped, 0, len(raw), offset=record.offset, check_crc=True) is None
    assert parse(flipped, 0, len(raw), offset=record.offset) is not None
    assert parse(raw, 0, len(raw), offset=record.offset + 1) is None


def test_a_part_of_a_record_is_incomplete_unless_its_lengths_contradict_its_size() -> None:
    for raw, record in peer_records():
        for end in range(len(raw)):
            assert is_incomplete(raw[:end], record.offset), end
        assert not is_incomplete(raw, record.offset)
        for bit in range(len(raw).bit_length(), 31):
            (size,) = struct.unpack_from(">i", raw)
            larger = struct.pack(">i", size | 1 << bit) + raw[4:]
            assert not is_incomplete(larger, record.offset), "it is all there, and its size is wrong"


def test_java_hash() -> None:
    assert java_hash("") == 0
    assert java_hash("TagA") == 2598919
    assert java_hash("polygenelubricants") == -(2**31)
    assert java_hash("\U0001f600") == 0xD83D * 31 + 0xDE00


def test_property_value_takes_whole_names_only() -> None:
    text = b"XTAGS\x01no\x02TAGS\x01yes\x02KEYS\x01a b"
    assert property_value(text, b"TAGS") == b"yes"
    assert property_value(text, b"KEYS") == b"a b"
    assert property_value(text, b"AGS") is None
    assert property_value(b"", b"TAGS") is None


def test_parse_properties_skips_what_the_peer_skips() -> None:
    assert parse_properties(b"a\x01b\x02c\x01\x02\x01d\x02e\x01f\x01g") == {"a": "b", "e": "f\x01g"}
