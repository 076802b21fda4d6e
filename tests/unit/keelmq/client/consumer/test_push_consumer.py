"""The push consumer against a real broker: sharing out, retries, dead letters, offsets, filters, limits."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keelmq.client import (
    ConsumeFromWhere,
    ConsumerSettings,
    Limits,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PullError,
    PushConsumer,
    ReconsumeLater,
)
from keelmq.client.consumer.pull_consumer import PullConsumer
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import Seen, broker, numbers, send, until
from tests.support.reach_in import member_of, vanish, waiting_jobs

__all__ = ["broker"]

FIRST = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET)


async def test_everything_arrives_once_and_is_committed(broker: TestBroker) -> None:
    broker.create_topic("Plain")
    seen = Seen()
    await send(broker, "Plain", 50)
    async with PushConsumer(broker.namesrv_addr, "plain", seen, settings=FIRST).subscribe(
        "Plain"
    ) as consumer:
        await until(lambda: len(consumer.assigned) == 5, "four queues, and that of the retries")
        await seen.has(50)
        await send(broker, "Plain", 50, start=50)
        assert sorted(await seen.has(100)) == sorted(numbers(100))
    async with PullConsumer(broker.namesrv_addr, "plain") as reader:
        queues = await reader.fetch_queues("Plain")
        assert sum([await reader.committed_offset(queue) or 0 for queue in queues]) == 100
    again = Seen()
    async with PushConsumer(broker.namesrv_addr, "plain", again, settings=FIRST).subscribe("Plain"):
        await send(broker, "Plain", 1, start=100)
        assert await again.has(1) == [b"100"], "it goes on where the group was"


@pytest.mark.slow
async def test_a_message_that_failed_comes_again_under_its_own_topic(broker: TestBroker) -> None:
    broker.create_topic("Again")
    seen = Seen(lambda message: ValueError("not yet") if message.reconsume_times < 2 else None)
    async with PushConsumer(broker.namesrv_addr, "again", seen).subscribe("Again"):
        await send(broker, "Again", 1)
        await seen.has(3)
    assert [(each.topic, each.reconsume_times) for each in seen.messages] == [
        ("Again", 0), ("Again", 1), ("Again", 2),
    ]  # fmt: skip
    assert len({each.msg_id for each in seen.messages}) == 1


async def test_what_never_succeeds_becomes_a_dead_letter(broker: TestBroker) -> None:
    broker.create_topic("Dead")
    settings = ConsumerSettings(max_reconsume_times=1)
    seen, dead = Seen(lambda _: ReconsumeLater("never")), Seen()
    async with PushConsumer(broker.namesrv_addr, "dead", seen, settings=settings).subscribe("Dead"):
        await send(broker, "Dead", 1)
        await seen.has(2)
        await until(lambda: any(seen.calls[1:]))
        async with PushConsumer(broker.namesrv_addr, "graves", dead, settings=FIRST).subscribe("%DLQ%dead"):
            assert await dead.has(1) == [b"0"]
    assert len(seen.messages) == 2
    assert dead.messages[0].properties["RETRY_TOPIC"] == "Dead"


async def test_a_listener_that_is_no_coroutine_function_is_named(
    broker: TestBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The log said that a NoneType cannot be awaited."""
    plain: Any = lambda _messages: None  # noqa: E731
    async with PushConsumer(broker.namesrv_addr, "plain-def", plain, settings=FIRST).subscribe("PlainDef"):
        await send(broker, "PlainDef", 1)
        await until(lambda: "is no coroutine function (async def)" in caplog.text)


async def test_a_listener_says_when_and_how_many(broker: TestBroker) -> None:
    """Of a batch the first two are done, the third goes to the dead letters at once."""
    broker.create_topic("Parts", queues=1)

    def fail(message: MessageExt) -> BaseException | None:
        return ReconsumeLater(delay_level=-1, done=2) if message.body == b"2" else None

    settings = ConsumerSettings(consume_batch_size=3, from_where=ConsumeFromWhere.FIRST_OFFSET)
    seen, dead = Seen(fail), Seen()
    async with Producer(broker.namesrv_addr) as producer:
        await producer.send_batch([Message("Parts", body) for body in numbers(3)])
    async with PushConsumer(broker.namesrv_addr, "parts", seen, settings=settings).subscribe("Parts"):
        await seen.has(3)
        async with PushConsumer(broker.namesrv_addr, "parts2", dead, settings=FIRST).subscribe("%DLQ%parts"):
            assert await dead.has(1) == [b"2"]
    assert (seen.calls, len(seen.messages)) == ([3], 3)


