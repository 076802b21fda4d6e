"""The blocking clients: arguments as of the asyncio clients, blocking calls, plain functions as listeners.

    with BlockingProducer("127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"1"))

One thread with an event loop serves all clients of a process; it starts with the first client and ends with
the last. Any thread may call them. Do not use them inside a coroutine: a call would block its event loop.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from keelmq.client.blocking_base import Blocking, settle
from keelmq.client.cluster.queue_reader import PULL_MAX_NUMS, READ_TIMEOUT_MS, PullResult
from keelmq.client.cluster.routes import ROUTE_POLL_MS
from keelmq.client.consumer.lite_pull_consumer import POLL_MAX, POLL_TIMEOUT_MS, LitePullConsumer
from keelmq.client.consumer.pull_consumer import PullConsumer
from keelmq.client.consumer.push_consumer import PushConsumer
from keelmq.client.consumer.settings import ConsumerSettings
from keelmq.client.core.checks import check_callable, check_one_of
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.send_result import SendResult
from keelmq.client.core.subscription import ALL
from keelmq.client.hooks import ClientHook
from keelmq.client.message import Message, MessageExt
from keelmq.client.producer.producer import CLOSE_TIMEOUT_MS, SEND_TIMEOUT_MS, Producer
from keelmq.client.producer.request_reply import REPLY_TIMEOUT_MS, REQUEST_TIMEOUT_MS, ReplyMessage
from keelmq.client.producer.sender import Choice
from keelmq.client.producer.transaction import Transaction, TransactionProducer, TransactionState
from keelmq.runtime.daemon_threads import DaemonThreads
from keelmq.runtime.tls.contexts import Tls
from keelmq.security.signer import Credentials

__all__ = [
    "BlockingConsumer",
    "BlockingLitePullConsumer",
    "BlockingProducer",
    "BlockingPullConsumer",
    "BlockingPushConsumer",
    "BlockingTransaction",
    "BlockingTransactionProducer",
]

G = TypeVar("G", bound=PushConsumer | LitePullConsumer)
P = TypeVar("P", bound=Producer)

CHECK_THREADS = 4
"""Threads that run `check` for a broker's transaction checks."""

BlockingListener = Callable[[tuple[MessageExt, ...]], None]


class _Sender(Blocking[P]):
    """See keelmq.Producer. In a forked child, an open client opens connections of its own at its first call
    (gunicorn --preload, multiprocessing); pending sends stay with the parent."""

    _opens_after_fork = True

    def send(
        self,
        message: Message,
        *,
        queue: Choice = None,
        key: str | None = None,
        timeout_ms: int = SEND_TIMEOUT_MS,
    ) -> SendResult:
        """As keelmq.Producer.send."""
        return self._run(self._open_client.send(message, queue=queue, key=key, timeout_ms=timeout_ms))

    def send_soon(
        self, message: Message, *, key: str | None = None, timeout_ms: int = SEND_TIMEOUT_MS
    ) -> "Future[SendResult]":
        """Starts a send and returns its future. Blocks only while too many sends are pending."""
        client = self._open_client
        result: Future[SendResult] = Future()

        async def start() -> None:
            task = await client.send_async(message, key=key, timeout_ms=timeout_ms)
            task.add_done_callback(partial(settle, result))

        self._run(start())
        return result

    def send_oneway(self, message: Message, *, key: str | None = None) -> None:
        """As keelmq.Producer.send_oneway."""
        self._run(self._open_client.send_oneway(message, key=key))

    def send_batch(
        self, messages: Sequence[Message], *, key: str | None = None, timeout_ms: int = SEND_TIMEOUT_MS
    ) -> list[SendResult]:
        """As keelmq.Producer.send_batch."""
        return self._run(self._open_client.send_batch(messages, key=key, timeout_ms=timeout_ms))

    def request(
        self, message: Message, *, key: str | None = None, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> ReplyMessage:
        """As keelmq.Producer.request."""
        return self._run(self._open_client.request(message, key=key, timeout_ms=timeout_ms))

    def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int = REPLY_TIMEOUT_MS,
    ) -> None:
        """As keelmq.Producer.reply."""
        self._run(self._open_client.reply(request, body, properties=properties, timeout_ms=timeout_ms))


