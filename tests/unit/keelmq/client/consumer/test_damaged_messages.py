"""Consumers of a broker that has one damaged record on its disk, and no other replica."""

import asyncio
import logging
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelmq import (
    ConsumeFromWhere,
    Consumer,
    ConsumerSettings,
    DamagedMessageError,
    DamagedPolicy,
    DamagedRecord,
    Message,
    MessageExt,
    MessageQueue,
    PushConsumer,
)
from keelmq.blocking import BlockingConsumer, BlockingProducer
from pytest_keelmq.cluster import TestBroker

COUNT, DAMAGED = 60, 35
GOOD = [number for number in range(COUNT) if number != DAMAGED]
FIRST = ConsumeFromWhere.FIRST_OFFSET
Told = list[tuple[MessageQueue, DamagedRecord]]


def records_of(log: Path, topic: bytes) -> list[tuple[int, int]]:
    """Returns (position, size) of the records of a topic in the first file of a log."""
    data, at, found = log.read_bytes(), 0, []
    while True:
        size, _ = struct.unpack_from(">ii", data, at)
        if size <= 0:
            return found
        if topic in data[at + 88 : at + size]:
            found.append((at, size))
        at += size


def spoil(directory: Path, *, zeros: bool) -> None:
    """Damages record DAMAGED of topic Spoiled, in the files of a stopped broker."""
    log = next(directory.rglob("commitlog")) / f"{0:020}"
    at, size = records_of(log, b"Spoiled")[DAMAGED]
    with log.open("r+b") as file:
        file.seek(at if zeros else at + 8)  # BODYCRC
        file.write(bytes(size) if zeros else b"\0\1\2\3")


@pytest.fixture(scope="module", params=[True, False], ids=["zeros", "checksum"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBroker]:
    directory = tmp_path_factory.mktemp("spoiled")
    with TestBroker(directory) as broker, BlockingProducer(broker.namesrv_addr) as producer:
        broker.create_topic("Spoiled", queues=1)
        for number in range(COUNT):
            producer.send(Message("Spoiled", b"%d" % number))
    spoil(directory, zeros=request.param)
    with TestBroker(directory) as broker:
        yield broker


def settings(told: Told, **more: object) -> ConsumerSettings:
    """The broker may know of the damage and refuse the message, or send it as it is: both are to end soon."""
    values: dict[str, object] = {"from_where": FIRST, "damaged_wait_ms": 0, **more}
    return ConsumerSettings(damaged_listener=lambda queue, record: told.append((queue, record)), **values)  # type: ignore[arg-type]


@pytest.mark.slow
async def test_a_polling_consumer_gets_every_good_message(
    broker: TestBroker, caplog: pytest.LogCaptureFixture
) -> None:
    told: Told = []
    found: list[int] = []
    with caplog.at_level(logging.ERROR):
        async with Consumer(broker.namesrv_addr, "lite", settings=settings(told)).subscribe("Spoiled") as one:
            while len(found) < len(GOOD):
                messages = await one.poll(timeout_ms=20_000)
                assert messages, f"stuck behind {found[-1:]}"
                found += [int(each.body) for each in messages]
            await one.commit()
            assert one.damaged_messages == 1
    assert found == GOOD
    ((queue, record),) = told
    assert (queue.topic, record.queue_offset, record.end_offset) == ("Spoiled", DAMAGED, DAMAGED + 1)
    assert f"topic Spoiled, broker test-broker, queue 0, offset {DAMAGED}" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("orderly", [False, True])
async def test_a_push_consumer_gets_every_good_message(broker: TestBroker, orderly: bool) -> None:
    told: Told = []
    found: list[int] = []
    done = asyncio.Event()

    async def listen(messages: tuple[MessageExt, ...]) -> None:
        found.extend(int(each.body) for each in messages)
        if len(found) >= len(GOOD):
            done.set()

    group = f"push-{orderly}"
    async with PushConsumer(
        broker.namesrv_addr, group, listen, orderly=orderly, settings=settings(told)
    ) as consumer:
        consumer.subscribe("Spoiled")
        async with asyncio.timeout(30):
            await done.wait()
        assert consumer.damaged_messages == 1
    assert sorted(found) == GOOD and [record.queue_offset for _, record in told] == [DAMAGED]


@pytest.mark.slow
def test_a_consumer_that_stops_raises_at_the_damaged_message(broker: TestBroker) -> None:
    """And goes on where the application moves it."""
    told: Told = []
    found: list[int] = []
    stops = settings(told, on_damaged=DamagedPolicy.STOP)
    with BlockingConsumer(broker.namesrv_addr, "stop", settings=stops).subscribe("Spoiled") as consumer:
        with pytest.raises(DamagedMessageError) as caught:
            while True:
                found += [int(each.body) for each in consumer.poll(timeout_ms=20_000)]
        assert found == GOOD[:DAMAGED] and consumer.damaged_messages == 0
        assert caught.value.record.queue_offset == DAMAGED
        consumer.seek(caught.value.queue, caught.value.record.end_offset)
        while len(found) < len(GOOD):
            messages = consumer.poll(timeout_ms=20_000)
            assert messages
            found += [int(each.body) for each in messages]
    assert found == GOOD and len(told) == 1
