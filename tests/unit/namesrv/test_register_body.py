"""The compressed body of 103, against bytes made by the peer (namesrv reference §5.1), and damaged ones."""

import json
import struct
import tracemalloc
import zlib

import pytest

from keelmq.remoting.operations.route import DataVersion
from namesrv.core.register_body import BadBody, check_crc32, inflate_body, is_deflated, read_body

DEFLATED = bytes.fromhex(
    "78da636060b0a8564ace2fcd2b492d52b232d6512a2e492c490d4b2d2acecccf53b232d0512ac9cc4d050ae6162859199a1b20402d"
    "03030323108b85182a5800a19942b0a79fbb8f6b7c88a3bb42354896293a1648320000684b184a"
)


def part(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">i", len(raw)) + raw


def body(*parts: bytes) -> bytes:
    return zlib.compress(b"".join(parts))


VERSION, ONE, NONE = part('{"counter":3}'), struct.pack(">i", 1), struct.pack(">i", 0)


def test_the_peers_bytes() -> None:
    assert is_deflated(DEFLATED, compressed=False) and check_crc32(DEFLATED, 121167055)
    body = inflate_body(DEFLATED, 479)
    assert body.data_version == DataVersion(counter=3, timestamp=1_700_000_000_000)
    ((name, topic),) = body.topics.items()
    assert (name, topic.read_queue_nums, topic.write_queue_nums, topic.perm) == ("T1", 8, 8, 6)


@pytest.mark.parametrize("version", [37, 412, 413, 479])
def test_a_body_without_the_mapping_section(version: int) -> None:
    """Pitfall 8 (#5536): brokers before 5.0 end here, and some later ones too."""
    assert inflate_body(body(VERSION, NONE, part("[]")), version).filter_servers == ()


def test_mappings_and_attributes() -> None:
    mapping = json.dumps({"topic": "T1", "bname": "b-a"})
    raw = body(VERSION, ONE, part("T1 8 8 6 SINGLE_TAG {bad"), part("null"), ONE, part(mapping))
    parsed = inflate_body(raw, 479)
    assert parsed.mappings["T1"]["bname"] == "b-a"
    assert parsed.topics["T1"].perm == 6
    assert parsed.filter_servers is None, "null leaves what is known"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x78garbage",
        DEFLATED[:-9],
        body(b"\0\0"),
        body(struct.pack(">i", -5)),
        body(struct.pack(">i", 500)),
        body(part("{"), NONE, part("[]")),
        body(part("[]"), NONE, part("[]")),
        body(part('{"counter":"x"}'), NONE, part("[]")),
        body(VERSION, struct.pack(">i", -1), part("[]")),
        body(VERSION, ONE, part("T1 8"), part("[]")),
        body(VERSION, ONE, part("T1 8 x 6 SINGLE_TAG {}"), part("[]")),
        body(VERSION, NONE, part('{"a":1}')),
        body(VERSION, NONE, part("[]"), ONE, part("7")),
        body(struct.pack(">i", 2) + b"\xff\xff"),
    ],
)
def test_damaged_bodies_are_one_kind_of_error(raw: bytes) -> None:
    with pytest.raises(BadBody):
        inflate_body(raw, 479)


def test_a_zlib_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("namesrv.core.register_body.INFLATED_BYTES_MAX", 1_000)
    with pytest.raises(BadBody, match="more than 1000 bytes"):
        inflate_body(zlib.compress(bytes(100_000)), 479)


def test_json_that_would_become_gigabytes_of_objects_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("namesrv.core.register_body.JSON_CHARACTERS_MAX", 1_000)
    lists = part('{"topic":"T1","x":[%s[]]}' % ("[]," * 400))
    with pytest.raises(BadBody, match="more than 1000 characters of JSON"):
        inflate_body(body(VERSION, NONE, part("[]"), ONE, lists), 479)
    small = part('{"topic":"T1","x":[%s[]]}' % ("[]," * 100))
    with pytest.raises(BadBody, match="more than 1000 characters of JSON"):
        inflate_body(body(VERSION, NONE, part("[]"), struct.pack(">i", 4), small * 4), 479)