class BlockingProducer(_Sender[Producer]):
    """See keelmq.Producer."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str = "DEFAULT_PRODUCER",
        *,
        avoid_slow_brokers: bool = False,
        hooks: Iterable[ClientHook] = (),
        route_poll_interval_ms: int = ROUTE_POLL_MS,
        close_timeout_ms: int = CLOSE_TIMEOUT_MS,
        tls: Tls = False,
        credentials: Credentials | None = None,
        telemetry_directory: str | None = None,
    ) -> None:
        super().__init__(
            lambda: Producer(
                namesrv_addr,
                group,
                avoid_slow_brokers=avoid_slow_brokers,
                hooks=hooks,
                route_poll_interval_ms=route_poll_interval_ms,
                close_timeout_ms=close_timeout_ms,
                tls=tls,
                credentials=credentials,
                telemetry_directory=telemetry_directory,
            )
        )


class BlockingTransaction:
    """See keelmq.Transaction. As a context manager it commits at the end of the block, and rolls back if the
    block raises."""

    def __init__(self, transaction: Transaction, run: Callable[[Coroutine[Any, Any, bool]], bool]) -> None:
        self._transaction, self._run = transaction, run

    @property
    def msg_id(self) -> str:
        """Returns the id that `check` will see as message.msg_id."""
        return self._transaction.msg_id

    def commit(self) -> bool:
        """Makes the message visible. False: no broker received the decision; one will check, and `check` must
        return the same decision."""
        return self._run(self._transaction.commit())

    def rollback(self) -> bool:
        """Discards the message. Returns as commit()."""
        return self._run(self._transaction.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._transaction.state is None:
            _ = self.commit() if error is None else self.rollback()


class BlockingTransactionProducer(_Sender[TransactionProducer]):
    """See keelmq.TransactionProducer. `check` runs in separate threads."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str,
        check: Callable[[MessageExt], TransactionState],
        *,
        topics: Iterable[str] = (),
        avoid_slow_brokers: bool = False,
        hooks: Iterable[ClientHook] = (),
        route_poll_interval_ms: int = ROUTE_POLL_MS,
        close_timeout_ms: int = CLOSE_TIMEOUT_MS,
        tls: Tls = False,
        credentials: Credentials | None = None,
        telemetry_directory: str | None = None,
    ) -> None:
        super().__init__(
            lambda: TransactionProducer(
                namesrv_addr,
                group,
                partial(self._in_a_thread, check),
                topics=topics,
                avoid_slow_brokers=avoid_slow_brokers,
                hooks=hooks,
                route_poll_interval_ms=route_poll_interval_ms,
                close_timeout_ms=close_timeout_ms,
                tls=tls,
                credentials=credentials,
                telemetry_directory=telemetry_directory,
            ),
            lambda: DaemonThreads(CHECK_THREADS, f"check {group}"),
        )

    def transaction(
        self, message: Message, *, key: str | None = None, timeout_ms: int = SEND_TIMEOUT_MS
    ) -> BlockingTransaction:
        """Sends the message, which stays invisible until commit(). SendError: the broker does not have it."""
        begun = self._run(self._open_client.begin(message, key=key, timeout_ms=timeout_ms))
        return BlockingTransaction(begun, self._run)


