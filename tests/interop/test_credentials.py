"""RocketMQ's C++ and Node clients with credentials, against programs with authentication and authorization.

Neither has TLS. What they say of a refusal differs: Node repeats the remark in its error; the C++ client
writes code and remark to its log, and reports that there is no route."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keelmq import Credentials
from tests.interop.drivers import CPP, NODE_JS, Client, need
from tests.interop.stage import LEVELS
from tests.support.raft_certificates import Authority
from tests.support.secured import Secured, secured

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

EACH = pytest.mark.parametrize("kind", [CPP, NODE_JS])
ORDERS = Credentials("orders", "orders-secret")
WRONG = Credentials("orders", "another-secret")
UNKNOWN = Credentials("unknown", "orders-secret")
RIGHTS = {"Topic:Mine": ["Pub", "Sub"], "Group:Team": ["Sub"]}
NO_RIGHTS = "User:orders has no permission to access Topic:Others from 127.0.0.1, no matched policies."


@pytest.fixture(params=[True, False], ids=["routes are checked", "routes are open"])
async def closed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Secured]:
    """A broker of one test: failed authentications of an address count for all clients there."""
    need(request.getfixturevalue("kind"))
    more = {"messageDelayLevel": LEVELS}
    async with secured(tmp_path / "servers", checks_routes=request.param, broker_settings=more) as found:
        for topic in ("Mine", "Others"):
            await found.create_topic(topic)
        await found.create_user(ORDERS, RIGHTS)
        yield found


def client(
    closed: Secured, kind: str, role: str, group: str, user: Credentials | None, home: Path, **more: object
) -> Client:
    keys = {} if user is None else {"accessKey": user.access_key, "secretKey": user.secret_key}
    return Client(kind, home, kind=role, namesrv=closed.namesrv, group=group, **keys, **more)


def told(home: Path) -> str:
    """Everything that the client has written of what went wrong."""
    files = [path for path in home.rglob("*") if path.is_file()]
    return "\n".join(path.read_text(errors="replace") for path in files)


@EACH
async def test_the_right_secret(closed: Secured, kind: str, tmp_path: Path) -> None:
    """Sends, heartbeats, rebalancing, pulls, offsets and retries are all signed and allowed."""
    async with (
        client(closed, kind, "producer", "Senders", ORDERS, tmp_path) as producer,
        client(closed, kind, "consumer", "Team", ORDERS, tmp_path, topic="Mine") as consumer,
    ):
        for body in ("one", "two", "x" * 5_000):
            await producer.must_send("Mine", body, tag="T", keys="k")
        await producer.must_send("Mine", "poison")
        await consumer.until(lambda: consumer.bodies.count("poison") == 2)
        assert await closed.members_of("Team") == 1
    assert {*consumer.bodies} == {"one", "two", "x" * 5_000, "poison"}
    assert await closed.stored("Mine") == 4


@EACH
@pytest.mark.parametrize(
    ("user", "remark"),
    [
        (None, "username cannot be null."),
        (WRONG, "check signature failed."),
        (UNKNOWN, "check signature failed."),
    ],
    ids=["no credentials", "wrong secret", "unknown user"],
)
async def test_who_is_refused(
    closed: Secured, kind: str, user: Credentials | None, remark: str, tmp_path: Path
) -> None:
    """Code 16 with RocketMQ's remark; nothing is stored, and the broker knows no consumer."""
    async with client(closed, kind, "producer", "Senders", user, tmp_path) as producer:
        event = await producer.send("Mine", "never")
        assert "failed" in event, event
    assert remark in f"{event} {told(tmp_path)}"
    if kind == CPP and not closed.checks_routes:
        assert re.search(rf"remark:{re.escape(remark)}, error code:16\b", told(tmp_path))
    assert await closed.stored("Mine") == 0


@EACH
async def test_a_topic_of_others(closed: Secured, kind: str, tmp_path: Path) -> None:
    async with client(closed, kind, "producer", "Senders", ORDERS, tmp_path) as producer:
        refused = await producer.send("Others", "never")
        assert "failed" in refused, refused
        event = await producer.send("Mine", "still welcome")
        assert "sent" in event, f"{event} {told(tmp_path)}"
    if (kind == NODE_JS) == closed.checks_routes:  # each says why in one of its two ways to fail
        assert NO_RIGHTS in f"{refused} {told(tmp_path)}"
    assert (await closed.stored("Others"), await closed.stored("Mine")) == (0, 1)


@EACH
async def test_a_consumer_that_is_refused(closed: Secured, kind: str, tmp_path: Path) -> None:
    """It gets nothing, while one with the right secret gets everything."""
    async with client(closed, kind, "producer", "Senders", ORDERS, tmp_path) as producer:
        await producer.must_send("Mine", "secret text")
    home = tmp_path / "refused"
    home.mkdir()
    refused = Client(
        kind,
        home,
        kind="consumer",
        namesrv=closed.namesrv,
        group="Team",
        topic="Mine",
        accessKey=WRONG.access_key,
        secretKey=WRONG.secret_key,
    )
    if kind == NODE_JS and not closed.checks_routes:
        with pytest.raises(AssertionError, match="check signature failed"):
            await refused.__aenter__()  # it does not become ready
    else:
        async with (
            refused,
            client(closed, kind, "consumer", "Team", ORDERS, tmp_path, topic="Mine") as consumer,
        ):
            await consumer.until(lambda: consumer.bodies == ["secret text"])
            assert await closed.members_of("Team") == 1
    assert refused.got == [] and "secret text" not in told(home)
    assert "check signature failed." in told(home)


@EACH
async def test_ports_that_are_tls_only(kind: str, tmp_path: Path) -> None:
    """Their connections are closed, whatever they sign: tls.server.mode=permissive is for them. The C++
    client does not look at the close and takes a minute to give up."""
    need(kind)
    async with secured(tmp_path / "servers", tls=Authority(tmp_path / "ca")) as closed:
        await closed.create_topic("Mine")
        await closed.create_user(ORDERS, RIGHTS)
        async with client(closed, kind, "producer", "Senders", ORDERS, tmp_path) as producer:
            producer.tell(topic="Mine", body="never")
            (name_server,) = closed.cluster.name_servers

            async def closes_it() -> bool:
                return "it does not speak TLS, which is enforced here" in name_server.log_path.read_text()

            await closed.cluster.until("a closed connection", closes_it, timeout_s=30)
            assert not any("sent" in event for event in producer.events)
        assert await closed.stored("Mine") == 0
