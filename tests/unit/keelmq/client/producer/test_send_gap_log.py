"""What a producer writes down of a fail-over that it went through, and that it writes nothing unasked."""

import inspect
from pathlib import Path

import pytest

from keelmq.blocking import BlockingProducer, BlockingTransactionProducer
from keelmq.client import Message, Producer, SendError, TransactionProducer
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.records import SendGap, decode_record
from keelmq.runtime.clock import wall_ms
from tests.support.fake_cluster import FakeBroker, FakeNameServer

TOPIC = "TopicX"


def gaps(directory: Path) -> list[SendGap]:
    lines = [
        line
        for path in (directory / "telemetry").rglob("*.jsonl*")
        for line in path.read_bytes().splitlines()
    ]
    records = [decode_record(line) for line in lines]
    assert all(isinstance(each, SendGap) for each in records)
    return [each for each in records if isinstance(each, SendGap)]


async def test_a_lost_master_leaves_one_gap(tmp_path: Path) -> None:
    begun = wall_ms()
    async with FakeBroker() as old, FakeBroker() as new, FakeNameServer() as server:
        server.routes[TOPIC] = {0: old.address}
        async with Producer(server.address, "g", telemetry_directory=tmp_path) as producer:
            await producer.send(Message(TOPIC, b"1"))
            old.script, server.routes[TOPIC] = [None], {0: new.address}
            result = await producer.send(Message(TOPIC, b"2"))
            assert result.attempts == 2
            await producer.send(Message(TOPIC, b"3"))
            client_id = producer.client_id
    (gap,) = gaps(tmp_path)
    assert (gap.cluster_name, gap.broker_name, gap.broker_id) == ("c", "broker-a", 0)
    assert gap.program == f"g-{client_id}"
    assert begun <= gap.started_ts <= gap.ts <= wall_ms() and gap.ts - gap.started_ts == gap.gap_ms
    (path,) = tmp_path.rglob("*.jsonl")
    assert path.parent.parent.parent == tmp_path / "telemetry" / "send_gap"


@pytest.mark.parametrize(
    ("code", "count"),
    [
        (ResponseCode.SERVICE_NOT_AVAILABLE, 1),
        (ResponseCode.SYSTEM_BUSY, 0),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, 0),
    ],
)
async def test_the_refusals_that_are_a_gap(code: int, count: int, tmp_path: Path) -> None:
    async with FakeBroker() as broker, FakeNameServer() as server:
        server.routes[TOPIC] = {0: broker.address}
        async with Producer(server.address, "g", telemetry_directory=tmp_path) as producer:
            await producer.send(Message(TOPIC, b"1"))
            broker.script = [code]
            await producer.send(Message(TOPIC, b"2"))
    assert len(gaps(tmp_path)) == count


async def test_a_group_without_master_for_a_while(tmp_path: Path) -> None:
    """The route tells before a send fails: the gap begins with the first send that found no master."""
    async with FakeBroker() as broker, FakeNameServer() as server:
        server.routes[TOPIC] = {0: broker.address}
        async with Producer(server.address, "g", telemetry_directory=tmp_path) as producer:
            await producer.send(Message(TOPIC, b"1"))
            server.routes[TOPIC] = {1: broker.address}
            queues = await producer.fetch_queues(TOPIC)
            assert queues == []
            with pytest.raises(SendError):
                await producer.send(Message(TOPIC, b"2"), timeout_ms=60)
            server.routes[TOPIC] = {0: broker.address}
            await producer.send(Message(TOPIC, b"3"))
    (gap,) = gaps(tmp_path)
    assert gap.gap_ms >= 50


async def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with FakeBroker() as broker, FakeNameServer() as server:
        server.routes[TOPIC] = {0: broker.address}
        async with (
            Producer(server.address, "g") as silent,
            Producer(server.address, "g", telemetry_directory=tmp_path / "t") as calm,
        ):
            await silent.send(Message(TOPIC, b"1"))
            broker.script = [None]
            await silent.send(Message(TOPIC, b"2"))
            await calm.send(Message(TOPIC, b"3"))
    assert list(tmp_path.iterdir()) == [], "not even a directory before the first gap"


async def test_a_directory_that_cannot_be_written_disturbs_no_send(tmp_path: Path) -> None:
    (tmp_path / "telemetry").write_text("in the way")
    async with FakeBroker() as broker, FakeNameServer() as server:
        server.routes[TOPIC] = {0: broker.address}
        async with Producer(server.address, "g", telemetry_directory=str(tmp_path)) as producer:
            for number in range(4):
                broker.script = [None] if number % 2 else []
                await producer.send(Message(TOPIC, b"%d" % number))


def test_every_producer_takes_the_directory() -> None:
    for kind in (Producer, TransactionProducer, BlockingProducer, BlockingTransactionProducer):
        assert "telemetry_directory" in inspect.signature(kind).parameters
