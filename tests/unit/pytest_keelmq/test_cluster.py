"""pytest_keelmq.cluster as programs use it: what was sent, settings of one's own, and errors that help."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelmq.blocking import BlockingProducer
from keelmq.client import ConsumeFromWhere, ConsumerSettings, Message, PushConsumer
from pytest_keelmq.cluster import QUICK_LEVELS, TestBroker
from tests.support.client_parts import Seen

FIRST = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET, max_reconsume_times=0)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBroker]:
    with TestBroker(tmp_path_factory.mktemp("broker"), {"messageDelayLevel": QUICK_LEVELS}) as running:
        yield running


def test_what_was_sent(broker: TestBroker) -> None:
    """In the order of the broker's log, from all queues, more than one pull brings."""
    assert broker.messages("Absent") == []
    broker.create_topic("Sent", queues=3)
    assert broker.messages("Sent", 0) == []
    with BlockingProducer(broker.namesrv_addr) as producer:
        for number in range(100):
            producer.send(Message("Sent", b"%d" % number, tags="T"))
    found = broker.messages("Sent", 100)
    assert [message.body for message in found] == [b"%d" % number for number in range(100)]
    assert {message.tags for message in found} == {"T"} and {message.queue_id for message in found} == {
        0,
        1,
        2,
    }


def test_what_was_not_sent(broker: TestBroker) -> None:
    broker.create_topic("Few")
    with BlockingProducer(broker.namesrv_addr) as producer:
        producer.send(Message("Few", b"only this"))
    with pytest.raises(AssertionError, match=r"1 messages in Few after 1 s, not 2: \[b'only this'\]"):
        broker.messages("Few", 2, timeout_s=1.0)


async def test_dead_letters(broker: TestBroker) -> None:
    broker.create_topic("Deadly")
    seen = Seen(lambda _: ValueError("never"))
    async with PushConsumer(broker.namesrv_addr, "deadly", seen, settings=FIRST).subscribe("Deadly"):
        with BlockingProducer(broker.namesrv_addr) as producer:
            await asyncio.to_thread(producer.send, Message("Deadly", b"1"))
        (dead,) = await asyncio.to_thread(broker.messages, "%DLQ%deadly", 1)
    assert dead.body == b"1"


def test_outside_of_its_life() -> None:
    """An error at once, and the broker's address in it when there is one."""
    broker = TestBroker()
    assert "not started" in repr(broker)
    with pytest.raises(RuntimeError, match="inside its `with`"):
        broker.create_topic("T")
    with broker:
        assert broker.broker_addr in repr(broker) and broker.namesrv_addr in repr(broker)
    with pytest.raises(RuntimeError, match="inside its `with`"):
        broker.messages("T")


def test_a_topic_that_cannot_be_says_why(broker: TestBroker) -> None:
    with pytest.raises(ValueError, match=r"topic no spaces!: .*illegal characters"):
        broker.create_topic("no spaces!")


@pytest.mark.slow
def test_a_package_of_the_program_that_hides_ours(tmp_path: Path) -> None:
    """Ours have plain names; the error says which folder it is, not "No module named broker.app.broker"."""
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "__init__.py").touch()
    (tmp_path / "test_it.py").write_text("def test_it(keelmq_broker): pass\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_keelmq.plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{tmp_path}/broker/__init__.py hides the package 'broker' of KeelMQ" in done.stdout
