"""What a SendError says: a group without a master has a route, and was not tried."""

import asyncio

import pytest

from keelmq.client.cluster.routes import RouteCache, RouteError, TopicRoute
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.send_result import SendError, SendErrorKind
from keelmq.client.core.subscription import Subscription
from keelmq.client.message import Message, encode_properties
from keelmq.client.producer.send_attempt import PendingSend, pending
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty
from keelmq.remoting.operations.broker import GET_BROKER_RUNTIME_INFO


@pytest.mark.parametrize(
    ("kind", "attempts", "text"),
    [
        (SendErrorKind.NO_ROUTE, 0, "not sent: why"),
        (SendErrorKind.NO_ROUTE, 2, "not sent after 2 attempts: why"),
        (SendErrorKind.CLOSED, 0, "not sent: why"),
        (SendErrorKind.REFUSED, 1, "refused after 1 attempt: why"),
        (SendErrorKind.UNKNOWN, 3, "unknown after 3 attempts: why"),
    ],
)
def test_the_text_of_an_error(kind: SendErrorKind, attempts: int, text: str) -> None:
    error = SendError(kind, "why", attempts)
    assert str(error) == text
    assert (error.kind, error.attempts, error.remark) == (kind, attempts, "why")


def test_groups_without_a_master_are_named_with_their_slaves() -> None:
    queues = tuple(MessageQueue("t", f"b{number}", 0) for number in range(9))
    addresses = {queue.broker_name: {1: "h:1", 2: "h:2"} for queue in queues}
    text = TopicRoute("t", ordered_queues=queues, addresses=addresses).why_not_writable(None)
    assert text.startswith(
        "no group of topic t has a master now; b0 (slaves, which take no messages: 1 at h:1, 2"
    )
    assert text.count("slaves") == 5, "the text is bounded"
    nobody = TopicRoute("t", ordered_queues=queues[:1], addresses={"b0": {}})
    assert nobody.why_not_writable("b0") == "group b0 of topic t has no master now (no replica is registered)"


def test_an_attempt_that_fails_after_close_does_not_replace_closed() -> None:
    """Between close() and the cancelled task's next step, the attempt under way can end with "no route"."""
    send = PendingSend("t", b"", 0, 0, "", "key", 0)
    send.fail(SendErrorKind.CLOSED, "the producer was closed")
    send.fail(SendErrorKind.NO_ROUTE, "no name server answered")
    error = send.error()
    assert (error.kind, error.remark) == (SendErrorKind.CLOSED, "the producer was closed")
    send.uncertain += 1
    assert send.error().kind is SendErrorKind.UNKNOWN, "what may be stored is said before all else"


def test_an_attempt_that_the_deadline_ended_was_one() -> None:
    """It said "unknown after 1 attempt: no attempt was made", of a broker that hangs."""
    send = PendingSend("t", b"", 0, 0, "", "key", 0, attempts=1, in_doubt=True, last_address="h:1")
    assert str(send.error()) == "unknown after 1 attempt: h:1: no answer in time"
    send.fail(SendErrorKind.REFUSED, "h:2 answered 2 busy")
    assert str(send.error()).endswith(": h:1: no answer in time; before: h:2 answered 2 busy")
    send.fail(SendErrorKind.CLOSED, "the producer was closed")
    assert send.error().remark == "the producer was closed"


@pytest.mark.parametrize("body", ["text", "long " * 2_000, {"a": 1}, [1], 5, None])
def test_a_body_that_is_not_bytes_is_refused(body: object) -> None:
    """The connection writes what is not bytes as JSON, so consumers got a text with quotation marks."""
    message = Message("t", body)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the body of a message is bytes, not "):
        pending(message, "key", 0)
    with pytest.raises(TypeError, match=type(body).__name__):  # as batches and replies do
        encode_properties(message, "key")


@pytest.mark.parametrize("body", [b"x", bytearray(b"x"), memoryview(b"x")])
def test_what_is_like_bytes_is_a_body(body: bytes) -> None:
    assert bytes(pending(Message("t", body), "key", 0).body) == b"x"


def test_a_message_or_a_subscription_without_a_topic_is_refused() -> None:
    with pytest.raises(ValueError, match="a message needs the name of a topic"):
        pending(Message("", b"x"), "key", 0)
    with pytest.raises(ValueError, match="a subscription needs the name of a topic"):
        Subscription("")


def test_a_client_of_another_event_loop_is_refused() -> None:
    """Each send took its whole time-out, and was then UNKNOWN."""
    client = RemotingClient()

    async def call() -> None:
        await client.call("127.0.0.1:1", GET_BROKER_RUNTIME_INFO, Empty())

    asyncio.run(call())
    with pytest.raises(RuntimeError, match=r"was used in another event loop, .* asyncio\.run"):
        asyncio.run(call())


async def test_a_name_server_that_closes_a_plain_connection_may_take_tls_only() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    client = RemotingClient()
    async with server:
        routes = RouteCache(client, f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(RouteError, match=r" lost: a server that takes TLS only closes plain connections"):
            await routes.refresh("T")
        await routes.close()
        await client.close()


def test_the_kind_of_an_error_is_that_of_the_last_answer() -> None:
    """A refusal was hidden by the name server that could not be reached afterwards."""
    send = PendingSend("t", b"", 0, 0, "", "key", 0, attempts=2)
    send.fail(SendErrorKind.NO_ROUTE, "no name server answered", answered=False)
    assert send.error().kind is SendErrorKind.NO_ROUTE
    send.fail(SendErrorKind.REFUSED, "h:2 answered 2 busy")
    send.fail(SendErrorKind.NO_ROUTE, "no name server answered", answered=False)
    assert str(send.error()) == (
        "refused after 2 attempts: h:2 answered 2 busy; then: no name server answered"
    )
    send.fail(SendErrorKind.NO_ROUTE, "no master")
    assert (send.error().kind, send.error().remark) == (SendErrorKind.NO_ROUTE, "no master")
