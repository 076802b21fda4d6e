"""RemotingCommand against bytes captured from Java peers, both header types, lenient reading."""

import importlib
import json
import pkgutil
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from keelmq.remoting import operations
from keelmq.remoting.body import adapter_of
from keelmq.remoting.command import (
    BadRequest,
    RemotingCommand,
    SerializeType,
    body_bytes,
    decode,
    decode_body,
    encode,
    header_fields,
    parse_header,
    request_command,
    response_frame,
)
from keelmq.remoting.frame import FRAME_BYTES_MAX, FrameDecoder
from keelmq.remoting.operation import LocalProtocolError, Operation, RemoteProtocolError, Wire
from keelmq.remoting.operations.controller import (
    NOTIFY_BROKER_ROLE_CHANGED,
    ControllerMetadata,
    ElectMasterRequest,
    NotifyBrokerRoleChangedRequest,
    SyncStateSet,
)
from keelmq.remoting.operations.route import ClusterInfo, RegisterBrokerRequest, TopicRouteData

FRAMES = Path(__file__).parents[3] / "fixtures" / "frames"
CASES: list[dict[str, Any]] = json.loads((FRAMES / "cases.json").read_text())["frames"]


ODD_MEMBERS = re.compile(rb'"extFields":{}|"processTimer":')


def payload_of(raw: bytes) -> bytes:
    decoder = FrameDecoder()
    decoder.receive_data(raw)
    payload = decoder.next_frame()
    assert payload is not None
    assert decoder.pending_bytes == 0
    return payload


def json_command(text: str, body: bytes = b"") -> RemotingCommand:
    return decode(struct.pack(">I", len(text.encode())) + text.encode() + body)


@pytest.mark.parametrize("case", CASES, ids=lambda case: Path(case["file"]).name)
def test_java_frames(case: dict[str, Any]) -> None:
    raw = (FRAMES / Path(case["file"]).name).read_bytes()
    command = decode(payload_of(raw))
    assert command.code == case["code"]
    assert command.is_response is (case["direction"] == "response")
    assert command.is_oneway is bool(case["oneway"])
    assert command.serialize_type.name == case["serializer"]
    assert command.ext_fields == (case["extFields"] or {})
    assert command.remark == case["remark"]
    assert len(command.body) == case["bodyBytes"]
    assert (command.language, command.version) == ("JAVA", 441)
    again = encode(command)
    assert decode(payload_of(again)) == command
    if case["serializer"] == "JSON" and not ODD_MEMBERS.search(raw):
        assert again == raw  # member order and spelling are Java's


def test_worked_examples_of_the_binary_header() -> None:
    request = RemotingCommand(
        105, 7, ext_fields={"topic": "T1"}, language="JAVA", serialize_type=SerializeType.ROCKETMQ
    )
    head = "00000026 01000022 0069 00 01df 00000007 00000000 00000000 0000000d"
    entry = "0005 746f706963 00000002 5431"
    assert encode(request) == bytes.fromhex(head + entry)
    response = RemotingCommand(
        0, 7, flag=1, body=b"{}", language="JAVA", serialize_type=SerializeType.ROCKETMQ
    )
    raw = bytes.fromhex("0000001b 01000015 0000 00 01df 00000007 00000001 00000000 00000000 7b7d")
    assert encode(response) == raw
    assert decode(raw[4:]) == response


def test_binary_header_limits() -> None:
    with pytest.raises(LocalProtocolError, match="200050"):
        encode(RemotingCommand(200050, serialize_type=SerializeType.ROCKETMQ))
    assert decode(payload_of(encode(RemotingCommand(200050)))).code == 200050
    empty = RemotingCommand(1, ext_fields={"a": "", "b": "x"}, serialize_type=SerializeType.ROCKETMQ)
    assert decode(payload_of(encode(empty))).ext_fields == {"b": "x"}


def test_binary_header_takes_the_last_of_a_doubled_key() -> None:
    entry = b"\x00\x01a\x00\x00\x00\x01"
    entries = entry + b"1" + entry + b"2"
    header = struct.pack(">hBhiii", 1, 0, 0, 5, 0, 0) + struct.pack(">i", len(entries)) + entries
    command = decode(struct.pack(">I", 1 << 24 | len(header)) + header)
    assert command.ext_fields == {"a": "2"}


