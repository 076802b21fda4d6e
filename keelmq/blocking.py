"""The clients for programs without asyncio: `from keelmq.blocking import BlockingProducer`.

    with BlockingProducer("127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"1"))

They have the arguments and the errors of the asyncio clients; calls block. One thread with an event loop
serves all clients of a process; it starts with the first client and ends with the last. Any thread may call
them. Do not use them inside a coroutine: a call would block its event loop.
"""

# Written by tools/blocking_clients.py from the asyncio clients: change them, and run it.

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from keelmq.client.blocking_base import (
    Blocking,
    BlockingCheck,
    BlockingListener,
    BlockingMember,
    BlockingMessages,
    BlockingSender,
    BlockingTransaction,
    BlockingTransactions,
    G,
    P,
)
from keelmq.client.cluster.broker_monitor import PROBE_INTERVAL_MS
from keelmq.client.cluster.queue_reader import PULL_MAX_NUMS, READ_TIMEOUT_MS, PullResult
from keelmq.client.cluster.routes import ROUTE_POLL_MS
from keelmq.client.consumer.lite_pull_consumer import POLL_MAX, POLL_TIMEOUT_MS, LitePullConsumer
from keelmq.client.consumer.pull_consumer import PullConsumer
from keelmq.client.consumer.push_consumer import PushConsumer
from keelmq.client.consumer.settings import ConsumerSettings
from keelmq.client.core.batches import BATCH_BYTES_MAX
from keelmq.client.core.checks import check_callable
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.send_result import SendResult
from keelmq.client.core.subscription import ALL
from keelmq.client.hooks import ClientHook
from keelmq.client.lifecycle import ClientClosed
from keelmq.client.message import BODY_BYTES_MAX, Message, MessageExt
from keelmq.client.producer.compression import COMPRESS_OVER_BYTES
from keelmq.client.producer.producer import CLOSE_TIMEOUT_MS, IN_FLIGHT_MAX, SEND_TIMEOUT_MS, Producer
from keelmq.client.producer.request_reply import REPLY_TIMEOUT_MS, REQUEST_TIMEOUT_MS, ReplyMessage
from keelmq.client.producer.sender import Choice
from keelmq.client.producer.transaction import TransactionProducer
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
    "ClientClosed",
]


class _Sender(BlockingSender[P]):
    """What both producers do."""

    def send(
        self,
        message: Message,
        *,
        queue: Choice = None,
        key: str | None = None,
        timeout_ms: int = SEND_TIMEOUT_MS,
    ) -> SendResult:
        """Sends a message and returns its SendResult. `queue`: a queue, or a function that chooses one of all
        queues. `key`: messages with equal keys go to one queue, and keep their order there if each is sent
        after the previous one was acknowledged. SendError: the deadline passed, or a broker's refusal
        was final. ValueError: the protocol cannot carry the message."""
        return self._run(self._open_client.send(message, queue=queue, key=key, timeout_ms=timeout_ms))

    def send_oneway(self, message: Message, *, queue: Choice = None, key: str | None = None) -> None:
        """Makes one attempt without a response: fast, but the caller does not learn whether the message
        arrived. SendError: it was certainly not sent."""
        self._run(self._open_client.send_oneway(message, queue=queue, key=key))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: Choice = None,
        key: str | None = None,
        timeout_ms: int = SEND_TIMEOUT_MS,
        bytes_max: int = BATCH_BYTES_MAX,
    ) -> list[SendResult]:
        """Sends messages of one topic in as few requests as `bytes_max` allows; returns one result for each
        message, in order. A request is stored as a whole or not at all. `timeout_ms`: of the whole call.
        SendError.sent has the results of the requests before the one that failed. ValueError: the messages
        cannot be in one batch."""
        return self._run(
            self._open_client.send_batch(
                messages, queue=queue, key=key, timeout_ms=timeout_ms, bytes_max=bytes_max
            )
        )

    def request(
        self,
        message: Message,
        *,
        queue: Choice = None,
        key: str | None = None,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> ReplyMessage:
        """Sends a message and returns its consumer's reply (PushConsumer.reply), within `timeout_ms` in all.
        NoReply: the message was sent, but no reply came. SendError: as send()."""
        return self._run(self._open_client.request(message, queue=queue, key=key, timeout_ms=timeout_ms))

    def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int = REPLY_TIMEOUT_MS,
    ) -> None:
        """Sends a reply, as PushConsumer.reply, for programs that consume by other means."""
        self._run(self._open_client.reply(request, body, properties=properties, timeout_ms=timeout_ms))

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Returns the writable queues, from a fresh route. RouteError."""
        return self._run(self._open_client.fetch_queues(topic))


class BlockingProducer(_Sender[Producer]):
    """See keelmq.Producer."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str = "DEFAULT_PRODUCER",
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
        compress_over_bytes: int | None = COMPRESS_OVER_BYTES,
        avoid_slow_brokers: bool = False,
        hooks: Iterable[ClientHook] = (),
        instance_name: str | None = None,
        route_poll_interval_ms: int = ROUTE_POLL_MS,
        close_timeout_ms: int = CLOSE_TIMEOUT_MS,
        tls: Tls = False,
        credentials: Credentials | None = None,
        telemetry_directory: str | Path | None = None,
    ) -> None:
        super().__init__(
            lambda: Producer(
                namesrv_addr,
                group,
                in_flight_max=in_flight_max,
                compress_over_bytes=compress_over_bytes,
                avoid_slow_brokers=avoid_slow_brokers,
                hooks=hooks,
                instance_name=instance_name,
                route_poll_interval_ms=route_poll_interval_ms,
                close_timeout_ms=close_timeout_ms,
                tls=tls,
                credentials=credentials,
                telemetry_directory=telemetry_directory,
            )
        )


