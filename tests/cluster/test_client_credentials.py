"""keelmq's clients against closed programs: plain and TLS, with right credentials, wrong ones, and none."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import pytest
import pytest_asyncio

from keelmq import (
    Credentials,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PullConsumer,
    PushConsumer,
    TlsSettings,
    TransactionProducer,
    TransactionState,
)
from keelmq.blocking import (
    BlockingLitePullConsumer,
    BlockingProducer,
    BlockingPullConsumer,
    BlockingPushConsumer,
)
from keelmq.client.admin import AdminClient
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.pop import POP_MESSAGE, PopMessageRequest
from keelmq.runtime.clock import wall_ms
from keelmq.security.signer import optional_signer
from tests.support.raft_certificates import Authority
from tests.support.secured import Secured, secured

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120), pytest.mark.asyncio(loop_scope="module")]

ORDERS = Credentials("orders", "orders-secret")
WRONG = Credentials("orders", "another-secret")
TOPIC, FULL_TOPIC = "Mine", "Full"
RIGHTS = {
    "Topic:Mine": ["Pub", "Sub", "Get"],
    "Topic:Full": ["Sub"],
    "Group:team-*": ["Sub"],
}
RECEIVE_S = 20.0
REFUSED_S = 2.0
"""Consumers never give up: so long a refused one gets nothing."""
_groups = itertools.count()
REMARKS = {
    "none": ("username cannot be null.",),
    "wrong": ("check signature failed.", "too many failed authentications from 127.0.0.1"),
}
"""Also in the remark of a refusal: an address with many failures is not asked for its signature any more."""


@dataclass
class World:
    closed: Secured
    tls: TlsSettings | None
    patience_s: float = RECEIVE_S

    def group(self) -> str:
        """A new consumer group, for which ORDERS has rights."""
        return f"team-{next(_groups)}"

    def impatient(self) -> "World":
        return replace(self, patience_s=REFUSED_S)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["plain", "tls"])
async def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """TLS: every port refuses plain connections. One message is in FULL_TOPIC."""
    directory = tmp_path_factory.mktemp(request.param)
    authority = Authority(directory / "ca") if request.param == "tls" else None
    tls = None if authority is None else TlsSettings(ca=authority.path)
    async with secured(directory / "servers", tls=authority) as closed:
        for topic in (TOPIC, FULL_TOPIC):
            await closed.create_topic(topic)
        await closed.create_user(ORDERS, RIGHTS)
        filler = Credentials("filler", "filler-secret")
        await closed.create_user(filler, {"Topic:Full": ["Pub"]})
        async with Producer(closed.namesrv, tls=tls or False, credentials=filler) as producer:
            await producer.send(Message(FULL_TOPIC, b"there"))
        yield World(closed, tls)


class Refused(Exception):
    """A consumer got nothing in REFUSED_S."""


async def first(world: World, got: "asyncio.Queue[MessageExt]") -> None:
    """One message. Raises Refused."""
    try:
        message = await asyncio.wait_for(got.get(), world.patience_s)
    except TimeoutError:
        raise Refused from None
    assert message.body == b"there"


# -- one use of each client; each raises what its user would see ------------------------------------------

Use = Callable[[World, Credentials | None], Awaitable[None]]


async def producer(world: World, user: Credentials | None) -> None:
    async with Producer(world.closed.namesrv, tls=world.tls, credentials=user) as client:
        await client.send(Message(TOPIC, b"x"), timeout_ms=3_000)


async def transaction(world: World, user: Credentials | None) -> None:
    async with (
        TransactionProducer(
            world.closed.namesrv, "p", lambda _: TransactionState.COMMIT, tls=world.tls, credentials=user
        ) as client,
        client.transaction(Message(TOPIC, b"x")),
    ):
        pass


async def blocking_producer(world: World, user: Credentials | None) -> None:
    def send() -> None:
        with BlockingProducer(world.closed.namesrv, tls=world.tls, credentials=user) as client:
            client.send(Message(TOPIC, b"x"), timeout_ms=3_000)

    await asyncio.to_thread(send)


async def pull(world: World, user: Credentials | None) -> None:
    async with PullConsumer(world.closed.namesrv, "team-pull", tls=world.tls, credentials=user) as client:
        (queue,) = await client.fetch_queues(FULL_TOPIC)
        (found,) = (await client.pull(queue, 0)).messages
        assert found.body == b"there"


async def blocking_pull(world: World, user: Credentials | None) -> None:
    def read() -> None:
        with BlockingPullConsumer(
            world.closed.namesrv, "team-pull", tls=world.tls, credentials=user
        ) as client:
            (queue,) = client.fetch_queues(FULL_TOPIC)
            assert [each.body for each in client.pull(queue, 0).messages] == [b"there"]

    await asyncio.to_thread(read)


async def push(world: World, user: Credentials | None) -> None:
    got: asyncio.Queue[MessageExt] = asyncio.Queue()

    async def listen(messages: tuple[MessageExt, ...]) -> None:
        for message in messages:
            got.put_nowait(message)

    async with PushConsumer(
        world.closed.namesrv, world.group(), listen, tls=world.tls, credentials=user
    ).subscribe(FULL_TOPIC):
        await first(world, got)


async def blocking_push(world: World, user: Credentials | None) -> None:
    got: asyncio.Queue[MessageExt] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def listen(messages: tuple[MessageExt, ...]) -> None:
        for message in messages:
            loop.call_soon_threadsafe(got.put_nowait, message)

    client = BlockingPushConsumer(
        world.closed.namesrv, world.group(), listen, tls=world.tls, credentials=user
    ).subscribe(FULL_TOPIC)
    await asyncio.to_thread(client.__enter__)
    try:
        await first(world, got)
    finally:
        await asyncio.to_thread(client.__exit__, None, None, None)


async def lite_pull(world: World, user: Credentials | None) -> None:
    async with LitePullConsumer(
        world.closed.namesrv, world.group(), tls=world.tls, credentials=user
    ).subscribe(FULL_TOPIC) as client:
        if not await client.poll(timeout_ms=int(world.patience_s * 1_000)):
            raise Refused


async def blocking_lite_pull(world: World, user: Credentials | None) -> None:
    def poll() -> None:
        with BlockingLitePullConsumer(
            world.closed.namesrv, world.group(), tls=world.tls, credentials=user
        ).subscribe(FULL_TOPIC) as client:
            if not client.poll(timeout_ms=int(world.patience_s * 1_000)):
                raise Refused

    await asyncio.to_thread(poll)


async def pop(world: World, user: Credentials | None) -> None:
    """As requests: keelmq has no consumer that pops."""
    client = RemotingClient(tls=world.tls, signer=optional_signer(user))
    header = PopMessageRequest(
        consumer_group="team-pop",
        topic=FULL_TOPIC,
        queue_id=-1,
        max_msg_nums=1,
        invisible_time=10_000,
        poll_time=0,
        born_time=wall_ms(),
    )
    try:
        outcome = await client.call((await world.closed.master()).address, POP_MESSAGE, header)
    finally:
        await client.close()
    if not isinstance(outcome, Ok):
        raise PermissionError(str(outcome))
    assert b"there" in outcome.body


async def admin(world: World, user: Credentials | None) -> None:
    async with AdminClient(timeout_ms=3_000, tls=world.tls, credentials=user) as client:
        await client.name_servers.topic_route(world.closed.namesrv, TOPIC)
        await client.brokers.topic_stats((await world.closed.master()).address, TOPIC)


USES: list[Use] = [
    producer, transaction, blocking_producer, pull, blocking_pull, push, blocking_push, lite_pull,
    blocking_lite_pull, pop, admin,
]  # fmt: skip
EACH = pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)


# -- in this order: failed authentications count for the address, which all of them have ------------------


@EACH
async def test_the_right_secret(world: World, use: Use) -> None:
    await use(world, ORDERS)


@EACH
async def test_a_topic_without_rights(world: World, use: Use) -> None:
    """The user of FULL_TOPIC's messages may neither send to TOPIC nor consume."""
    filler = Credentials("filler", "filler-secret")
    before = await world.closed.stored(TOPIC)
    with pytest.raises(Exception) as refused:
        await use(world.impatient(), filler)
    text = str(refused.value)
    assert isinstance(refused.value, Refused) or "User:filler has no permission to access" in text, text
    assert await world.closed.stored(TOPIC) == before


@EACH
@pytest.mark.parametrize("user", ["none", "wrong"])
async def test_who_is_refused(world: World, use: Use, user: str, caplog: pytest.LogCaptureFixture) -> None:
    """The reason is in the error, or for consumers, which go on trying, in the log."""
    before = await world.closed.stored(TOPIC)
    caplog.set_level("INFO")
    with pytest.raises(Exception) as refused:
        await use(world.impatient(), {"none": None, "wrong": WRONG}[user])
    text = caplog.text if isinstance(refused.value, Refused) else str(refused.value)
    assert any(remark in text for remark in REMARKS[user]), text
    assert await world.closed.stored(TOPIC) == before


@pytest.mark.parametrize("use", [producer, blocking_producer, pull, push, pop, admin])
async def test_connections_that_are_not_tls(world: World, use: Use) -> None:
    """The right secret does not help a plain client at ports that are TLS only."""
    if world.tls is None:
        pytest.skip("these ports serve plain clients")
    with pytest.raises(Exception) as refused:
        await use(replace(world.impatient(), tls=None), ORDERS)
    assert not isinstance(refused.value, AssertionError), refused.value