async def test_a_listener_that_hangs_is_cancelled_and_its_message_comes_again(broker: TestBroker) -> None:
    broker.create_topic("Hangs")
    seen = []

    async def listener(messages: tuple[MessageExt, ...]) -> None:
        seen.append(messages[0].reconsume_times)
        if not messages[0].reconsume_times:
            await asyncio.Event().wait()

    settings = ConsumerSettings(consume_timeout_ms=50)
    async with PushConsumer(broker.namesrv_addr, "hangs", listener, settings=settings).subscribe("Hangs"):
        await send(broker, "Hangs", 1)
        await until(lambda: seen == [0, 1])


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_listener_whose_own_task_was_cancelled_has_failed(
    broker: TestBroker, orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A CancelledError that is not ours must not end who serves the queue."""
    topic = f"Cancels{orderly}"
    broker.create_topic(topic, queues=1)
    seen: list[tuple[bytes, int]] = []

    async def listener(messages: tuple[MessageExt, ...]) -> None:
        (message,) = messages
        seen.append((message.body, message.reconsume_times))
        if not message.reconsume_times:
            inner = asyncio.create_task(asyncio.Event().wait())
            inner.cancel()
            await inner

    settings = ConsumerSettings(consume_concurrency=1, orderly_suspend_ms=10)
    async with PushConsumer(
        broker.namesrv_addr, topic, listener, orderly=orderly, settings=settings
    ).subscribe(topic):
        await send(broker, topic, 2)
        await until(lambda: sorted(seen) == [(b"0", 0), (b"0", 1), (b"1", 0), (b"1", 1)])
    assert "CancelledError" in caplog.text and f"listener of {topic} failed" in caplog.text


@pytest.mark.parametrize("orderly", [False, True])
async def test_an_error_behind_the_listener_leaves_no_message_with_nobody(
    broker: TestBroker, orderly: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was neither consumed nor handed out again, and its queue's offset stayed where it was."""
    monkeypatch.setattr("keelmq.client.consumer.consume_message_service.KEEP_MS", 10)
    topic = f"Behind{orderly}"
    broker.create_topic(topic, queues=1)
    later: Any = ReconsumeLater()
    later.done = "one"
    seen = Seen(lambda _: later if len(seen.messages) == 1 else None)
    settings = replace(FIRST, orderly_suspend_ms=10)
    await send(broker, topic, 2)
    async with PushConsumer(broker.namesrv_addr, topic, seen, orderly=orderly, settings=settings).subscribe(
        topic
    ) as consumer:
        assert sorted(await seen.has(3)) == [b"0", b"0", b"1"]
        process_queues = member_of(consumer).process_queues
        await until(lambda: process_queues[MessageQueue(topic, "test-broker", 0)].commit_offset == 2)
    assert f"group {topic}: error after a call" in caplog.text and "TypeError" in caplog.text


@pytest.mark.parametrize("wrong", [{"delay_level": "3"}, {"done": None}], ids=str)
def test_reconsume_later_takes_integers_only(wrong: dict[str, Any]) -> None:
    """The listener's own traceback says so, and its messages are sent back as after any error."""
    with pytest.raises(TypeError, match="integer"):
        ReconsumeLater(**wrong)


async def test_tags_and_sql(broker: TestBroker) -> None:
    """ "Aa" and "BB" have one hash: brokers cannot tell them apart, the client can."""
    broker.create_topic("Filters")
    tags, sql = Seen(), Seen()
    async with (
        PushConsumer(broker.namesrv_addr, "tags", tags).subscribe("Filters", "Aa || C"),
        PushConsumer(broker.namesrv_addr, "sql", sql).subscribe("Filters", sql="amount > 10 AND TAGS <> 'C'"),
        Producer(broker.namesrv_addr) as producer,
    ):
        for body, tag, amount in ((b"1", "Aa", 5), (b"2", "BB", 20), (b"3", "C", 30), (b"4", "Aa", 11)):
            await producer.send(Message("Filters", body, tags=tag, properties={"amount": str(amount)}))
        assert sorted(await tags.has(3)) == [b"1", b"3", b"4"]
        assert sorted(await sql.has(2)) == [b"2", b"4"]


async def test_sql_that_is_none_is_told_at_the_start(broker: TestBroker) -> None:
    broker.create_topic("BadSql")
    consumer = PushConsumer(broker.namesrv_addr, "bad", Seen()).subscribe("BadSql", sql="amount >> 3")
    with pytest.raises(PullError, match="amount >> 3"):
        async with consumer:
            pass


@pytest.mark.slow
async def test_members_share_the_queues_and_take_over_at_once(broker: TestBroker) -> None:
    broker.create_topic("Shared", queues=6)
    first, second = Seen(), Seen()

    def mine(consumer: PushConsumer) -> set[int]:
        return {queue.queue_id for queue in consumer.assigned if queue.topic == "Shared"}

    async with PushConsumer(broker.namesrv_addr, "shared", first).subscribe("Shared") as one:
        assert len(mine(one)) == 6
        async with PushConsumer(broker.namesrv_addr, "shared", second).subscribe("Shared") as two:
            await until(lambda: len(mine(one)) == len(mine(two)) == 3)  # by 40: the timer is at 20 s
            assert not mine(one) & mine(two)
            await send(broker, "Shared", 60)
            await until(lambda: len(first.messages) + len(second.messages) >= 60)
            assert len(first.messages) == len(second.messages) == 30
        await until(lambda: len(mine(one)) == 6)
        await send(broker, "Shared", 12, start=60)
        await first.has(42)
    assert sorted(set(first.bodies) | set(second.bodies)) == sorted(numbers(72))


@pytest.mark.slow
async def test_a_member_that_dies_is_replaced_and_loses_nothing(broker: TestBroker) -> None:
    """Its connection closes without a farewell; what it held unfinished comes to the other one."""
    broker.create_topic("Dies", queues=4)
    dying, transfer_target = Seen(), Seen()
    dying.gate.clear()
    one = PushConsumer(broker.namesrv_addr, "dies", dying, settings=FIRST).subscribe("Dies")
    await one.__aenter__()
    try:
        async with PushConsumer(broker.namesrv_addr, "dies", transfer_target, settings=FIRST).subscribe(
            "Dies"
        ) as two:
            await until(lambda: len(one.assigned) < 5 and len(two.assigned) > 1)
            await send(broker, "Dies", 40)
            await transfer_target.has(20)
            await vanish(one)
            assert sorted(set(await transfer_target.has(40))) == sorted(numbers(40))
    finally:
        dying.gate.set()
        await one.close()


async def test_where_a_new_group_begins(broker: TestBroker) -> None:
    broker.create_topic("Where", queues=1)
    await send(broker, "Where", 3)
    async with PullConsumer(broker.namesrv_addr) as reader:
        (queue,) = await reader.fetch_queues("Where")
        third = (await reader.pull(queue, 2)).messages[0].store_timestamp
    seen = Seen()
    settings = ConsumerSettings(from_where=ConsumeFromWhere.TIMESTAMP, consume_timestamp_ms=third + 60_000)
    async with PushConsumer(broker.namesrv_addr, "w1", seen, settings=settings).subscribe("Where"):
        assert await seen.has(3) == numbers(3), "the broker gives a young topic's start to a new group"


async def test_no_more_is_pulled_than_the_limits_allow(broker: TestBroker) -> None:
    broker.create_topic("Limits", queues=1)
    await send(broker, "Limits", 60)
    seen = Seen()
    seen.gate.clear()
    settings = ConsumerSettings(
        from_where=ConsumeFromWhere.FIRST_OFFSET, limits=Limits(messages_max=10), pull_batch_size=8,
        consume_concurrency=3,
    )  # fmt: skip
    async with PushConsumer(broker.namesrv_addr, "limits", seen, settings=settings).subscribe(
        "Limits"
    ) as one:
        await until(lambda: seen.running == 3)
        worker = next(w for queue, w in member_of(one).process_queues.items() if queue.topic == "Limits")
        await until(lambda: worker.window is not None and len(worker.window) == 16)
        assert worker.window is not None and worker.window.next_offset == 16
        seen.gate.set()
        await seen.has(60)
    assert seen.running_max == 3


async def test_what_waits_for_a_listener_is_left_to_the_next_owner(broker: TestBroker) -> None:
    """The queue goes while one listener runs and nine messages wait for it."""
    broker.create_topic("Waits", queues=1)
    await send(broker, "Waits", 10)
    seen = Seen()
    seen.gate.clear()
    settings = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET, consume_concurrency=1)
    async with PushConsumer(broker.namesrv_addr, "waits", seen, settings=settings).subscribe("Waits") as one:
        await until(lambda: seen.running == 1 and waiting_jobs(one) == 10)
        one.unsubscribe("Waits")
        await until(lambda: {queue.topic for queue in one.assigned} == {"%RETRY%waits"})
        seen.gate.set()
        await until(lambda: not seen.running and not waiting_jobs(one), "no trace of the queue that went")
    assert seen.bodies == [b"0"]


