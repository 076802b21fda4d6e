"""Our client beside those that were written for RocketMQ: in one group, and reading what each sends."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keelmq.client import Message, MessageExt, Producer, PushConsumer
from keelmq.client.producer.transaction import TransactionProducer, TransactionState
from tests.interop.drivers import CPP, NODE_JS, Client, need
from tests.interop.stage import Stage, staged
from tests.support.client_parts import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

EACH = pytest.mark.parametrize("kind", [CPP, NODE_JS])
LONG = "x" * 5_000
"""Both sides deflate it."""


@pytest.fixture
async def stage(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    need(request.getfixturevalue("kind"))
    async with staged(tmp_path) as stage:
        yield stage


class Ours:
    def __init__(self) -> None:
        self.messages: list[MessageExt] = []

    async def __call__(self, messages: tuple[MessageExt, ...]) -> None:
        self.messages += messages

    @property
    def bodies(self) -> list[str]:
        return [message.body.decode() for message in self.messages]


@EACH
async def test_one_group_of_both(stage: Stage, kind: str) -> None:
    """They sort and divide alike, or a queue would have two owners, or none."""
    await stage.create("Mixed", queues=4)
    ours = Ours()
    async with (
        stage.consumer(kind, "Mixed", "Team") as theirs,
        PushConsumer(stage.namesrv, "Team", ours).subscribe("Mixed") as consumer,
        Producer(stage.namesrv) as producer,
    ):
        await stage.members("Team", 2)
        async with asyncio.timeout(60):  # the Node client shares out every 10 s, whatever it is told
            for round_ in range(1_000):
                if await shared_alike(producer, theirs, ours, f"r{round_}"):
                    break
        mine = {queue.queue_id for queue in consumer.assigned if queue.topic == "Mixed"}
        assert len(mine) == 2 and {message.queue_id for message in ours.messages[-4:]} == mine


async def shared_alike(producer: Producer, theirs: Client, ours: Ours, name: str) -> bool:
    """Two messages for each queue: everything arrives, half of it here and half there, nothing twice."""
    theirs.events.clear()
    ours.messages.clear()
    sent = {f"{name}-{index}" for index in range(8)}
    for body in sorted(sent):
        await producer.send(Message("Mixed", body.encode()))
    await until(lambda: sent <= {*theirs.bodies, *ours.bodies}, "every message has come")
    return len(theirs.got) == len(ours.messages) == 4


@EACH
async def test_each_reads_what_the_other_sent(stage: Stage, kind: str) -> None:
    await stage.create("Both")
    ours = Ours()

    async def never(message: MessageExt) -> TransactionState:
        raise AssertionError(f"asked about {message.body!r}")

    async with (
        stage.producer(kind) as their_producer,
        stage.consumer(kind, "Both", "Theirs") as theirs,
        PushConsumer(stage.namesrv, "Ours", ours).subscribe("Both"),
        TransactionProducer(stage.namesrv, "OurProducers", never) as producer,
    ):
        await stage.members("Theirs", 1)
        await their_producer.must_send("Both", "theirs", tag="TagA", keys="k1")
        await their_producer.must_send("Both", LONG)
        await producer.send(Message("Both", LONG.encode() + b"!"))
        await producer.send_batch([Message("Both", b"b%d" % index, tags="TagB") for index in range(3)])
        await producer.send(Message("Both", b"delayed", delay_level=1))
        async with producer.transaction(Message("Both", b"committed", keys=("k2",))):
            pass
        everything = sorted(["theirs", LONG, LONG + "!", "b0", "b1", "b2", "delayed", "committed"])
        await until(lambda: len(theirs.got) >= 8 and len(ours.messages) >= 8, "everything, everywhere")
    assert sorted(theirs.bodies) == sorted(ours.bodies) == everything
    seen = {event["got"]: event for event in theirs.got}
    assert (seen["b1"]["tag"], seen["committed"]["keys"]) == ("TagB", "k2")
    mine = {message.body: message for message in ours.messages}
    assert (mine[b"theirs"].tags, mine[b"theirs"].keys) == ("TagA", "k1")
