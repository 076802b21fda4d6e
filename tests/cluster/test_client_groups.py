"""Our consumers and transactions while masters are killed: nothing lost, order kept, no timer waited for."""

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

from keelmq.client import ConsumeFromWhere, ConsumerSettings, Message, MessageExt, Producer, PushConsumer
from keelmq.client.producer.transaction import TransactionProducer, TransactionState
from keelmq.runtime.clock import now_ms
from tests.support.harness import SAFE, Harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

FIRST = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET)
GAP_MS_MAX = 3_000
"""Stock clients look at the route every 30 s. Nobody here waits for a timer."""
SENDERS = 4


class Journal:
    """What was acknowledged and what a listener saw."""

    def __init__(self) -> None:
        self.acked: set[bytes] = set()
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.bodies: set[bytes] = set()
        self.last_ms = now_ms()
        self.gap_ms = 0

    async def listen(self, messages: tuple[MessageExt, ...]) -> None:
        if self.bodies:
            self.gap_ms = max(self.gap_ms, now_ms() - self.last_ms)
        self.last_ms = now_ms()
        for message in messages:
            sender, number = message.body.decode().split(":")
            self.seen[sender].append(int(number))
            self.bodies.add(message.body)

    async def send(self, producer: Producer, topic: str, sender: str, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            body = f"{sender}:{number}".encode()
            await producer.send(Message(topic, body), key=sender, timeout_ms=20_000)
            self.acked.add(body)
            number += 1
            await asyncio.sleep(0.002)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while True:
                if len(self.bodies & self.acked) >= count:
                    return
                await asyncio.sleep(0.01)


async def kill_the_master(running: Harness) -> None:
    master = await running.master()
    running.cluster.kill(master)
    await running.new_master(master)
    running.cluster.start_program(master)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_group_rides_through_two_killed_masters(tmp_path: Path, orderly: bool) -> None:
    journal, stop = Journal(), asyncio.Event()
    async with Harness(tmp_path) as running:
        address = running.cluster.namesrv_addr
        async with Producer(address) as producer:
            senders = [
                asyncio.create_task(journal.send(producer, "Group", f"s{index}", stop))
                for index in range(SENDERS)
            ]
            async with (
                PushConsumer(address, "g", journal.listen, orderly=orderly, settings=FIRST).subscribe(
                    "Group"
                ),
                PushConsumer(address, "g", journal.listen, orderly=orderly, settings=FIRST).subscribe(
                    "Group"
                ),
            ):
                await journal.until(100)
                for _ in range(2):
                    await kill_the_master(running)
                    await journal.until(len(journal.acked) + 100)
                    await running.all_in_sync()
                stop.set()
                await asyncio.gather(*senders)
                await journal.until(len(journal.acked))
    assert journal.acked <= journal.bodies, "nothing acknowledged is missing"
    assert journal.gap_ms < GAP_MS_MAX
    for numbers in journal.seen.values():
        first_seen = list(dict.fromkeys(numbers))
        assert not orderly or first_seen == sorted(first_seen), "in order, whatever came twice"
    print(f"\nconsumed={len(journal.bodies)} longest_gap_ms={journal.gap_ms} orderly={orderly}")


HANG_GAP_MS_MAX = 9_000
"""The controllers need 3 s (controllerHeartBeatTimeoutMills) and a scan to find that the master hangs; the
rest is for a slow machine. The pulls of an idle queue alone would wait for 18 s."""


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_an_idle_group_leaves_a_master_that_hangs(tmp_path: Path, orderly: bool) -> None:
    """SIGSTOP: the connection stays, nothing is refused, and there is nothing to commit."""
    journal = Journal()
    async with Harness(tmp_path) as running:
        address = running.cluster.namesrv_addr
        async with (
            Producer(address) as producer,
            PushConsumer(address, "h", journal.listen, orderly=orderly, settings=FIRST).subscribe("Hang"),
        ):
            await producer.send(Message("Hang", b"s:0"))
            journal.acked = {b"s:0"}
            await journal.until(1)
            master = await running.master()
            started_ms = now_ms()
            running.cluster.pause(master)
            await producer.send(Message("Hang", b"s:1"), timeout_ms=20_000)
            sent_ms = now_ms()
            journal.acked = {b"s:0", b"s:1"}
            await journal.until(2)
            seen_ms = now_ms()
            running.cluster.resume(master)
    print(f"\norderly={orderly} acknowledged_ms={sent_ms - started_ms} consumed_ms={seen_ms - started_ms}")
    assert seen_ms - started_ms < HANG_GAP_MS_MAX


async def test_an_idle_producer_is_asked_after_its_master_died(tmp_path: Path) -> None:
    """It sends nothing that would show it the new master: whoever asks must find it there all the same."""
    asked: list[bytes] = []

    async def never(message: MessageExt) -> TransactionState:
        raise AssertionError(f"asked about {message.body!r}")

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message.body)
        return TransactionState.COMMIT

    journal = Journal()
    journal.acked = {b"s:1"}
    settings = SAFE | {"transactionTimeOut": "500", "transactionCheckInterval": "500"}
    async with Harness(tmp_path, broker_settings=settings) as running:
        address = running.cluster.namesrv_addr
        async with Producer(address) as producer:
            await producer.send(Message("Idle", b"s:0"))
        async with (
            TransactionProducer(address, "idle", check, topics=["Idle"]),
            PushConsumer(address, "idle", journal.listen, settings=FIRST).subscribe("Idle"),
        ):
            await kill_the_master(running)
            async with TransactionProducer(address, "idle", never) as gone:
                await gone.begin(Message("Idle", b"s:1"))
            begun_ms = now_ms()
            await journal.until(1)
            print(f"\nasked_and_committed_ms={now_ms() - begun_ms}")
    assert set(asked) == {b"s:1"}


