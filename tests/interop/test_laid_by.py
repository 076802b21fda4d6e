"""Half messages and timers of real clients. The published C++ client has transactions without an interface
for them, the Node client sends half messages and answers no question: our producer of the same group does.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from keelmq.client.message import Message, MessageExt
from keelmq.client.producer.transaction import TransactionProducer, TransactionState
from tests.interop.drivers import CPP, NODE_JS, need
from tests.interop.stage import staged

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def half(group: str) -> dict[str, str]:
    return {"TRAN_MSG": "true", "PGROUP": group}


class Bank:
    """Decides by the body; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def check(self, message: MessageExt) -> TransactionState:
        body = message.body.decode()
        self.asked.append(body)
        return TransactionState.COMMIT if body.startswith("commit") else TransactionState.ROLLBACK


@pytest.mark.parametrize("consumer_kind", [CPP, NODE_JS])
async def test_half_messages_of_the_node_client(tmp_path: Path, consumer_kind: str) -> None:
    """Nobody sees them before they are committed, and nobody sees what was rolled back."""
    need(NODE_JS)
    need(consumer_kind)
    bank = Bank()
    async with staged(tmp_path) as stage:
        await stage.create("Tx")
        async with (
            stage.producer(NODE_JS, "Bank") as producer,
            stage.consumer(consumer_kind, "Tx", "Group") as consumer,
            TransactionProducer(stage.namesrv, "Bank", bank.check, topics=["Tx"]),
        ):
            for index in range(3):
                for what in ("commit", "roll back"):
                    event = await producer.must_send(
                        "Tx", f"{what} {index}", tag="T", keys="k", properties=half("Bank")
                    )
                    assert event["status"] == "SEND_OK"
            await producer.must_send("Tx", "plain")
            await consumer.until(lambda: "plain" in consumer.bodies)
            assert consumer.bodies == ["plain"]
            await consumer.until(lambda: len(consumer.got) == 4)
            await stage.running.cluster.until("all are asked", _all_of(bank, 6), timeout_s=30)
    assert sorted(consumer.bodies) == ["commit 0", "commit 1", "commit 2", "plain"]
    assert {(each["tag"], each["keys"]) for each in consumer.got if each["got"] != "plain"} == {("T", "k")}
    assert len(bank.asked) == len(set(bank.asked)) == 6


async def test_a_killed_master_keeps_transactions_and_timers(tmp_path: Path) -> None:
    """Both were sent to the killed one; the new one asks, and delivers in time."""
    need(NODE_JS)
    need(CPP)
    bank = Bank()
    async with staged(tmp_path, brokers=3, name_servers=3) as stage:
        await stage.create("Laid")
        running = stage.running
        async with (
            stage.producer(NODE_JS, "Bank") as producer,
            TransactionProducer(stage.namesrv, "Bank", bank.check, topics=["Laid"]) as ours,
        ):
            for what in ("commit", "roll back"):
                await producer.must_send("Laid", what, properties=half("Bank"))
            sent_ms = int(time.time() * 1000)
            for seconds in (12, 20, 16):
                properties = {"TIMER_DELAY_SEC": str(seconds)}
                await producer.must_send("Laid", f"timer {seconds}", properties=properties)
            master = await running.master()
            running.cluster.kill(master)
            await running.new_master(master)
            async with stage.consumer(CPP, "Laid", "Group") as consumer:
                await ours.send(Message("Laid", b"plain"))  # the group goes on working
                await consumer.until(lambda: len(consumer.got) == 5, 60)
                await running.cluster.until("both are asked", _all_of(bank, 2), timeout_s=30)
        at = {each["got"]: each["at"] for each in consumer.got}
        assert at.keys() == {"commit", "plain", "timer 12", "timer 16", "timer 20"}
        assert len(consumer.got) == 5
        assert all(at[f"timer {each}"] >= sent_ms + each * 1_000 for each in (12, 16, 20)), "never early"
        assert sorted(bank.asked) == ["commit", "roll back"]


def _all_of(bank: Bank, count: int) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        await asyncio.sleep(0)
        return len(bank.asked) >= count

    return asked