@pytest.mark.parametrize("at", range(21))
def test_binary_header_too_short(at: int) -> None:
    header = encode(RemotingCommand(1, serialize_type=SerializeType.ROCKETMQ))[8:][:at]
    with pytest.raises(RemoteProtocolError):
        decode(struct.pack(">I", 1 << 24 | at) + header)


@pytest.mark.parametrize(("offset", "value"), [(13, -1), (13, 100), (17, -1), (17, 5), (17, 100)], ids=repr)
def test_binary_header_with_wrong_inner_lengths(offset: int, value: int) -> None:
    header = bytearray(encode(RemotingCommand(1, serialize_type=SerializeType.ROCKETMQ))[8:])
    struct.pack_into(">i", header, offset, value)
    with pytest.raises(RemoteProtocolError):
        decode(struct.pack(">I", 1 << 24 | len(header)) + bytes(header))


@pytest.mark.parametrize(
    "text",
    [
        '{"code":105,"extFields":{"topic":"T1","n":"5"},"flag":2,"language":"JAVA","opaque":7,"version":479}',
        '{"opaque":"7","version":479,"flag":"2","code":"105","extFields":{"n":5,"topic":"T1","x":null}}',
        '{ "code" : 105 , "extFields":{n:"5","topic":"T1"},"remark":null,"flag":2,"opaque":7,"version":479}',
        "{'code':105,'extFields':{'topic':'T1','n':'5'},'flag':2,'language':0,'opaque':7,'version':479,'zz':[1]}",
    ],
)
def test_json_headers_that_java_accepts(text: str) -> None:
    expected = RemotingCommand(
        105, 7, 2, None, {"topic": "T1", "n": "5"}, b"body", language="JAVA", version=479
    )
    assert json_command(text, b"body") == expected


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", "{}", '{"code":null}', '{"code":"x"}', '{"code":1,"opaque":2147483648}', '{"code":1.5}',
     '{"code":1,"extFields":[]}', '{"code":1', '{"code":true}', '{"code":99999999999999999999}',
     '{"code":1,"flag":{}}'],
)  # fmt: skip
def test_json_headers_that_nobody_sends(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        json_command(text)


def test_remark_keeps_line_breaks() -> None:
    frame = response_frame(3, 17, "No topic route info\nSee https://x")
    assert b"\\n" in frame
    assert decode(payload_of(frame)).remark == "No topic route info\nSee https://x"


def test_too_large_frame_is_ours_to_refuse() -> None:
    with pytest.raises(LocalProtocolError, match=str(FRAME_BYTES_MAX)):
        encode(RemotingCommand(1, body=bytes(FRAME_BYTES_MAX)))


def test_request_command_of_an_operation() -> None:
    header = NotifyBrokerRoleChangedRequest(master_epoch=3, broker_name="b")
    command = request_command(NOTIFY_BROKER_ROLE_CHANGED, header, SyncStateSet(sync_state_set=[1]))
    assert (command.code, command.flag) == (1008, 2)
    assert command.ext_fields == {"masterEpoch": "3", "syncStateSetEpoch": "0", "brokerName": "b"}
    assert command.body == b'{"syncStateSet":[1],"syncStateSetEpoch":0}'


def test_header_models_as_text() -> None:
    fields = header_fields(ControllerMetadata(group="g", is_leader=True))
    assert fields == {"group": "g", "isLeader": "true"}
    assert parse_header(ControllerMetadata, fields) == ControllerMetadata(group="g", is_leader=True)


def test_empty_text_and_absent_are_alike() -> None:
    assert parse_header(ElectMasterRequest, {"clusterName": ""}) == parse_header(ElectMasterRequest, {})


def test_bad_headers_name_the_field() -> None:
    good = {"brokerName": "b", "brokerAddr": "a", "clusterName": "c", "brokerId": "7"}
    assert parse_header(RegisterBrokerRequest, good).broker_id == 7
    for key, value in [("brokerId", "x"), ("brokerId", ""), ("compressed", "maybe"), ("brokerName", "")]:
        with pytest.raises(BadRequest, match=key):
            parse_header(RegisterBrokerRequest, {**good, key: value})
    with pytest.raises(BadRequest, match="64-bit"):
        parse_header(RegisterBrokerRequest, {**good, "brokerId": str(2**63)})


class Body(Wire):
    """One member of each kind that fastjson spells its own way."""

    broker_addrs: dict[int, str] = Field(default_factory=dict)
    name: str = "default"
    count: int = 0


@pytest.mark.parametrize(
    "raw",
    [
        b'{"brokerAddrs":{"0":"a:1","-1":"b"},"name":"n","count":1}',
        b'{"brokerAddrs":{0:"a:1",-1:"b"},"name":"n","count":"1","other":null}',
        b"{brokerAddrs:{0:'a:1', -1 : 'b'},name:'n',count:1}",
    ],
)
def test_bodies_as_fastjson_writes_them(raw: bytes) -> None:
    assert decode_body(Body, raw) == Body(broker_addrs={0: "a:1", -1: "b"}, name="n", count=1)


def test_bytes_that_are_not_utf_8_are_read_as_java_reads_them() -> None:
    """A C++ client sends what its program puts into a property. A closed connection would end all of its
    requests."""
    header = (
        b'{"code":310,"extFields":{"i":"KEYS\\u0001\xb6\xa9\\u0002"},"language":"CPP","opaque":9,"version":1}'
    )
    assert decode(struct.pack(">I", len(header)) + header).ext_fields == {"i": "KEYS\x01\ufffd\ufffd\x02"}
    binary = encode(RemotingCommand(310, 9, ext_fields={"i": "xyz"}, serialize_type=SerializeType.ROCKETMQ))
    assert decode(binary[4:].replace(b"xyz", b"caf\xe9"[1:])).ext_fields == {"i": "af\ufffd"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\ud800", "?"),
        (r"\uDFFF\ud83d-", "??-"),
        (r"\ud83d\ude00\ud83d", "\U0001f600?"),
        (r"\\ud800\\\ud800", r"\ud800\?"),
    ],
)
def test_half_of_a_surrogate_pair_is_read_as_java_stores_it(text: str, expected: str) -> None:
    for quote in "\"'":
        header = f'{{"code":310,"opaque":7,"extFields":{{"i":{quote}{text}{quote}}}}}'.encode()
        assert decode(struct.pack(">I", len(header)) + header).ext_fields == {"i": expected}