async def test_a_paused_consumer_keeps_its_queues(broker: TestBroker) -> None:
    broker.create_topic("Paused", queues=1)
    seen = Seen()
    settings = ConsumerSettings(pull_suspend_ms=20)
    async with PushConsumer(broker.namesrv_addr, "paused", seen, settings=settings).subscribe(
        "Paused"
    ) as one:
        await send(broker, "Paused", 1)
        await seen.has(1)
        one.pause()
        worker = next(w for queue, w in member_of(one).process_queues.items() if queue.topic == "Paused")
        assert worker.window is not None
        await until(lambda: worker.waits_paused)
        await send(broker, "Paused", 1, start=1)
        assert len(seen.messages) == 1 and len(one.assigned) == 2
        one.resume()
        await seen.has(2)


async def test_topics_come_and_go_while_it_runs(broker: TestBroker) -> None:
    broker.create_topic("First")
    broker.create_topic("Second")
    seen = Seen()
    async with PushConsumer(broker.namesrv_addr, "topics", seen) as consumer:
        consumer.subscribe("First")
        await until(lambda: len(consumer.assigned) == 5)
        consumer.subscribe("Second")
        await until(lambda: len(consumer.assigned) == 9)
        consumer.unsubscribe("First")
        await until(lambda: {queue.topic for queue in consumer.assigned} == {"Second", "%RETRY%topics"})
        await send(broker, "Second", 2)
        assert sorted(await seen.has(2)) == numbers(2)