class BlockingTransactionProducer(_Sender[TransactionProducer], BlockingTransactions):
    """See keelmq.TransactionProducer. `check` runs in separate threads."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str,
        check: BlockingCheck,
        *,
        topics: Iterable[str] = (),
        hooks: Iterable[ClientHook] = (),
        avoid_slow_brokers: bool = False,
        instance_name: str | None = None,
        route_poll_interval_ms: int = ROUTE_POLL_MS,
        close_timeout_ms: int = CLOSE_TIMEOUT_MS,
        tls: Tls = False,
        credentials: Credentials | None = None,
        telemetry_directory: str | Path | None = None,
    ) -> None:
        check_callable("check", check)
        super().__init__(
            lambda: TransactionProducer(
                namesrv_addr,
                group,
                partial(self._in_a_thread, check),
                topics=topics,
                hooks=hooks,
                avoid_slow_brokers=avoid_slow_brokers,
                instance_name=instance_name,
                route_poll_interval_ms=route_poll_interval_ms,
                close_timeout_ms=close_timeout_ms,
                tls=tls,
                credentials=credentials,
                telemetry_directory=telemetry_directory,
            )
        )


class BlockingPullConsumer(Blocking[PullConsumer]):
    """See keelmq.PullConsumer."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str = "DEFAULT_CONSUMER",
        *,
        probe_interval_ms: int = PROBE_INTERVAL_MS,
        body_bytes_max: int = BODY_BYTES_MAX,
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(
            lambda: PullConsumer(
                namesrv_addr,
                group,
                probe_interval_ms=probe_interval_ms,
                body_bytes_max=body_bytes_max,
                tls=tls,
                credentials=credentials,
            )
        )

    def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Returns the readable queues, from a fresh route. PullError: there is no route."""
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
        """Returns messages from `offset` on. `subscription`: "*" or "TagA || TagB"; `sql` instead: an SQL92
        condition over properties. `suspend_ms` > 0: long polling, in which the broker holds the request until
        a message arrives or this time is over (in addition to timeout_ms). Messages that no replica can
        deliver are in result.damaged; next_begin_offset is behind them. PullError; with `damaged` if the
        broker may still heal the first message: pull again later, or from error.damaged.end_offset on."""
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

    def min_offset(self, queue: MessageQueue, *, timeout_ms: int = READ_TIMEOUT_MS) -> int:
        """Returns the offset of the oldest stored message. PullError."""
        return self._run(self._open_client.min_offset(queue, timeout_ms=timeout_ms))

    def max_offset(self, queue: MessageQueue, *, timeout_ms: int = READ_TIMEOUT_MS) -> int:
        """Returns the offset that the next readable message will get. PullError."""
        return self._run(self._open_client.max_offset(queue, timeout_ms=timeout_ms))

    def offset_at(self, queue: MessageQueue, timestamp_ms: int, *, timeout_ms: int = READ_TIMEOUT_MS) -> int:
        """Returns the offset of the first message stored at that time (ms since 1970) or later. PullError."""
        return self._run(self._open_client.offset_at(queue, timestamp_ms, timeout_ms=timeout_ms))

    def committed_offset(self, queue: MessageQueue, *, timeout_ms: int = READ_TIMEOUT_MS) -> int | None:
        """Returns the group's committed offset; None: it has committed nothing. PullError."""
        return self._run(self._open_client.committed_offset(queue, timeout_ms=timeout_ms))

    def commit(self, queue: MessageQueue, offset: int, *, timeout_ms: int = READ_TIMEOUT_MS) -> None:
        """Commits `offset`, that of the next message to consume. PullError."""
        self._run(self._open_client.commit(queue, offset, timeout_ms=timeout_ms))