async def test_requests_are_answered_while_the_master_is_killed(tmp_path: Path) -> None:
    """One after the other, none of them lost: the replier finds who asked at the new master as well."""
    took_ms: list[int] = []
    async with Harness(tmp_path) as running:
        address = running.cluster.namesrv_addr

        async def answer(messages: tuple[MessageExt, ...]) -> None:
            for message in messages:
                await replier.reply(message, message.body.upper(), timeout_ms=10_000)

        async with (
            Producer(address, "asker") as producer,
            PushConsumer(address, "replier", answer, settings=FIRST).subscribe("Ask") as replier,
        ):
            killing = asyncio.create_task(asyncio.sleep(0))
            while not killing.done() or len(took_ms) < 200:
                started_ms = now_ms()
                body = f"ask {len(took_ms)}"
                reply = await producer.request(Message("Ask", body.encode()), timeout_ms=30_000)
                took_ms.append(now_ms() - started_ms)
                assert reply.body.decode() == body.upper()
                if len(took_ms) == 50:
                    killing = asyncio.create_task(kill_the_master(running))
            await killing
    print(
        f"\nrequests={len(took_ms)} slowest_ms={max(took_ms)} median_ms={sorted(took_ms)[len(took_ms) // 2]}"
    )


async def test_a_transaction_outlives_the_master_that_began_it(tmp_path: Path) -> None:
    journal = Journal()

    async def never(message: MessageExt) -> TransactionState:
        raise AssertionError(f"asked about {message.body!r}")

    async with Harness(tmp_path) as running:
        address = running.cluster.namesrv_addr
        async with (
            TransactionProducer(address, "tx", never) as producer,
            PushConsumer(address, "txg", journal.listen, settings=FIRST).subscribe("Tx"),
        ):
            good = await producer.begin(Message("Tx", b"good:1"))
            bad = await producer.begin(Message("Tx", b"bad:1"))
            await kill_the_master(running)
            assert await good.commit() and await bad.rollback()
            await producer.send(Message("Tx", b"plain:1"))
            journal.acked = {b"good:1", b"plain:1"}
            await journal.until(2)
        assert journal.bodies == journal.acked
