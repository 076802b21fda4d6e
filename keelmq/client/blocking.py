"""The clients without asyncio: the same names and arguments, calls that block, listeners that are functions.

    with BlockingProducer("127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"1"))

One thread with an event loop serves all clients of a process; it starts with the first and ends with the
last. Calls may come from any thread. Not for use inside a coroutine: it would block its loop.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from client.consumer import PullConsumer
from client.core.queues import MessageQueue
from client.core.subscription import ALL
from client.delivery import Choice
from client.hooks import ClientHook
from client.lite_consumer import POLL_MAX, POLL_TIMEOUT_MS, LitePullConsumer
from client.loop_thread import clients_thread
from client.message import Message, MessageExt
from client.producer import SEND_TIMEOUT_MS, Producer
from client.push_consumer import PushConsumer
from client.reading import PULL_MAX_NUMS, READ_TIMEOUT_MS, PullResult
from client.replies import REPLY_TIMEOUT_MS, REQUEST_TIMEOUT_MS, ReplyMessage
from client.route import ROUTE_POLL_MS
from client.sending import SendResult
from client.settings import ConsumerSettings
from client.transaction import Transaction, TransactionProducer, TransactionState

A = TypeVar("A")
T = TypeVar("T")
C = TypeVar("C", bound=Producer | PullConsumer | PushConsumer | LitePullConsumer)
G = TypeVar("G", bound=PushConsumer | LitePullConsumer)
P = TypeVar("P", bound=Producer)

CHECK_THREADS = 4
"""For questions about transactions."""

BlockingListener = Callable[[tuple[MessageExt, ...]], None]


class _Blocking(Generic[C]):
    """`make` runs in the loop's thread, each time that it is opened. `make_threads`: for the application's
    functions, made and ended with the client."""

    def __init__(
        self, make: Callable[[], C], make_threads: Callable[[], ThreadPoolExecutor] | None = None
    ) -> None:
        self._make, self._make_threads = make, make_threads
        self._threads: ThreadPoolExecutor | None = None
        self._client: C | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise RuntimeError(f"{type(self).__name__} is open already: use one `with` at a time")
        self._threads = self._make_threads() if self._make_threads is not None else None
        self._loop = clients_thread.hold()
        try:
            self._client = self._run(self._open())
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """May be called twice. Listeners that run until it ends may still use the client."""
        if self._client is None or self._closing:
            return
        self._closing = True
        try:
            self._run(self._client.close())
        finally:
            self._client, self._closing = None, False
            self._release()

    async def _open(self) -> C:
        client = self._make()
        await client.__aenter__()
        return client

    def _release(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False)
        self._loop = None
        clients_thread.release()

    async def _in_a_thread(self, function: Callable[[A], T], value: A) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, value)

    @property
    def _open_client(self) -> C:
        if self._client is None:
            raise self._not_open()
        return self._client

    def _not_open(self) -> RuntimeError:
        return RuntimeError(f"{type(self).__name__} is not open: use it by `with`")

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Ctrl-C while it waits cancels the call."""
        loop = self._loop
        if loop is None:
            coroutine.close()
            raise self._not_open()
        if clients_thread.is_current():
            coroutine.close()
            raise RuntimeError(
                f"{type(self).__name__} was called in the clients' own thread (from a hook?), "
                "and would wait for itself: use another thread"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _call(self, function: Callable[[], T]) -> T:
        """In the loop's thread: for what is no coroutine but not made for other threads."""

        async def called() -> T:
            return function()

        return self._run(called())


class _Sender(_Blocking[P]):
    """See client.producer.Producer."""

    def send(
        self,
        message: Message,
        *,
        queue: Choice = None,
        key: str | None = None,
        timeout_ms: int = SEND_TIMEOUT_MS,
    ) -> SendResult:
        return self._run(self._open_client.send(message, queue=queue, key=key, timeout_ms=timeout_ms))

    def send_soon(
        self, message: Message, *, key: str | None = None, timeout_ms: int = SEND_TIMEOUT_MS
    ) -> "Future[SendResult]":
        """A future of concurrent.futures. Blocks only while too many are under way."""
        client = self._open_client
        task = self._run(client.send_async(message, key=key, timeout_ms=timeout_ms))
        result: Future[SendResult] = Future()
        self._call(lambda: task.add_done_callback(lambda done: _settle(result, done)))
        return result

    def send_oneway(self, message: Message, *, key: str | None = None) -> None:
        self._run(self._open_client.send_oneway(message, key=key))

    def send_batch(
        self, messages: Sequence[Message], *, key: str | None = None, timeout_ms: int = SEND_TIMEOUT_MS
    ) -> list[SendResult]:
        return self._run(self._open_client.send_batch(messages, key=key, timeout_ms=timeout_ms))

    def request(
        self, message: Message, *, key: str | None = None, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> ReplyMessage:
        return self._run(self._open_client.request(message, key=key, timeout_ms=timeout_ms))

    def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int = REPLY_TIMEOUT_MS,
    ) -> None:
        self._run(self._open_client.reply(request, body, properties=properties, timeout_ms=timeout_ms))


class BlockingProducer(_Sender[Producer]):
    """See client.producer.Producer."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str = "DEFAULT_PRODUCER",
        *,
        avoid_slow_brokers: bool = False,
        hooks: Iterable[ClientHook] = (),
        route_poll_interval_ms: int = ROUTE_POLL_MS,
    ) -> None:
        super().__init__(
            lambda: Producer(
                namesrv_addr,
                group,
                avoid_slow_brokers=avoid_slow_brokers,
                hooks=hooks,
                route_poll_interval_ms=route_poll_interval_ms,
            )
        )


class BlockingTransaction:
    """See client.transaction.Transaction. As a context manager it commits at the end of the block and rolls
    back when it raises."""

    def __init__(self, transaction: Transaction, run: Callable[[Coroutine[Any, Any, bool]], bool]) -> None:
        self._transaction, self._run = transaction, run

    @property
    def msg_id(self) -> str:
        """What `check` will see as message.msg_id."""
        return self._transaction.msg_id

    def commit(self) -> bool:
        """False: no broker could be told. It will ask, and `check` must say the same."""
        return self._run(self._transaction.commit())

    def rollback(self) -> bool:
        return self._run(self._transaction.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._transaction.state is None:
            _ = self.commit() if error is None else self.rollback()


class BlockingTransactionProducer(_Sender[TransactionProducer]):
    """See client.transaction.TransactionProducer. `check` is called in threads of its own."""

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
            ),
            lambda: ThreadPoolExecutor(CHECK_THREADS, thread_name_prefix=f"check {group}"),
        )

    def transaction(
        self, message: Message, *, key: str | None = None, timeout_ms: int = SEND_TIMEOUT_MS
    ) -> BlockingTransaction:
        """The broker has the message, and shows it to nobody before commit(). SendError: it has not."""
        begun = self._run(self._open_client.begin(message, key=key, timeout_ms=timeout_ms))
        return BlockingTransaction(begun, self._run)


class BlockingPullConsumer(_Blocking[PullConsumer]):
    """See client.consumer.PullConsumer."""

    def __init__(self, namesrv_addr: str, group: str = "DEFAULT_CONSUMER") -> None:
        super().__init__(lambda: PullConsumer(namesrv_addr, group))

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
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
        return self._run(self._open_client.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        return self._run(self._open_client.max_offset(queue))

    def committed_offset(self, queue: MessageQueue) -> int | None:
        return self._run(self._open_client.committed_offset(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        self._run(self._open_client.commit(queue, offset))


class _BlockingMember(_Blocking[G]):
    """Of a consumer group: subscribes before the start or while it runs."""

    def __init__(
        self, make: Callable[[], G], make_threads: Callable[[], ThreadPoolExecutor] | None = None
    ) -> None:
        super().__init__(make, make_threads)
        self._subscriptions: list[tuple[str, str, str | None]] = []

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> Self:
        if self._client is None:
            self._subscriptions.append((topic, tags, sql))
        else:
            self._call(lambda: self._open_client.subscribe(topic, tags, sql=sql))
        return self

    def unsubscribe(self, topic: str) -> None:
        self._call(lambda: self._open_client.unsubscribe(topic))

    def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int = REPLY_TIMEOUT_MS,
    ) -> None:
        """Also from inside a listener."""
        self._run(self._open_client.reply(request, body, properties=properties, timeout_ms=timeout_ms))

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues that are ours now."""
        return self._call(lambda: self._open_client.assigned)

    async def _open(self) -> G:
        client = self._make()
        for topic, tags, sql in self._subscriptions:
            client.subscribe(topic, tags, sql=sql)
        await client.__aenter__()
        return client


class BlockingLitePullConsumer(_BlockingMember[LitePullConsumer]):
    """See client.lite_consumer.LitePullConsumer."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str,
        *,
        auto_commit: bool = True,
        settings: ConsumerSettings | None = None,
    ) -> None:
        super().__init__(
            lambda: LitePullConsumer(namesrv_addr, group, auto_commit=auto_commit, settings=settings)
        )

    def poll(self, max_nums: int = POLL_MAX, *, timeout_ms: int = POLL_TIMEOUT_MS) -> list[MessageExt]:
        return self._run(self._open_client.poll(max_nums, timeout_ms=timeout_ms))

    def commit(self) -> None:
        self._run(self._open_client.commit())

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self._call(lambda: self._open_client.seek(queue, offset))


class BlockingPushConsumer(_BlockingMember[PushConsumer]):
    """See client.push_consumer.PushConsumer. The listener is called in threads of its own, as many as
    settings.consume_concurrency. One that takes too long cannot be stopped: its messages come again while it
    still runs."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str,
        listener: BlockingListener,
        *,
        orderly: bool = False,
        settings: ConsumerSettings | None = None,
        hooks: Iterable[ClientHook] = (),
    ) -> None:
        chosen = settings or ConsumerSettings()
        super().__init__(
            lambda: PushConsumer(
                namesrv_addr,
                group,
                partial(self._in_a_thread, listener),
                orderly=orderly,
                settings=chosen,
                hooks=hooks,
            ),
            lambda: ThreadPoolExecutor(chosen.consume_concurrency, thread_name_prefix=f"listener {group}"),
        )


def _settle(future: "Future[SendResult]", task: "asyncio.Task[SendResult]") -> None:
    if task.cancelled():
        future.cancel()
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())