class _Member(BlockingMember[G]):
    """What both members of a group do."""

    @property
    def group(self) -> str:
        """Returns the consumer group."""
        return self._call(lambda: self._open_client.group)

    @property
    def client_id(self) -> str:
        """Returns the id of this client at the brokers."""
        return self._call(lambda: self._open_client.client_id)

    def unsubscribe(self, topic: str) -> None:
        """Releases the queues of the topic."""
        self._call(lambda: self._open_client.unsubscribe(topic))

    def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int = REPLY_TIMEOUT_MS,
    ) -> None:
        """Sends the reply to the producer whose request() sent this message; returns when it was delivered.
        ValueError: the message is not a request. SendError: it was not delivered; UNKNOWN: it may have been.
        """
        self._run(self._open_client.reply(request, body, properties=properties, timeout_ms=timeout_ms))

    @property
    def damaged_messages(self) -> int:
        """Returns how many damaged messages were skipped since the start (on_damaged=SKIP)."""
        return self._call(lambda: self._open_client.damaged_messages)

    @property
    def assigned(self) -> list[MessageQueue]:
        """Returns the queues that are assigned to this consumer now."""
        return self._call(lambda: self._open_client.assigned)

    def pause(self) -> None:
        """Stops pulling. Messages that were pulled are still delivered, and the queues stay assigned."""
        self._call(lambda: self._open_client.pause())

    def resume(self) -> None:
        """Pulls again after pause()."""
        self._call(lambda: self._open_client.resume())


class BlockingLitePullConsumer(_Member[LitePullConsumer], BlockingMessages):
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

    def poll(self, max_nums: int = POLL_MAX, *, timeout_ms: int = POLL_TIMEOUT_MS) -> list[MessageExt]:
        """Returns up to max_nums messages as soon as there is one, or none after timeout_ms. Messages of one
        queue are in order of their offsets; queues take turns. RuntimeError: the consumer is not open, or
        another task reads it.
        DamagedMessageError: a queue has stopped at a damaged message (on_damaged=STOP), and no other message
        is left."""
        return self._run(self._open_client.poll(max_nums, timeout_ms=timeout_ms))

    def commit(self) -> None:
        """Marks all returned messages as consumed, and saves the offsets at the brokers. PullError: some are
        not saved; they will be tried again. RuntimeError: the consumer is not open."""
        self._run(self._open_client.commit())

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continues reading the queue at `offset`. ValueError: the queue is not assigned to this consumer."""
        self._call(lambda: self._open_client.seek(queue, offset))


class BlockingPushConsumer(_Member[PushConsumer]):
    """See keelmq.PushConsumer. The listener runs in settings.consume_concurrency separate threads. A
    listener that takes too long cannot be stopped: its messages are redelivered while it runs. The
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
        super().__init__(
            lambda: PushConsumer(
                namesrv_addr,
                group,
                partial(self._in_a_thread, listener),
                orderly=orderly,
                settings=settings,
                hooks=hooks,
                tls=tls,
                credentials=credentials,
            )
        )

    def commit(self) -> None:
        """Saves the offsets now, in addition to every persist_interval_ms. PullError: some are not saved."""
        self._run(self._open_client.commit())


BlockingConsumer = BlockingLitePullConsumer
"""The consumer that most programs need."""
