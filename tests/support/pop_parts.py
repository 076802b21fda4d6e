"""A master whose groups pop: its handlers over a real store, in virtual time, and its successor."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broker.message.record import decode, parse_properties
from broker.pop import handlers as handlers_module
from broker.pop import service as service_module
from broker.pop.consumption import PopConsumption
from broker.pop.core.handles import parse_handle
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.command import decode as decode_frame
from keelmq.remoting.operations.route import TopicConfig
from keelmq.runtime.clock import wall_ms
from tests.support.handler_parts import Broker
from tests.support.metadata_parts import open_metadata
from tests.support.store_parts import FakePeer

INVISIBLE_MS = 60_000


@dataclass(frozen=True)
class Message:
    """As a Java client has it after a pop."""

    body: bytes
    topic: str
    queue_id: int
    offset: int
    handle: str
    tries: int
    properties: dict[str, str]

    @property
    def ck_queue_id(self) -> int:
        return parse_handle(self.handle).queue_id

    @property
    def popped_from(self) -> str:
        return ("TopicA", "%RETRY%g_TopicA", "%RETRY%g+TopicA")[int(parse_handle(self.handle).retry)]


class Scene:
    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = Broker(path)
        self.metadata = open_metadata(path / "metadata")
        self.metadata.gate, self.metadata.topics = self.broker.gate, self.broker.topics
        self.broker.context.resets = self.metadata.resets
        self.broker.context.find_group = self.metadata.find_group
        self.now = wall_ms()
        for module in (handlers_module, service_module):
            monkeypatch.setattr(module, "wall_ms", lambda: self.now)
        self.peer = FakePeer(5)
        self.restart()

    def restart(self) -> None:
        """A new master of the same log: it knows what the log and the offsets say."""
        writer = self.broker.writer
        self.part = PopConsumption(self.broker.context, self.metadata, writer, broker_name="b")
        self.pop_service = self.part.pop
        self.pop_service._clock = lambda: self.now
        self.broker.table.handlers.clear()
        self.part.bind(self.broker.table)
        self.run()

    def replay_at_most(self, count: int) -> None:
        """Until the next restart: of a programs' REPLAY_MAX, a test would need as many messages."""
        self.pop_service._replay_max = count

    def run(self, more_ms: int = 0) -> None:
        self.now += more_ms
        for _ in range(4):
            while self.pop_service.round():
                pass
            self.tick()
            self.broker.store.flush()
        self.pop_service.state.check_invariants()

    def topic(self, name: str, queues: int) -> None:
        self.broker.topics.update(
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        )

    def send(self, *bodies: bytes, queue_id: int = 0, tag: str = "A") -> None:
        for body in bodies:
            reply = self.broker.send(body, e=str(queue_id), i=f"TAGS\x01{tag}\x02UNIQ_KEY\x01K")
            assert reply is not None and reply.code == 0, reply
        self.tick()

    def tick(self) -> None:
        while self.broker.soon:
            self.broker.tick()

    async def request(self, code: int, ext: dict[str, Any], body: bytes = b"") -> RemotingCommand | None:
        """The answer; None: it comes later."""
        fields = {key: str(value) for key, value in ext.items()}
        raw = await self.broker.dispatcher.answer(RemotingCommand(code, 9, 0, None, fields, body), self.peer)
        if raw is not None:
            return decode_frame(raw[4:])
        frames, self.peer.sent = self.peer.sent, []
        assert len(frames) <= 1
        return decode_frame(frames[0][4:]) if frames else None

    async def raw_pop(self, **changed: Any) -> RemotingCommand | None:
        fields: dict[str, Any] = {
            "consumerGroup": "g", "topic": "TopicA", "queueId": -1, "maxMsgNums": 32,
            "invisibleTime": INVISIBLE_MS, "pollTime": 0, "bornTime": self.now, "initMode": 0,
            "expType": "TAG", "exp": "*", "order": "false",
        }  # fmt: skip
        return await self.request(200050, fields | changed)

    async def pop(self, **changed: Any) -> list[Message]:
        reply = await self.raw_pop(**changed)
        assert reply is not None and reply.code in (0, 210), reply
        self.tick()
        return read(reply) if reply.code == 0 else []

    async def ack(self, message: Message, **changed: Any) -> RemotingCommand:
        fields = {
            "consumerGroup": "g", "topic": message.popped_from,
            "queueId": message.ck_queue_id, "extraInfo": message.handle,
            "offset": message.offset,
        }  # fmt: skip
        reply = await self.request(200051, fields | changed)
        assert reply is not None
        self.tick()
        return reply

    async def change(self, message: Message, invisible_ms: int, **changed: Any) -> RemotingCommand:
        fields = {
            "consumerGroup": "g", "topic": message.popped_from,
            "queueId": message.ck_queue_id, "extraInfo": message.handle,
            "offset": message.offset, "invisibleTime": invisible_ms,
        }  # fmt: skip
        reply = await self.request(200053, fields | changed)
        assert reply is not None
        self.tick()
        return reply

    def retries(self, topic: str = "%RETRY%g_TopicA") -> int:
        return self.broker.store.max_queue_offset(topic, 0)


def read(reply: RemotingCommand) -> list[Message]:
    return read_messages(reply.ext_fields, reply.body, "b")


def read_messages(header: Mapping[str, str], body: bytes, broker_name: str) -> list[Message]:
    """By the rules of the Java client: POP_CK where the broker put it, else made of the header."""
    at, found = 0, list[Message]()
    starts = {
        tuple(entry.split(" ")[:2]): entry.split(" ")[2] for entry in header["startOffsetInfo"].split(";")
    }
    offsets = {
        tuple(entry.split(" ")[:2]): [int(each) for each in entry.split(" ")[2].split(",")]
        for entry in header["msgOffsetInfo"].split(";")
    }
    while at < len(body):
        record = decode(body, at)
        at += record.size
        properties = parse_properties(record.properties)
        handle = properties.get("POP_CK")
        if handle is None:
            flag = "1" if record.topic.startswith("%RETRY%") else "0"
            place = (flag, str(record.queue_id))
            assert record.queue_offset in offsets[place]
            handle = " ".join((
                starts[place], header["popTime"], header["invisibleTime"], header["reviveQid"], flag,
                broker_name, str(record.queue_id), str(record.queue_offset),
            ))  # fmt: skip
        found.append(
            Message(
                record.body, record.topic, record.queue_id, record.queue_offset, handle,
                record.reconsume_times, properties,
            )
        )  # fmt: skip
    return found
