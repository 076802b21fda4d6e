"""What the blocking clients do and the asyncio clients do not: opening and closing from any thread, fork(),
and functions of the application in threads. keelmq/blocking.py has their constructors and methods."""

import asyncio
import inspect
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from keelmq.client.consumer.lite_pull_consumer import LitePullConsumer
from keelmq.client.consumer.pull_consumer import PullConsumer
from keelmq.client.consumer.push_consumer import PushConsumer
from keelmq.client.core.send_result import SendResult
from keelmq.client.core.subscription import ALL
from keelmq.client.lifecycle import ClientClosed
from keelmq.client.loop_thread import clients_thread
from keelmq.client.message import Message, MessageExt
from keelmq.client.producer.producer import SEND_TIMEOUT_MS, Producer
from keelmq.client.producer.sender import Choice
from keelmq.client.producer.transaction import Transaction, TransactionProducer, TransactionState
from keelmq.runtime.daemon_threads import DaemonThreads

A = TypeVar("A")
T = TypeVar("T")
C = TypeVar("C", bound=Producer | PullConsumer | PushConsumer | LitePullConsumer)
G = TypeVar("G", bound=PushConsumer | LitePullConsumer)
P = TypeVar("P", bound=Producer)

CHECK_THREADS = 4
"""Threads that run `check` for a broker's transaction checks."""

BlockingListener = Callable[[tuple[MessageExt, ...]], None]
BlockingCheck = Callable[[MessageExt], TransactionState]


class Blocking(Generic[C]):
    """A blocking client around the asyncio client that `make` returns; `make` runs in the loop's thread at
    each opening."""

    _opens_after_fork = False
    """Whether a forked child that inherits it opens a client of its own at the first call."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._threads: DaemonThreads | None = None
        self._client: C | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing = False
        self._inherited: tuple[object, ...] = ()
        self._lock = threading.RLock()
        self._calls: set[Future[Any]] = set()
        self._listening: set[int] = set()  # the threads in which functions of the application run now
        _clients.add(self)

    def __enter__(self) -> Self:
        with self._lock:
            if self._loop is not None:
                raise RuntimeError(f"{type(self).__name__} is open already: use one `with` at a time")
            self._loop, self._inherited = clients_thread.hold(), ()
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
        """Closes the client. May be called twice, and from any thread; pending calls of other threads end
        with ClientClosed at the latest. Running listeners may use the client until it is closed. In a
        listener of this client it only begins the closing, which waits for that listener."""
        with self._lock:
            client = self._client
            if client is None or self._closing:
                return
            self._closing = True
        if threading.get_ident() in self._listening:
            threading.Thread(target=self._close, args=(client,), name="keelmq closing").start()
        else:
            self._close(client)

    def _close(self, client: C) -> None:
        try:
            self._run(client.close())
        finally:
            self._release()

    async def _open(self) -> C:
        client = self._make()
        self._threads = _threads_for(client)
        self._prepare(client)
        await client.__aenter__()
        return client

    def _prepare(self, client: C) -> None:
        """What is done to the client before it is opened."""

    def _release(self) -> None:
        """Ends the client: later calls do not reach the loop, pending calls are cancelled."""
        with self._lock:
            self._client, self._loop, self._closing = None, None, False
            calls, threads, self._threads = list(self._calls), self._threads, None
        for call in calls:
            call.cancel()
        if threads is not None:
            threads.shutdown(wait=False)
        clients_thread.release()

    def forked(self) -> None:
        """Resets this object in a forked child: everything that was open belongs to the parent and stays
        untouched."""
        if self._client is not None:
            self._inherited = (self._client, self._loop, self._threads, self._calls)
        self._lock, self._calls, self._closing = threading.RLock(), set(), False
        self._client = self._loop = self._threads = None
        self._listening = set()

    async def _in_a_thread(self, function: Callable[[A], T], value: A) -> T:
        """RuntimeError: the function raised something that no task may raise: SystemExit would end the loop,
        and a future does not accept StopIteration. TypeError: it is a coroutine function or a
        generator, whose body has not run; without an error its messages would count as consumed."""

        def called() -> T:
            self._listening.add(threading.get_ident())
            try:
                result = function(value)
                if inspect.iscoroutine(result) or inspect.isgenerator(result):
                    result.close()
                    kind = "coroutine" if inspect.iscoroutine(result) else "generator"
                    raise TypeError(f"a {kind} function: {type(self).__name__} calls plain functions")
                return result
            except BaseException as error:
                if isinstance(error, Exception) and not isinstance(error, StopIteration):
                    raise
                raise RuntimeError(f"{error!r} in a thread of {type(self).__name__}") from error
            finally:
                self._listening.discard(threading.get_ident())

        return await asyncio.get_running_loop().run_in_executor(self._threads, called)

    @property
    def _open_client(self) -> C:
        client = self._client
        if client is None and self._inherited and self._opens_after_fork:
            with self._lock:
                if self._client is None and self._inherited:
                    self.__enter__()
                client = self._client
        if client is None:
            raise self._not_open()
        return client

    def _not_open(self) -> RuntimeError:
        if self._inherited:
            return RuntimeError(
                f"{type(self).__name__} was opened before this process was forked, and belongs to the "
                "parent: open it here, or open it after the fork only"
            )
        return RuntimeError(f"{type(self).__name__} is not open: use it in a `with` statement")

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the loop and returns its result. Ctrl-C during the wait cancels it."""
        if clients_thread.is_current():
            coroutine.close()
            raise RuntimeError(
                f"{type(self).__name__} was called in the clients' own thread (from a hook?), "
                "and would wait for itself: use another thread"
            )
        with self._lock:  # else the loop may end between the check and the call, which would wait for ever
            loop = self._loop
            if loop is None:
                coroutine.close()
                raise self._not_open()
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
            self._calls.add(future)
        try:
            return future.result()
        except CancelledError:
            if self._loop is not loop:
                raise ClientClosed(f"{type(self).__name__} was closed before the call was done") from None
            raise
        except BaseException:
            future.cancel()
            raise
        finally:
            self._calls.discard(future)

    def _call(self, function: Callable[[], T]) -> T:
        """Calls a plain function in the loop's thread."""

        async def called() -> T:
            return function()

        return self._run(called())


