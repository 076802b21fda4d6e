"""What made a consumer lose or get nothing without a word: it is refused now, or told."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from keelmq import (
    ConsumeFromWhere,
    Consumer,
    ConsumerSettings,
    Message,
    MessageModel,
    Producer,
    PullConsumer,
    PullError,
    PushConsumer,
)
from keelmq.blocking import BlockingConsumer, BlockingProducer, BlockingPushConsumer
from keelmq.client.admin import AdminClient
from keelmq.client.consumer.offset_store import LocalOffsets
from keelmq.client.core.names import check_group
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import Seen, broker, numbers, send, until
from tests.support.reach_in import member_of, pulls_everywhere, tasks_that_wait

__all__ = ["broker"]

FIRST = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET)


# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["", "my group", "grüppe", "g" * 256, "g/../x", "a.b", "g\n"])
def test_a_group_that_no_broker_accepts_is_refused(group: str) -> None:
    for make in (Producer, PullConsumer, Consumer):
        with pytest.raises(ValueError, match="the name of the group"):
            make("127.0.0.1:1", group)
    with pytest.raises(ValueError, match="the name of the group"):
        PushConsumer("127.0.0.1:1", group, Seen())
    with pytest.raises(TypeError, match="group"):
        check_group(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("group", ["a", "%RETRY%g|x_y-z", "g" * 255, "CID_RMQ_SYS_x"])
def test_a_legal_group(group: str) -> None:
    assert check_group(group) == group


# -- broadcasting ------------------------------------------------------------------------------------------


def broadcasting(directory: Path, name: str | None = None) -> ConsumerSettings:
    return ConsumerSettings(model=MessageModel.BROADCASTING, offsets_dir=directory, instance_name=name)


async def test_two_members_do_not_share_an_offset_file(broker: TestBroker, tmp_path: Path) -> None:
    def member(name: str | None = None) -> PushConsumer:
        return PushConsumer(broker.namesrv_addr, "bc", Seen(), settings=broadcasting(tmp_path, name))

    async with member():
        with pytest.raises(RuntimeError, match=r"another broadcasting member uses .*instance_name"):
            async with member():
                pass
        async with member("two"):
            pass
    async with member():
        pass


async def test_a_folder_that_cannot_be_written_is_told_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "g").write_text("in the way")
    store = LocalOffsets(tmp_path / "g" / "DEFAULT.json")
    await store.open()
    store.close()
    assert "cannot lock" in caplog.text


# -- commits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pushed", [False, True])
async def test_a_commit_that_failed_is_raised(pushed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq.client.consumer.offset_store.COMMIT_TIMEOUT_MS", 50)
    seen, settings = Seen(), ConsumerSettings(from_where=FIRST.from_where, close_timeout_ms=0)
    with TestBroker() as running:
        running.create_topic("T", queues=1)
        await send(running, "T", 3)
        consumer: PushConsumer | Consumer
        if pushed:
            consumer = PushConsumer(running.namesrv_addr, "g", seen, settings=settings)
        else:
            consumer = Consumer(running.namesrv_addr, "g", auto_commit=False, settings=settings)
        await consumer.subscribe("T").__aenter__()
        if isinstance(consumer, Consumer):
            assert len(await consumer.poll()) == 3
        else:
            await until(lambda: len(seen.bodies) == 3)
    with pytest.raises(PullError, match=r"the offsets of [12] queues are not saved"):
        await consumer.commit()
    await consumer.close()


def made(directory: Path) -> bool:
    """Whether the directory could be made; not while a file of that name is being written."""
    try:
        directory.mkdir()
    except FileExistsError:
        return False
    return True


async def test_a_commit_to_a_full_disk_is_raised(broker: TestBroker, tmp_path: Path) -> None:
    broker.create_topic("Full", queues=1)
    await send(broker, "Full", 1)
    seen = Seen()
    settings = ConsumerSettings(
        model=MessageModel.BROADCASTING,
        from_where=FIRST.from_where,
        offsets_dir=tmp_path,
        persist_interval_ms=3_600_000,  # nothing but the test saves
    )
    async with PushConsumer(broker.namesrv_addr, "fg", seen, settings=settings).subscribe("Full") as consumer:
        await until(lambda: bool(seen.bodies) and member_of(consumer).process_queues != {})
        await until(lambda: made(tmp_path / "fg" / "DEFAULT.tmp"))
        with pytest.raises(PullError, match="cannot save offsets in"):
            await consumer.commit()
        (tmp_path / "fg" / "DEFAULT.tmp").rmdir()
        await consumer.commit()


# -- several readers ---------------------------------------------------------------------------------------


async def test_a_second_task_that_reads_is_refused(broker: TestBroker) -> None:
    """Each poll marked the messages of the other task as consumed: those were lost when it died."""
    broker.create_topic("Readers", queues=1)
    await send(broker, "Readers", 4)
    async with Consumer(broker.namesrv_addr, "readers", settings=FIRST).subscribe("Readers") as consumer:
        (first,) = await consumer.poll(1)
        for read in (consumer.poll, consumer.__anext__):
            with pytest.raises(RuntimeError, match="reads this consumer already"):
                await asyncio.create_task(read())
        await consumer.commit()  # this task is done with its message
        (second,) = await asyncio.create_task(consumer.poll(1))
        (third,) = await asyncio.create_task(consumer.poll(1))  # the task before has ended
        assert [first.body, second.body, third.body] == numbers(3)
        waits = asyncio.create_task(consumer.poll(2, timeout_ms=30_000))
        await waits
        waits = asyncio.create_task(consumer.poll(1, timeout_ms=30_000))
        await until(lambda: tasks_that_wait(consumer) == 1)
        with pytest.raises(RuntimeError, match="use a consumer for each task"):
            await consumer.poll(1)
        waits.cancel()
        await asyncio.wait((waits,))
        assert await consumer.poll(1, timeout_ms=0) == []


async def test_without_auto_commit_several_tasks_may_read(broker: TestBroker) -> None:
    broker.create_topic("Several", queues=1)
    await send(broker, "Several", 2)
    manual = Consumer(broker.namesrv_addr, "several", auto_commit=False, settings=FIRST)
    async with manual.subscribe("Several") as consumer:
        here = await consumer.poll(1)
        there = await asyncio.create_task(consumer.poll(1))
        assert [each.body for each in here + there] == numbers(2)


def test_threads_that_wait_at_once_are_refused(broker: TestBroker) -> None:
    broker.create_topic("Threads", queues=1)
    found: list[BaseException] = []
    with BlockingConsumer(broker.namesrv_addr, "threads").subscribe("Threads") as consumer:

        def poll() -> None:
            try:
                while not found:
                    consumer.poll(timeout_ms=50)
            except RuntimeError as error:
                found.append(error)

        threads = [threading.Thread(target=poll) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert "reads this consumer already" in str(found[0])


# -- a listener that hangs ---------------------------------------------------------------------------------


def test_a_hung_listener_does_not_keep_the_process(broker: TestBroker) -> None:
    broker.create_topic("Hung", queues=1)
    entered, gate = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def hang(_: object) -> None:
        threads.append(threading.current_thread())
        entered.set()
        gate.wait()

    settings = ConsumerSettings(from_where=FIRST.from_where, close_timeout_ms=10)
    with BlockingProducer(broker.namesrv_addr) as producer:
        producer.send(Message("Hung", b""))
    with BlockingPushConsumer(broker.namesrv_addr, "hung", hang, settings=settings).subscribe("Hung"):
        assert entered.wait(20)
    assert threads[0].is_alive() and threads[0].daemon, "the interpreter waits for threads that are not"
    gate.set()
    threads[0].join(20)
    assert not threads[0].is_alive()


# -- closing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["save", "released"])
async def test_close_keeps_to_its_time_when_commits_or_listeners_do_not_end(
    what: str, broker: TestBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With 2,000 queues, or a broker that hangs, the last commits took half a minute."""
    monkeypatch.setattr("keelmq.client.consumer.group.LAST_COMMITS_MS", 10)
    topic = f"Slow-{what}"
    broker.create_topic(topic, queues=8)
    await send(broker, topic, 8)
    settings = ConsumerSettings(from_where=FIRST.from_where, close_timeout_ms=10)
    async with Consumer(broker.namesrv_addr, topic, settings=settings).subscribe(topic) as consumer:
        await consumer.poll()

        async def hang(_: object, *, closing: bool = True) -> list[PullError]:
            await asyncio.Event().wait()
            return []

        hangs = consumer if what == "released" else member_of(consumer).offsets
        monkeypatch.setattr(hangs, what, hang)
        async with asyncio.timeout(5):
            await consumer.close()
    assert "the offsets of 8 queues are not saved after 20 ms" in caplog.text
    assert not [each for each in asyncio.all_tasks() if "pulls of" in each.get_name()]