async def test_another_filter_while_it_runs_passes_nothing_over(broker: TestBroker) -> None:
    """A pull waits at the broker, which has moved it beyond what the old filter does not want."""
    broker.create_topic("Refiltered", queues=1)
    seen = Seen()
    async with (
        PushConsumer(broker.namesrv_addr, "refiltered", seen, settings=FIRST) as consumer,
        Producer(broker.namesrv_addr) as producer,
    ):
        consumer.subscribe("Refiltered", "a")
        await producer.send(Message("Refiltered", b"0", tags="a"))
        assert await seen.has(1) == [b"0"]
        await producer.send(Message("Refiltered", b"1", tags="b"))
        consumer.subscribe("Refiltered", "b")
        await producer.send(Message("Refiltered", b"2", tags="b"))
        assert await seen.has(3) == numbers(3)


async def test_a_topic_that_comes_later_is_found(broker: TestBroker) -> None:
    seen = Seen()
    async with PushConsumer(broker.namesrv_addr, "later", seen, settings=FIRST).subscribe("Later"):
        await send(broker, "Later", 5)
        assert sorted(await seen.has(5)) == numbers(5)


async def test_broadcasting(broker: TestBroker, tmp_path: Path) -> None:
    """Every member gets everything, and its own file says where it was."""
    broker.create_topic("Everybody")

    def settings(name: str) -> ConsumerSettings:
        return ConsumerSettings(model=MessageModel.BROADCASTING, instance_name=name, offsets_dir=tmp_path)

    first, second = Seen(lambda m: ValueError("dropped") if m.body == b"3" else None), Seen()
    address = broker.namesrv_addr
    async with (
        PushConsumer(address, "everybody", first, settings=settings("a")).subscribe("Everybody") as one,
        PushConsumer(address, "everybody", second, settings=settings("b")).subscribe("Everybody") as two,
    ):
        assert one.assigned == two.assigned and len(one.assigned) == 4
        await send(broker, "Everybody", 10)
        assert sorted(await first.has(10)) == sorted(await second.has(10)) == numbers(10)
    await send(broker, "Everybody", 5, start=10)
    third = Seen()
    async with PushConsumer(address, "everybody", third, settings=settings("a")).subscribe("Everybody"):
        assert sorted(await third.has(5)) == numbers(5, start=10)
    assert (tmp_path / "everybody" / "a.json").is_file()


async def test_a_damaged_offsets_file_is_kept_aside(broker: TestBroker, tmp_path: Path) -> None:
    broker.create_topic("Damaged")
    file = tmp_path / "damaged" / "DEFAULT.json"
    file.parent.mkdir()
    file.write_text("{")
    seen = Seen()
    settings = ConsumerSettings(
        model=MessageModel.BROADCASTING, offsets_dir=tmp_path, from_where=ConsumeFromWhere.FIRST_OFFSET
    )
    await send(broker, "Damaged", 2)
    async with PushConsumer(broker.namesrv_addr, "damaged", seen, settings=settings).subscribe("Damaged"):
        await seen.has(2)
    assert file.with_suffix(".damaged").read_text() == "{" and "offsetTable" in file.read_text()
