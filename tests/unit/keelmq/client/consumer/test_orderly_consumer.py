"""Orderly consumption against a real broker: one listener for each queue, also when members come and go."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import pytest

from keelmq.client import ConsumeFromWhere, ConsumerSettings, Message, MessageExt, Producer, PushConsumer
from keelmq.client.cluster.heartbeats import Membership
from keelmq.client.consumer.process_queue import ProcessQueue
from keelmq.client.consumer.queue_locks import LockHolder
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import Seen, broker, numbers, send, until

__all__ = ["broker"]

FIRST = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET, orderly_suspend_ms=10)


async def test_a_key_keeps_its_order(broker: TestBroker) -> None:
    broker.create_topic("Ordered")
    seen = Seen()
    async with Producer(broker.namesrv_addr) as producer:
        for index in range(60):
            key = f"order-{index % 6}"
            message = Message("Ordered", b"%d" % index, keys=(key,))
            await producer.send(message, key=key)
    async with PushConsumer(broker.namesrv_addr, "ordered", seen, orderly=True, settings=FIRST).subscribe(
        "Ordered"
    ):
        await seen.has(60)
    by_key: dict[str | None, list[int]] = defaultdict(list)
    for message in seen.messages:
        by_key[message.keys].append(int(message.body))
    assert len(by_key) == 6 and all(values == sorted(values) for values in by_key.values())


async def test_a_message_that_fails_blocks_its_queue_until_it_succeeds(broker: TestBroker) -> None:
    broker.create_topic("Blocks", queues=1)
    await send(broker, "Blocks", 4)

    def fail(message: MessageExt) -> BaseException | None:
        return ValueError("not yet") if message.body == b"1" and message.reconsume_times < 3 else None

    seen = Seen(fail)
    async with PushConsumer(broker.namesrv_addr, "blocks", seen, orderly=True, settings=FIRST).subscribe(
        "Blocks"
    ):
        assert await seen.has(7) == [b"0", b"1", b"1", b"1", b"1", b"2", b"3"]
    assert [m.reconsume_times for m in seen.messages if m.body == b"1"] == [0, 1, 2, 3]


async def test_what_is_given_up_becomes_a_dead_letter_and_the_queue_goes_on(broker: TestBroker) -> None:
    """broker-ops pitfall 2: the client has counted; the broker takes it to the dead letters at once."""
    broker.create_topic("GivesUp", queues=1)
    await send(broker, "GivesUp", 3)
    settings = ConsumerSettings(
        from_where=ConsumeFromWhere.FIRST_OFFSET, orderly_suspend_ms=10, max_reconsume_times=2
    )
    seen, dead = Seen(lambda m: ValueError("never") if m.body == b"0" else None), Seen()
    async with PushConsumer(broker.namesrv_addr, "givesup", seen, orderly=True, settings=settings).subscribe(
        "GivesUp"
    ):
        assert await seen.has(5) == [b"0", b"0", b"0", b"1", b"2"]
        async with PushConsumer(broker.namesrv_addr, "graves2", dead, settings=FIRST).subscribe(
            "%DLQ%givesup"
        ):
            assert await dead.has(1) == [b"0"]


async def test_a_lock_is_renewed_while_a_listener_holds_up_the_closing(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers keep it for a minute: another member began the message, while this listener still ran."""
    broker.create_topic("SlowClose", queues=1)
    await send(broker, "SlowClose", 2)
    renewed: list[int] = []
    renew, send_to_all = LockHolder.renew, Membership.send_to_all
    heartbeats = 0

    async def spied_renew(self: LockHolder, process_queues: Iterable[ProcessQueue]) -> None:
        process_queues = list(process_queues)
        await renew(self, process_queues)
        renewed.extend(each.queue.queue_id for each in process_queues if each.queue.topic == "SlowClose")

    async def spied_send_to_all(self: Membership) -> bool:
        nonlocal heartbeats
        heartbeats += 1
        return await send_to_all(self)

    monkeypatch.setattr(LockHolder, "renew", spied_renew)
    monkeypatch.setattr(Membership, "send_to_all", spied_send_to_all)
    monkeypatch.setattr("keelmq.client.consumer.queue_locks.RENEW_MS", 20)
    settings = replace(FIRST, close_timeout_ms=60_000, heartbeat_interval_ms=20)
    first, second = Seen(), Seen()
    first.gate.clear()
    one = PushConsumer(broker.namesrv_addr, "slowclose", first, orderly=True, settings=settings)
    async with one.subscribe("SlowClose"):
        await until(lambda: first.running == 1)
        closing = asyncio.create_task(one.close())
        await until(lambda: not one.assigned)
        renewed.clear()
        heartbeats = 0
        await until(lambda: len(renewed) >= 3 and heartbeats >= 3, "locks and heartbeats")
        first.gate.set()
        await closing
    async with PushConsumer(broker.namesrv_addr, "slowclose", second, orderly=True, settings=FIRST).subscribe(
        "SlowClose"
    ):
        assert await second.has(1) == [b"1"], "the lock is free at once"
    assert first.bodies == [b"0"]


@pytest.mark.slow
async def test_two_members_never_consume_one_queue_at_the_same_time(broker: TestBroker) -> None:
    """A second member joins while the first one's listeners run: it gets the queues after they ended."""
    broker.create_topic("Exclusive", queues=4)
    running: dict[int, int] = defaultdict(int)
    order: dict[int, list[int]] = defaultdict(list)
    overlaps: list[int] = []
    go_on = asyncio.Event()

    async def listener(messages: tuple[MessageExt, ...]) -> None:
        (message,) = messages
        running[message.queue_id] += 1
        if running[message.queue_id] > 1:
            overlaps.append(message.queue_id)
        if sum(map(len, order.values())) >= 20:
            await go_on.wait()
        order[message.queue_id].append(message.queue_offset)
        running[message.queue_id] -= 1

    def consumer() -> PushConsumer:
        return PushConsumer(
            broker.namesrv_addr, "exclusive", listener, orderly=True, settings=FIRST
        ).subscribe("Exclusive")

    async with Producer(broker.namesrv_addr) as producer:
        await producer.send_batch([Message("Exclusive", body) for body in numbers(100)])
        for _ in range(3):
            await producer.send_batch([Message("Exclusive", body) for body in numbers(100)])
    async with consumer() as one:
        await until(lambda: sum(map(len, order.values())) >= 20 and sum(running.values()) == 4)
        async with consumer() as two:
            await until(lambda: len([q for q in one.assigned if q.topic == "Exclusive"]) == 2)
            assert sum(running.values()) == 4 and not overlaps, "the listeners of the first one still run"
            go_on.set()
            await until(lambda: len([q for q in two.assigned if q.topic == "Exclusive"]) == 2)
            await until(lambda: sum(map(len, order.values())) > 200)
        await until(lambda: sum(map(len, order.values())) >= 400)
        assert len([q for q in one.assigned if q.topic == "Exclusive"]) == 4
    assert not overlaps
    assert all(offsets == list(range(100)) for offsets in order.values()), "each once, each in order"
