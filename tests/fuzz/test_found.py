"""What the fuzzers found, one test each; they run for ever."""

import asyncio
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest

from broker.metadata.core import term as term_module
from broker.metadata.core.table import Version
from broker.metadata.core.term import Term
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import BadRequest, RemotingCommand, decode, decode_body, encode
from keelmq.remoting.connection import SCRATCH_BYTES, Connection
from keelmq.remoting.lenient_json import REWRITTEN_BYTES_MAX, load_lenient
from keelmq.remoting.operations.route import BROKER_HEARTBEAT, TopicConfigSerializeWrapper
from keelmq.runtime.clock import wall_ms
from namesrv.plugins.controller.requests import heartbeats
from tests.fuzz.frames import FakeTransport, receive
from tests.fuzz.targets import BrokerTarget, ControllerTarget, Target
from tests.support.items import items_held

DEEP = b'{"a":' * 20_000


class Wire:
    """A target and one connection to it."""

    def __init__(self, target: Target) -> None:
        self.target, self.transport = target, FakeTransport()
        self.connection = Connection(
            target.dispatcher,
            memoryview(bytearray(SCRATCH_BYTES)),
            on_made=lambda _: None,
            on_lost=lambda each: target.lost(each.connection_id),
        )
        self.connection.connection_made(cast(asyncio.BaseTransport, self.transport))

    async def send(self, *frames: bytes) -> list[RemotingCommand]:
        """The answers, when every handler has ended."""
        for frame in frames:
            receive(self.connection, frame)
        while self.connection.in_flight:  # noqa: ASYNC110 - a handler's end has no event
            await asyncio.sleep(0)
        answers, self.transport.written = b"".join(self.transport.written), []
        return list(_commands(answers))


def _commands(data: bytes) -> Iterable[RemotingCommand]:
    while data:
        end = 4 + struct.unpack_from(">i", data)[0]
        yield decode(data[4:end])
        data = data[end:]


def frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


PULL = {"consumerGroup": "g", "topic": "TopicA", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"}


@pytest.fixture
async def broker(tmp_path: Path):  # type: ignore[no-untyped-def]
    target = BrokerTarget(tmp_path)
    await target.open()
    yield Wire(target)
    await target.close()


@pytest.fixture
async def controller(tmp_path: Path):  # type: ignore[no-untyped-def]
    target = ControllerTarget(tmp_path)
    yield Wire(target)
    await target.close()


POP = {
    "consumerGroup": "g", "topic": "TopicA", "queueId": "0", "maxMsgNums": "1", "invisibleTime": "1000",
    "pollTime": "1", "initMode": "0",
}  # fmt: skip


async def test_a_oneway_pop_is_never_answered(broker: Wire) -> None:
    """Nor a notification: not even when their time is over."""
    fields = {
        "topic": "TopicA",
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
    }
    made = await broker.send(
        encode(RemotingCommand(17, 4, ext_fields=fields | {"topicFilterType": "SINGLE_TAG"}))
    )
    assert [each.code for each in made] == [0]
    for code in (200050, 200054):
        fields = {**POP, "bornTime": str(wall_ms())}
        assert await broker.send(encode(RemotingCommand(code, 5, 2, ext_fields=fields))) == []
    await broker.target.flush()
    assert await broker.send() == []


async def test_a_oneway_pull_is_never_answered(broker: Wire) -> None:
    """remoting pitfall 19: not even with an error."""
    for topic in ("TopicA", "nobody"):
        for lenient in (False, True):
            fields = {**PULL, "topic": topic, **({"queueId": " 0"} if lenient else {})}
            assert await broker.send(encode(RemotingCommand(11, 5, 2, ext_fields=fields))) == []


async def test_a_header_nested_too_deeply_for_the_typed_decoder(broker: Wire) -> None:
    """It raised a RecursionError out of the connection."""
    head = b'{"code":11,"extFields":{},"opaque":1,"deep":'
    assert await broker.send(frame(head + DEEP)) == []
    assert broker.connection.is_closing()


@pytest.mark.parametrize("opaque", [2**31, -(2**31) - 1, 10**30])
async def test_an_opaque_beyond_32_bits_is_no_request(broker: Wire, opaque: int) -> None:
    """The data path sent it back, in an answer that no peer can read."""
    fields = b'"topic":"TopicA","queueId":"0","queueOffset":"0","maxMsgNums":"1"'
    assert await broker.send(frame(b'{"code":11,"extFields":{%b},"opaque":%d}' % (fields, opaque))) == []
    assert broker.connection.is_closing()


def test_a_body_nested_too_deeply_is_a_bad_request() -> None:
    """It was an internal error: leaving out nulls recursed deeper than the parser."""
    body = b'{"a":null,"topicConfigTable":' + b'{"a":' * 990 + b"1" + b"}" * 990 + b"}"
    with pytest.raises(BadRequest):
        decode_body(TopicConfigSerializeWrapper, body)


def test_rewriting_json_is_bounded() -> None:
    """A frame of 16 MiB that is not JSON held the event loop up for seconds."""
    raw = b'{"a":' * (REWRITTEN_BYTES_MAX * 16 // 5)
    begun = time.process_time()
    with pytest.raises(ValueError, match="read strictly"):
        load_lenient(raw)
    assert time.process_time() - begun < 1.0
    assert load_lenient(b"{1:2}") == {"1": 2}


async def test_heartbeats_of_brokers_that_nobody_registered_are_forgotten(controller: Wire) -> None:
    """Each left an entry behind for ever, and anybody can make up names."""
    header = {"clusterName": "C", "brokerAddr": "10.0.0.1:1", "brokerId": "1"}
    for number in range(20):
        fields = {**header, "brokerName": f"unknown-{number}"}
        await controller.send(encode(RemotingCommand(BROKER_HEARTBEAT.code, number, ext_fields=fields)))
    controller.connection.connection_lost(None)
    controller.target.emptied()


async def test_heartbeats_of_invented_brokers_are_bounded(
    controller: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over one connection that stays open, too."""
    monkeypatch.setattr(heartbeats, "KEYS_MAX", 5)
    header = {"clusterName": "C", "brokerAddr": "10.0.0.1:1", "brokerName": "unknown"}
    codes = []
    for number in range(8):
        fields = {**header, "brokerId": str(number)}
        frames = encode(RemotingCommand(BROKER_HEARTBEAT.code, number, ext_fields=fields))
        codes += [answer.code for answer in await controller.send(frames)]
    assert codes == [ResponseCode.SUCCESS] * 5 + [ResponseCode.SYSTEM_BUSY] * 3
    assert isinstance(controller.target, ControllerTarget)
    assert controller.target.bench.liveness.count == 5


def test_replicas_and_tables_that_nobody_has_are_not_kept() -> None:
    """A request for metadata could name any id, and as many tables as fit into a frame."""
    term = Term(1, {}, now_ms=0)
    for replica in range(term_module.REPLICAS_MAX + 5):
        term.heard(replica, {"made up": Version(1, 1, 1)}, now_ms=1)
    assert items_held(term) == term_module.REPLICAS_MAX, "and no version of a table"