class BlockingSender(Blocking[P]):
    """In a forked child, an open client opens connections of its own at its first call (gunicorn --preload,
    multiprocessing); pending sends stay with the parent."""

    _opens_after_fork = True

    def send_soon(
        self,
        message: Message,
        *,
        queue: Choice = None,
        key: str | None = None,
        timeout_ms: int = SEND_TIMEOUT_MS,
    ) -> "Future[SendResult]":
        """Starts a send and returns its future. Blocks only while `in_flight_max` sends are pending."""
        client = self._open_client
        result: Future[SendResult] = Future()

        async def start() -> None:
            task = await client.send_async(message, queue=queue, key=key, timeout_ms=timeout_ms)
            task.add_done_callback(partial(_settle, result))

        self._run(start())
        return result


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


class BlockingTransactions(Blocking[TransactionProducer]):
    """Sends in transactions."""

    def transaction(
        self,
        message: Message,
        *,
        queue: Choice = None,
        key: str | None = None,
        timeout_ms: int = SEND_TIMEOUT_MS,
    ) -> BlockingTransaction:
        """Sends the message, which stays invisible until commit(). SendError: the broker does not have it."""
        begun = self._run(self._open_client.begin(message, queue=queue, key=key, timeout_ms=timeout_ms))
        return BlockingTransaction(begun, self._run)


class BlockingMember(Blocking[G]):
    """A member of a consumer group: subscribes before the start or while it runs."""

    def __init__(self, make: Callable[[], G]) -> None:
        super().__init__(make)
        self._subscriptions: list[tuple[str, str, str | None]] = []

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> Self:
        """As keelmq.PushConsumer.subscribe."""
        if self._client is None:
            self._subscriptions.append((topic, tags, sql))
        else:
            self._call(lambda: self._open_client.subscribe(topic, tags, sql=sql))
        return self

    def _prepare(self, client: G) -> None:
        for topic, tags, sql in self._subscriptions:
            client.subscribe(topic, tags, sql=sql)


class BlockingMessages(Blocking[LitePullConsumer]):
    """Iterates over messages."""

    def __iter__(self) -> Iterator[MessageExt]:
        while True:
            try:
                yield self._run(self._open_client.__anext__())
            except StopAsyncIteration:
                return


def _threads_for(client: Producer | PullConsumer | PushConsumer | LitePullConsumer) -> DaemonThreads | None:
    """Returns the threads for the application's functions; None: the client calls none."""
    match client:
        case PushConsumer():
            return DaemonThreads(client.settings.consume_concurrency, f"listener {client.group}")
        case TransactionProducer():
            return DaemonThreads(CHECK_THREADS, f"check {client.group}")
    return None


def _forked() -> None:
    for client in list(_clients):
        client.forked()


_clients: "weakref.WeakSet[Blocking[Any]]" = weakref.WeakSet()
os.register_at_fork(after_in_child=_forked)


def _settle(future: "Future[SendResult]", task: "asyncio.Task[SendResult]") -> None:
    """Ends `future` as the task ended."""
    if not future.set_running_or_notify_cancel():
        return  # its owner cancelled it
    if task.cancelled():
        future.set_exception(CancelledError())
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())