def test_no_more_topics_are_read_than_a_broker_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("namesrv.core.register_body.TOPICS_PER_BROKER_MAX", 1)
    topics = [part(f"T{number} 8 8 6 SINGLE_TAG {{}}") for number in range(2)]
    assert len(inflate_body(body(VERSION, ONE, topics[0], part("[]")), 479).topics) == 1
    with pytest.raises(BadBody, match="2 topics"):
        inflate_body(body(VERSION, struct.pack(">i", 2), *topics, part("[]")), 479)


@pytest.mark.parametrize(
    ("raw", "version", "servers"),
    [
        (b'{"filterServerList":["f:1"]}', 479, ("f:1",)),
        (b"{}", 479, ()),
        (b'{"filterServerList":null}', 479, None),
        (b'{"filterServerList":null,"topicConfigSerializeWrapper":null}', 479, None),
        (b'{"dataVersion":{"counter":"3"}}', 36, None),
        (b"", 479, ()),
    ],
)
def test_absent_filter_servers_go_and_null_ones_stay(
    raw: bytes, version: int, servers: tuple[str, ...] | None
) -> None:
    body = read_body(raw, compressed=False, version=version)
    assert body.filter_servers == servers
    assert body.data_version.counter == (3 if version == 36 else 0)


@pytest.mark.parametrize("lenient", ["", "'single quotes':1,"])
def test_ids_of_mappings_with_bare_keys(lenient: str) -> None:
    """The short way and the lenient one read the same."""
    mapping = '{"S":{"currIdMap":{0:3,-1:4},"topic":"a,1:2 \\"currIdMap\\":{0:1}"}}'
    raw = f'{{{lenient}"topicConfigSerializeWrapper":{{"topicQueueMappingInfoMap":{mapping}}}}}'
    body = read_body(raw.encode(), compressed=False, version=479)
    assert body.mappings == {"S": {"currIdMap": {"0": 3, "-1": 4}, "topic": 'a,1:2 "currIdMap":{0:1}'}}


@pytest.mark.parametrize(
    "ids", ["1" + ":111" * 100_000, "1:1," * 100_000, "1:", ":1", ",", "-", "1:2:3", "1,2"]
)
def test_ids_that_are_no_map_are_refused_at_once(ids: str) -> None:
    """An expression that tries every division of the digits would need years."""
    raw = (
        f'{{"topicConfigSerializeWrapper":{{"topicQueueMappingInfoMap":{{"S":{{"currIdMap":{{{ids}x}}}}}}}}}}'
    )
    with pytest.raises(BadBody):
        read_body(raw.encode(), compressed=False, version=479)


@pytest.mark.parametrize(
    ("members", "remark"),
    [
        ('"topicConfigTable":{"1":{},"2":{},"3":{},"4":{},"5":{},"6":{}}', "more than 2 topics"),
        ('"topicQueueMappingInfoMap":{"S":{"x":[%s1]}}' % ("1234567," * 600_000), "more than 4194304 bytes"),
        ('"topicQueueMappingInfoMap":{"S":{"x":[%s1]}}' % ("[]," * 400_000), "lists and objects"),
        ('"x":[%s1],"topicConfigTable":7' % ("1234567," * 600_000), "are read strictly"),
    ],
)
def test_plain_json_that_would_become_gigabytes_of_objects_is_refused(
    members: str, remark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("namesrv.core.register_body.OBJECTS_OF_TOPICS_MAX", 5)
    monkeypatch.setattr("namesrv.core.register_body.TOPICS_PER_BROKER_MAX", 2)
    raw = f'{{"topicConfigSerializeWrapper":{{{members}}}}}'.encode()
    with pytest.raises(BadBody, match=remark):
        read_body(raw, compressed=False, version=479)


def test_members_that_are_not_kept_are_not_decoded() -> None:
    """A value takes up to thirty times the bytes of its text."""
    other = '"x":[%s1]' % ("1234567," * 1_000_000)
    topic = f'{{"attributes":{{"message.type":"FIFO",{other}}},"perm":"6"}}'
    raw = (
        f'{{{other},"topicConfigSerializeWrapper":{{{other},"topicConfigTable":{{"T1":{topic}}}}}}}'.encode()
    )
    tracemalloc.start()
    try:
        body = read_body(raw, compressed=False, version=479)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert body.ordered == {"T1"} and body.topics["T1"].perm == 6
    assert held < 2 * len(raw)