class BlockingPullConsumer(Blocking[PullConsumer]):
    """See keelmq.PullConsumer."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str = "DEFAULT_CONSUMER",
        *,
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(lambda: PullConsumer(namesrv_addr, group, tls=tls, credentials=credentials))

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """As keelmq.PullConsumer.fetch_queues."""
        return self._run(self._open_client.fetch_queues(topic))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_nums: int = PULL_MAX_NUMS,
        *,
        subscription: str = ALL,
        sql: str | None = None,
        suspend_ms: int = 0,
        timeout_ms: int = READ_TIMEOUT_MS,
    ) -> PullResult:
        """As keelmq.PullConsumer.pull."""
        return self._run(
            self._open_client.pull(
                queue,
                offset,
                max_nums,
                subscription=subscription,
                sql=sql,
                suspend_ms=suspend_ms,
                timeout_ms=timeout_ms,
            )
        )

    def min_offset(self, queue: MessageQueue) -> int:
        """As keelmq.PullConsumer.min_offset."""
        return self._run(self._open_client.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """As keelmq.PullConsumer.max_offset."""
        return self._run(self._open_client.max_offset(queue))

    def committed_offset(self, queue: MessageQueue) -> int | None:
        """As keelmq.PullConsumer.committed_offset."""
        return self._run(self._open_client.committed_offset(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """As keelmq.PullConsumer.commit."""
        self._run(self._open_client.commit(queue, offset))


class _Member(Blocking[G]):
    """A member of a consumer group: subscribes before the start or while it runs."""

    def __init__(
        self, make: Callable[[], G], make_threads: Callable[[], DaemonThreads] | None = None
    ) -> None:
        super().__init__(make, make_threads)
        self._subscriptions: list[tuple[str, str, str | None]] = []

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> Self:
        """As keelmq.PushConsumer.subscribe."""
        if self._client is None:
            self._subscriptions.append((topic, tags, sql))
        else:
            self._call(lambda: self._open_client.subscribe(topic, tags, sql=sql))
        return self

    def unsubscribe(self, topic: str) -> None:
        """As keelmq.PushConsumer.unsubscribe."""
        self._call(lambda: self._open_client.unsubscribe(topic))

    def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int = REPLY_TIMEOUT_MS,
    ) -> None:
        """As keelmq.PushConsumer.reply; may be called inside a listener."""
        self._run(self._open_client.reply(request, body, properties=properties, timeout_ms=timeout_ms))

    @property
    def assigned(self) -> list[MessageQueue]:
        """Returns the queues that are assigned to this consumer now."""
        return self._call(lambda: self._open_client.assigned)

    @property
    def damaged_messages(self) -> int:
        """Returns how many damaged messages were skipped since the start (on_damaged=SKIP)."""
        return self._call(lambda: self._open_client.damaged_messages)

    async def _open(self) -> G:
        client = self._make()
        for topic, tags, sql in self._subscriptions:
            client.subscribe(topic, tags, sql=sql)
        await client.__aenter__()
        return client


class BlockingLitePullConsumer(_Member[LitePullConsumer]):
    """See keelmq.LitePullConsumer. `for message in consumer` counts a message as consumed when the loop
    requests the next one."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str,
        *,
        auto_commit: bool = True,
        settings: ConsumerSettings | None = None,
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(
            lambda: LitePullConsumer(
                namesrv_addr,
                group,
                auto_commit=auto_commit,
                settings=settings,
                tls=tls,
                credentials=credentials,
            )
        )

    def __iter__(self) -> Iterator[MessageExt]:
        while True:
            try:
                yield self._run(self._open_client.__anext__())
            except StopAsyncIteration:
                return

    def poll(self, max_nums: int = POLL_MAX, *, timeout_ms: int = POLL_TIMEOUT_MS) -> list[MessageExt]:
        """As keelmq.LitePullConsumer.poll."""
        return self._run(self._open_client.poll(max_nums, timeout_ms=timeout_ms))

    def commit(self) -> None:
        """As keelmq.LitePullConsumer.commit."""
        self._run(self._open_client.commit())

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """As keelmq.LitePullConsumer.seek."""
        self._call(lambda: self._open_client.seek(queue, offset))


BlockingConsumer = BlockingLitePullConsumer
"""The consumer that most programs need, under its short name."""


class BlockingPushConsumer(_Member[PushConsumer]):
    """See keelmq.PushConsumer. The listener runs in separate threads, settings.consume_concurrency of them. A
    listener that takes too long cannot be stopped: its messages are redelivered while it still runs. The
    threads are daemons: one that hangs does not keep the process alive after close()."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str,
        listener: BlockingListener,
        *,
        orderly: bool = False,
        settings: ConsumerSettings | None = None,
        hooks: Iterable[ClientHook] = (),
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        check_callable("listener", listener)
        check_one_of("settings", settings, ConsumerSettings, optional=True)
        chosen = settings or ConsumerSettings()
        super().__init__(
            lambda: PushConsumer(
                namesrv_addr,
                group,
                partial(self._in_a_thread, listener),
                orderly=orderly,
                settings=chosen,
                hooks=hooks,
                tls=tls,
                credentials=credentials,
            ),
            lambda: DaemonThreads(chosen.consume_concurrency, f"listener {group}"),
        )
