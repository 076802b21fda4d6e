"""Clients with credentials at a real broker that refuses every request without a right signature: nothing
that a producer or a consumer sends is unsigned. Our batches are requests of code 310, too."""

import asyncio
from collections.abc import Iterator

import pytest

from keelmq import (
    ConsumeFromWhere,
    Consumer,
    ConsumerSettings,
    Credentials,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SendError,
    TraceHook,
    TransactionProducer,
    TransactionState,
)
from keelmq.blocking import BlockingConsumer, BlockingProducer, BlockingPullConsumer
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.codes import RequestCode as Code
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import ANYBODY, Access, Caller, CommandError, OperationTable, Peer, Request
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.security.core.signature import SecretKey, verify
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import Seen, until

MINE = Credentials("rocketmq2", "12345678")
WRONG = Credentials("rocketmq2", "87654321")
FIRST = ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET)
OF_THE_BROKER = {
    Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.BROKER_HEARTBEAT, Code.QUERY_DATA_VERSION,
    Code.GET_BROKER_MEMBER_GROUP,
}  # fmt: skip
"""What the broker sends to its name server, without credentials."""


class Verifier(Access):
    """An Access that knows one user."""

    def __init__(self) -> None:
        self.is_on = False
        self.accepted: set[int] = set()
        self.refused: set[int] = set()

    def admit(self, request: Request, peer: Peer) -> Caller:
        if not self.is_on or request.code in OF_THE_BROKER:
            return ANYBODY
        fields = request.ext_fields
        right = fields.get("AccessKey") == MINE.access_key and verify(
            SecretKey(MINE.secret_key.encode()), fields, bytes(request.body), request.version
        )
        (self.accepted if right else self.refused).add(request.code)
        if not right:
            raise CommandError(ResponseCode.NO_PERMISSION, "check signature failed.")
        return ANYBODY


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestBroker, Verifier]]:
    """A TestBroker, itself without credentials, whose ports ask a Verifier."""
    verifier = Verifier()
    original = TcpServer.__init__

    def init(self: TcpServer, table: OperationTable, *args: object, **flags: object) -> None:
        table.access = verifier
        original(self, table, *args, **flags)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TcpServer, "__init__", init)
        settings = {"autoCreateTopicEnable": True, "autoCreateSubscriptionGroup": True}
        with TestBroker(tmp_path_factory.mktemp("broker"), settings) as broker:
            verifier.is_on = True  # TestBroker itself has no credentials, and waits until it is registered
            yield broker, verifier
            verifier.is_on = False


@pytest.fixture
def verifier(guarded: tuple[TestBroker, Verifier]) -> Verifier:
    made = guarded[1]
    made.accepted.clear()
    made.refused.clear()
    return made


async def test_producers(guarded: tuple[TestBroker, Verifier], verifier: Verifier) -> None:
    address = guarded[0].namesrv_addr

    async def check(_: object) -> TransactionState:
        return TransactionState.COMMIT

    hook = TraceHook()
    async with Producer(address, "p", credentials=MINE, hooks=[hook]) as producer:
        await producer.send(Message("signed", b"1"))
        await producer.send_batch([Message("signed", b"2"), Message("signed", b"3")])
        await producer.send_oneway(Message("signed", b"4"))
    async with TransactionProducer(address, "t", check, topics=["signed"], credentials=MINE) as producer:
        async with await producer.begin(Message("signed", b"5")):
            pass
        async with await producer.begin(Message("signed", b"6")) as transaction:
            await transaction.rollback()
    assert hook.sent == 3
    await until(lambda: Code.END_TRANSACTION in verifier.accepted)
    assert verifier.refused == set()
    assert verifier.accepted >= {
        Code.GET_ROUTEINFO_BY_TOPIC, Code.HEART_BEAT, Code.SEND_MESSAGE_V2, Code.END_TRANSACTION,
    }  # fmt: skip


async def test_consumers(guarded: tuple[TestBroker, Verifier], verifier: Verifier) -> None:
    address = guarded[0].namesrv_addr
    async with Producer(address, credentials=MINE) as producer:
        await producer.send(Message("consumed", b"1"))
    failed: list[str] = []

    def fail_once(message: object) -> BaseException | None:
        failed.append("once")
        return ValueError("again") if len(failed) == 1 else None

    seen, ordered = Seen(fail_once), Seen()
    async with PushConsumer(address, "push", seen, settings=FIRST, credentials=MINE).subscribe("consumed"):
        await until(lambda: Code.CONSUMER_SEND_MSG_BACK in verifier.accepted, "a message goes back")
    in_order = PushConsumer(address, "orderly", ordered, orderly=True, settings=FIRST, credentials=MINE)
    async with in_order.subscribe("consumed"):
        await until(lambda: bool(ordered.messages), "the message")
    async with Consumer(address, "lite", settings=FIRST, credentials=MINE).subscribe("consumed") as polled:
        assert [each.body for each in await polled.poll()] == [b"1"]
        await polled.commit()
    async with PullConsumer(address, "pull", credentials=MINE) as puller:
        queues = await puller.fetch_queues("consumed")
        assert sum([await puller.max_offset(queue) for queue in queues]) == 1
        await puller.commit(queues[0], 0)
    assert verifier.refused == set()
    assert verifier.accepted >= {
        Code.GET_ROUTEINFO_BY_TOPIC, Code.HEART_BEAT, Code.PULL_MESSAGE, Code.GET_CONSUMER_LIST_BY_GROUP,
        Code.QUERY_CONSUMER_OFFSET, Code.UPDATE_CONSUMER_OFFSET, Code.CONSUMER_SEND_MSG_BACK,
        Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ, Code.UNREGISTER_CLIENT, Code.GET_MAX_OFFSET,
    }  # fmt: skip


async def test_blocking_clients_and_admin(guarded: tuple[TestBroker, Verifier], verifier: Verifier) -> None:
    address = guarded[0].namesrv_addr

    def use() -> None:
        with BlockingProducer(address, credentials=MINE) as producer:
            producer.send(Message("blocked", b"1"))
        with BlockingConsumer(address, "blocked", settings=FIRST, credentials=MINE).subscribe(
            "blocked"
        ) as consumer:
            assert [each.body for each in consumer.poll()] == [b"1"]
        with BlockingPullConsumer(address, credentials=MINE) as puller:
            assert puller.fetch_queues("blocked")

    await asyncio.to_thread(use)
    async with AdminClient(credentials=MINE) as admin:
        assert (await admin.name_servers.cluster_info(address)).broker_addr_table
    assert verifier.refused == set()


@pytest.mark.parametrize("credentials", [None, WRONG])
async def test_without_the_right_secret(
    guarded: tuple[TestBroker, Verifier], verifier: Verifier, credentials: Credentials | None
) -> None:
    address = guarded[0].namesrv_addr
    async with AdminClient(credentials=credentials) as admin:
        with pytest.raises(AdminError, match="check signature failed") as caught:
            await admin.name_servers.cluster_info(address)
    assert caught.value.code == ResponseCode.NO_PERMISSION
    async with Producer(address, credentials=credentials) as producer:
        with pytest.raises(SendError) as failed:
            await producer.send(Message("signed", b"x"), timeout_ms=500)
    assert WRONG.secret_key not in str(failed.value)
    assert verifier.accepted == set()