def test_lenient_rewrite_leaves_text_alone() -> None:
    assert decode_body(Body, b'{count:1,"name":"{0:1,\\"2:3"}').name == '{0:1,"2:3'
    assert decode_body(Body, b'{"name":"a\tb",count:1}').name == "a\tb"
    assert decode_body(Body, b'{"name":null,"count":1}') == Body(count=1)
    assert decode_body(SyncStateSet, b'{"syncStateSet":Set[1,2]}').sync_state_set == [1, 2]


@pytest.mark.parametrize("quote", [b'"', b"'"])
@pytest.mark.parametrize("end", [b"", b"\\"])
def test_lenient_rewrite_is_linear(quote: bytes, end: bytes) -> None:
    """As the square of the length it would be an hour, for a header of an anonymous client as well."""
    text = b"{" + quote + (b"\\" + quote) * 500_000 + end
    with pytest.raises(BadRequest):
        decode_body(Body, text)
    with pytest.raises(RemoteProtocolError):
        decode(struct.pack(">I", len(text)) + text)


@pytest.mark.parametrize("raw", [b"{", b"[]", b"nonsense", b'{"count":"x"}', b"\xff", b"[" * 100_000])
def test_bodies_that_do_not_fit(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_body(Body, raw)


def test_of_a_list_or_a_map_only_the_first_wrong_item_is_told() -> None:
    """All errors of a body that fills a frame were gigabytes, and kept a name server busy for a minute."""
    for wrong, where in (
        (b'{"queueDatas":[' + b"1," * 99_999 + b"1]}", "queueDatas.0"),
        (_map_of(b"1"), "filterServerTable.0"),
        (_map_of(b'["a",1]'), "filterServerTable.0.1"),
    ):
        with pytest.raises(BadRequest, match=f"body member {where}: ") as refused:
            decode_body(TopicRouteData, wrong)
        assert len(refused.value.remark) < 200
    with pytest.raises(BadRequest, match=r"body member 0: [^;]*$"):
        decode_body(list[str], b"[" + b"1," * 99_999 + b"1]")
    route = decode_body(TopicRouteData, _map_of(b'["a"]'))
    assert len(route.filter_server_table) == 20_000 and route.filter_server_table["7"] == ["a"]


def _map_of(value: bytes) -> bytes:
    members = b",".join(b'"%d":%b' % (number, value) for number in range(20_000))
    return b'{"filterServerTable":{' + members + b"}}"


def test_a_large_body_is_standard_json_and_not_dense() -> None:
    dense = b'{"x":[' + b"[]," * 400_000 + b"[]]}"
    with pytest.raises(BadRequest, match="more lists and objects"):
        decode_body(TopicRouteData, dense)
    assert decode_body(TopicRouteData, dense[:30] + b"[]]}") == TopicRouteData()
    nulls = b'{"x":"%b","queueDatas":null}'
    with pytest.raises(BadRequest, match="queueDatas"):
        decode_body(TopicRouteData, nulls % (b"x" * 1_048_576))
    assert decode_body(TopicRouteData, nulls % b"x") == TopicRouteData()


@pytest.mark.parametrize("module", [each.name for each in pkgutil.iter_modules(operations.__path__)])
def test_lists_and_maps_of_every_body_end_at_their_first_wrong_item(module: str) -> None:
    for operation in vars(importlib.import_module(f"{operations.__name__}.{module}")).values():
        for type_ in (getattr(operation, name, None) for name in ("request_body", "response_body")):
            if isinstance(operation, Operation) and type_ not in (None, bytes):
                endless = [each for each in _collections(adapter_of(type_).core_schema) if not each[1]]
                assert not endless, type_


def _collections(node: Any) -> Iterator[tuple[Any, bool]]:
    """Yields each list and map of a core schema, and whether it ends at its first wrong item."""
    if isinstance(node, Mapping):
        if node.get("type") in ("dict", "frozenset", "list", "set", "tuple"):
            yield node, node.get("fail_fast") is True
        node = [part for name, part in node.items() if name not in ("metadata", "serialization")]
    if isinstance(node, (list, tuple)):
        for part in node:
            yield from _collections(part)


def test_empty_bodies() -> None:
    assert decode_body(None, b"ignored") is None
    assert decode_body(bytes, b"") == b""
    assert decode_body(Body, b"") is None
    assert decode_body(list[str], b'["a"]') == ["a"]
    assert body_bytes(None) == b""
    assert body_bytes(memoryview(b"ab")) == b"ab"
    assert body_bytes([Body(count=1), {"b": 1, "a": None}]) == (
        b'[{"brokerAddrs":{},"count":1,"name":"default"},{"a":null,"b":1}]'
    )


def test_captured_bodies_fit_their_models() -> None:
    cluster = decode(payload_of((FRAMES / "106-cluster-info-broker.resp.bin").read_bytes())).body
    assert decode_body(ClusterInfo, cluster).broker_addr_table["broker-a"].broker_addrs[0]
    route = decode(payload_of((FRAMES / "105-topic-route-producer.resp.bin").read_bytes())).body
    assert decode_body(TopicRouteData, route).queue_datas


@pytest.mark.parametrize("serialize_type", SerializeType)
def test_a_received_header_has_a_limit(serialize_type: SerializeType) -> None:
    """An anonymous client's header of 16 MiB with two million fields took six seconds."""
    fields = {f"{number:x}": "" if serialize_type is SerializeType.JSON else "x" for number in range(70_000)}
    command = RemotingCommand(105, 1, ext_fields=fields, serialize_type=serialize_type)
    assert len(decode(encode(command)[4:]).ext_fields) == 70_000
    command.ext_fields = {"x": "x" * 1_048_576}
    with pytest.raises(RemoteProtocolError, match="1048576 is the limit"):
        decode(encode(command)[4:])