async def test_a_closed_client_is_not_opened_again() -> None:
    for client in (Producer("127.0.0.1:1"), PullConsumer("127.0.0.1:1")):
        async with client:
            with pytest.raises(RuntimeError, match="opened before"):
                await client.__aenter__()
        with pytest.raises(RuntimeError, match="opened before"):
            async with client:
                pass
    unused = Producer("127.0.0.1:1")
    await unused.close()
    with pytest.raises(RuntimeError, match="opened before"):
        async with unused:
            pass


# -- where a group begins ----------------------------------------------------------------------------------


@pytest.mark.parametrize("pushed", [False, True])
async def test_a_strict_last_offset_gets_new_messages_only(broker: TestBroker, pushed: bool) -> None:
    topic = f"Strict{pushed:d}"
    broker.create_topic(topic, queues=1)
    await send(broker, topic, 3)
    for where, expected in (
        (ConsumeFromWhere.LAST_OFFSET, [*numbers(3), b"new"]),  # the queue is young
        (ConsumeFromWhere.STRICT_LAST_OFFSET, [b"new"]),
    ):
        group, settings = f"{topic}-{where.name}", ConsumerSettings(from_where=where)
        async with Producer(broker.namesrv_addr) as producer:
            if pushed:
                seen = Seen()
                async with PushConsumer(broker.namesrv_addr, group, seen, settings=settings).subscribe(topic):
                    await producer.send(Message(topic, b"new"))
                    await until(lambda seen=seen, want=expected: len(seen.bodies) >= len(want))
                assert sorted(seen.bodies)[: len(expected)] == sorted(expected)
            else:
                async with Consumer(broker.namesrv_addr, group, settings=settings).subscribe(topic) as polls:
                    await producer.send(Message(topic, b"new"))
                    found: list[bytes] = []
                    while b"new" not in found:
                        found += [each.body for each in await polls.poll()]
                assert found[: len(expected)] == expected
    assert ConsumeFromWhere.STRICT_LAST_OFFSET.wire == "CONSUME_FROM_LAST_OFFSET"
    assert [each.wire for each in ConsumeFromWhere].count("CONSUME_FROM_LAST_OFFSET") == 2


# -- resets ------------------------------------------------------------------------------------------------


async def test_a_reset_reaches_a_pull_that_waits_and_is_told_as_one(
    broker: TestBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """It came up to 15 s later, when the suspended pull ended, and was told as a lost offset."""
    broker.create_topic("Reset", queues=2)
    await send(broker, "Reset", 6)
    seen = Seen()
    async with (
        PushConsumer(broker.namesrv_addr, "reset", seen, settings=FIRST).subscribe("Reset") as consumer,
        AdminClient() as admin,
    ):
        await until(lambda: len(seen.bodies) == 6)
        await consumer.commit()
        await until(lambda: pulls_everywhere(consumer))
        with caplog.at_level(logging.WARNING):
            async with asyncio.timeout(10):  # below pull_suspend_ms
                await admin.groups.reset_offset(broker.broker_addr, "reset", "Reset", timestamp=0)
                await until(lambda: len(seen.bodies) == 12)
    assert caplog.text.count("an operator has reset the offset of") == 2
