"""Transactions of our producer against a real broker: committed, rolled back, asked for."""

from collections.abc import Iterator

import pytest

from keelmq.client import ConsumeFromWhere, ConsumerSettings, Message, MessageExt, PushConsumer
from keelmq.client.producer.transaction import TransactionProducer, TransactionState
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import Seen, until

FIRST = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBroker]:
    """Asks soon what becomes of a transaction."""
    settings = {"transactionTimeOut": 200, "transactionCheckInterval": 200}
    with TestBroker(tmp_path_factory.mktemp("broker"), settings) as running:
        yield running


async def never(message: MessageExt) -> TransactionState:
    raise AssertionError(f"asked about {message.body!r}")


async def test_committed_and_rolled_back(broker: TestBroker) -> None:
    broker.create_topic("Money")
    seen = Seen()
    async with (
        PushConsumer(broker.namesrv_addr, "money", seen, settings=FIRST).subscribe("Money"),
        TransactionProducer(broker.namesrv_addr, "bank", never) as producer,
    ):
        async with producer.transaction(Message("Money", b"good", tags="T", keys=("k",))) as transaction:
            assert transaction.state is None and not seen.messages
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("Money", b"bad")):
                1 / 0  # noqa: B018
        last = await producer.begin(Message("Money", b"last"))
        assert await last.commit() and await last.commit(), "repeating it changes nothing"
        with pytest.raises(ValueError, match="already decided"):
            await last.rollback()
        assert sorted(await seen.has(2)) == [b"good", b"last"]
    (good,) = [message for message in seen.messages if message.body == b"good"]
    assert (good.topic, good.tags, good.keys, good.msg_id) == ("Money", "T", "k", transaction.msg_id)


@pytest.mark.parametrize("state", [TransactionState.COMMIT, TransactionState.ROLLBACK])
async def test_the_broker_asks_another_producer_of_the_group(
    broker: TestBroker, state: TransactionState
) -> None:
    """The one that began it is gone; the other never sent anything, and has its topics."""
    topic = f"Asked{state.name}"
    broker.create_topic(topic)
    asked: list[bytes] = []

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message.body)
        assert message.topic == topic
        return TransactionState.UNKNOWN if len(asked) == 1 else state

    group, seen = f"asked-{state.name}", Seen()
    async with TransactionProducer(broker.namesrv_addr, group, never) as lost:
        await lost.begin(Message(topic, b"1"))
    async with (
        PushConsumer(broker.namesrv_addr, topic, seen, settings=FIRST).subscribe(topic),
        TransactionProducer(broker.namesrv_addr, group, check, topics=[topic]) as other,
    ):
        await until(lambda: len(asked) >= 2, "two questions")
        if state is TransactionState.COMMIT:
            assert await seen.has(1) == [b"1"]
        await other.send(Message(topic, b"2"))
        await until(lambda: b"2" in seen.bodies)
    assert seen.bodies == ([b"1", b"2"] if state is TransactionState.COMMIT else [b"2"])


async def test_a_check_that_fails_is_asked_again(
    broker: TestBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that returns something else than a state: True was sent as the decision 1."""
    broker.create_topic("Fails")
    asked: list[bytes] = []

    async def check(message: MessageExt) -> TransactionState:
        asked.append(message.body)
        if len(asked) == 1:
            raise ConnectionError("no database")
        if len(asked) == 2:
            return True  # type: ignore[return-value]
        return TransactionState.COMMIT

    seen = Seen()
    async with (
        PushConsumer(broker.namesrv_addr, "fails", seen, settings=FIRST).subscribe("Fails"),
        TransactionProducer(broker.namesrv_addr, "fails", check) as producer,
    ):
        await producer.begin(Message("Fails", b"1"))
        assert await seen.has(1) == [b"1"]
    assert len(asked) == 3 and "True is not a valid TransactionState" in caplog.text


async def test_a_delayed_message_has_no_transaction(broker: TestBroker) -> None:
    async with TransactionProducer(broker.namesrv_addr, "delayed", never) as producer:
        with pytest.raises(ValueError, match="delayed"):
            await producer.begin(Message("Money", b"1", delay_level=1))
        with pytest.raises(ValueError, match="in a transaction"):
            await producer.begin(Message("Money", b"1", priority=1))
