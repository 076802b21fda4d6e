"""904 on the controller's data path: what it costs, and that every way of saying it is understood alike."""

import asyncio

import pytest

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand, SerializeType, decode, encode
from keelmq.remoting.connection import Connection
from keelmq.remoting.dispatch import Dispatcher
from keelmq.remoting.operations.route import BrokerHeartbeatRequest
from namesrv.core.liveness import BrokerKey
from namesrv.plugins.controller.election.liveness_view import Heartbeat
from namesrv.plugins.controller.requests.heartbeats import Fields, HeartbeatCommand
from tests.support.controller_fakes import CLUSTER, GROUP, Bench

FIELDS = {
    "clusterName": CLUSTER,
    "brokerName": GROUP,
    "brokerAddr": "10.0.0.1:10911",
    "brokerId": "1",
    "epoch": "7",
    "maxOffset": "123456789012",
    "confirmOffset": "123456789000",
    "heartbeatTimeoutMills": "3000",
    "electionPriority": "3",
}


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.written.append(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...


def exchange(bench: Bench, *frames: bytes) -> list[RemotingCommand]:
    """What one read with these frames is answered."""
    scratch = memoryview(bytearray(65_536))
    dispatcher = Dispatcher(
        bench.plugin.table, name="test", bad_request_code=ResponseCode.CONTROLLER_INVALID_REQUEST
    )
    nothing = lambda _connection: None  # noqa: E731
    connection = Connection(dispatcher, scratch, on_made=nothing, on_lost=nothing)
    transport = Transport()
    connection.connection_made(transport)
    data = b"".join(frames)
    connection.get_buffer(0)[: len(data)] = data
    connection.buffer_updated(len(data))
    assert len(asyncio.all_tasks()) == 1, "no task for a heartbeat"
    assert len(transport.written) <= 1, "one write for all replies of a read"
    answers, out = [], b"".join(transport.written)
    while out:
        size = 4 + int.from_bytes(out[:4], "big")
        answers.append(decode(out[4:size]))
        out = out[size:]
    return answers


def frame(
    fields: dict[str, str], *, flag: int = 0, serialize_type: SerializeType = SerializeType.JSON
) -> bytes:
    return encode(RemotingCommand(904, opaque=5, flag=flag, ext_fields=fields, serialize_type=serialize_type))


async def test_a_heartbeat_is_answered_and_remembered(bench: Bench) -> None:
    (answer,) = exchange(bench, frame(FIELDS))
    assert (answer.code, answer.opaque, answer.remark) == (0, 5, "Heart beat success")
    (key,) = bench.liveness.keys()
    assert key == (CLUSTER, GROUP, 1)
    heard = bench.liveness.info(key)
    assert isinstance(heard, Heartbeat)
    live = heard.live
    assert (live.epoch, live.max_offset, live.confirm_offset, live.election_priority) == (
        7, 123456789012, 123456789000, 3,
    )  # fmt: skip


async def test_oneway_has_no_answer(bench: Bench) -> None:
    assert exchange(bench, frame(FIELDS, flag=2), frame(FIELDS | {"brokerId": "2"}, flag=2)) == []
    assert sorted(bench.liveness.keys()) == [(CLUSTER, GROUP, 1), (CLUSTER, GROUP, 2)]


async def test_the_binary_header_and_odd_numbers_say_the_same(bench: Bench) -> None:
    odd = FIELDS | {"epoch": "007", "heartbeatTimeoutMills": "", "electionPriority": ""}
    answers = exchange(bench, frame(FIELDS, serialize_type=SerializeType.ROCKETMQ), frame(odd), frame(FIELDS))
    assert [answer.code for answer in answers] == [0, 0, 0]
    assert len(list(bench.liveness.keys())) == 1


async def test_a_full_table_hears_registered_brokers_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.group_of(1)
    bench.lose(1)
    exchange(bench, frame(FIELDS | {"brokerName": "invented", "brokerId": "7"}))
    monkeypatch.setattr("namesrv.plugins.controller.requests.heartbeats.KEYS_MAX", 1)
    (refused,) = exchange(bench, frame(FIELDS | {"brokerName": "another"}))
    assert refused.code == ResponseCode.SYSTEM_BUSY
    answer = exchange(bench, frame(FIELDS | {"minInSyncReplicas": "1"}))[-1]
    assert answer.code == 0
    known = set(bench.liveness.keys())
    assert known == {BrokerKey(CLUSTER, "invented", 7), BrokerKey(CLUSTER, GROUP, 1)}
    assert bench.liveness.is_active(BrokerKey(CLUSTER, GROUP, 1), bench.now_ms)


@pytest.mark.parametrize("name", ["clusterName", "brokerName", "brokerAddr"])
@pytest.mark.parametrize("serialize_type", SerializeType)
async def test_names_have_a_limit(bench: Bench, name: str, serialize_type: SerializeType) -> None:
    """300,000 brokers may be known, and a header may have 16 MiB."""
    (taken,) = exchange(bench, frame(FIELDS | {name: "x" * 512}, serialize_type=serialize_type))
    (refused,) = exchange(bench, frame(FIELDS | {name: "x" * 513}, serialize_type=serialize_type))
    assert (taken.code, refused.code) == (0, ResponseCode.CONTROLLER_INVALID_REQUEST)
    assert len(list(bench.liveness.keys())) == 1


@pytest.mark.parametrize("name", ["clusterName", "brokerName", "brokerAddr", "brokerId"])
@pytest.mark.parametrize("serialize_type", SerializeType)
@pytest.mark.parametrize("value", [None, ""])
async def test_what_must_be_there(
    bench: Bench, name: str, serialize_type: SerializeType, value: str | None
) -> None:
    fields = {key: text for key, text in FIELDS.items() if key != name}
    (answer,) = exchange(
        bench, frame(fields | ({} if value is None else {name: value}), serialize_type=serialize_type)
    )
    assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert "brokerId" in str(answer.remark) or name in str(answer.remark)
    assert list(bench.liveness.keys()) == []


async def test_numbers_beyond_java_are_refused(bench: Bench) -> None:
    (answer,) = exchange(bench, frame(FIELDS | {"maxOffset": str(2**63)}))
    assert answer.code == ResponseCode.CONTROLLER_INVALID_REQUEST
    assert list(bench.liveness.keys()) == []


def test_both_ways_have_the_same_fields_and_defaults(bench: Bench) -> None:
    assert set(Fields.__struct_fields__) == set(BrokerHeartbeatRequest.model_fields)
    needed = {key: FIELDS[key] for key in ("clusterName", "brokerName", "brokerAddr")}
    lenient = bench.plugin.table.fast_path[904].lenient
    assert lenient(904, 1, 2, needed) == HeartbeatCommand(1, Fields(CLUSTER, FIELDS["brokerAddr"], GROUP), 2)
