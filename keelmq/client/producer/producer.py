"""Producer: sends messages to the masters of a topic's queues, also during a fail-over.

keelmq/client/producer/sender.py describes a send during a fail-over. An attempt that ended Unknown, or with a
replication or flush timeout, may be stored, so the next attempt may duplicate it.
SendResult.uncertain_attempts counts such attempts; all attempts of a message carry the same UNIQ_KEY.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from keelmq.client.cluster.broker_monitor import BrokerMonitor
from keelmq.client.cluster.heartbeats import Membership, make_client_id
from keelmq.client.cluster.queue_reader import QueueReader
from keelmq.client.cluster.route_poll import RoutePoll
from keelmq.client.cluster.routes import ROUTE_POLL_MS, RouteCache, RouteError, TopicRoute
from keelmq.client.core.batches import BATCH_BYTES_MAX, Item, encode_batches
from keelmq.client.core.checks import check_callable, check_instances, check_int, check_one_of, check_text
from keelmq.client.core.names import check_group
from keelmq.client.core.queue_choice import FaultTable
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.send_result import SendError, SendErrorKind, SendResult
from keelmq.client.hooks import ClientHook, Hooks, SendTrace
from keelmq.client.lifecycle import Lifecycle
from keelmq.client.message import Message, MessageExt, encode_properties, unique_keys
from keelmq.client.producer.compression import COMPRESS_OVER_BYTES
from keelmq.client.producer.request_reply import (
    REPLY_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    NoReply,
    ReplyMessage,
    Requests,
    as_request,
    send_reply,
)
from keelmq.client.producer.send_attempt import PendingSend, one_batch, pending, results_of_batch
from keelmq.client.producer.send_gap_log import SendGapLog
from keelmq.client.producer.sender import ATTEMPT_TIMEOUT_MS, Choice, Sender, choice_of
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import OperationTable
from keelmq.remoting.operations.clients import HeartbeatData, ProducerData
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.tasks import TaskSet
from keelmq.runtime.tls.contexts import Tls
from keelmq.security.signer import Credentials, check_shared, optional_signer

SEND_TIMEOUT_MS = 3_000
CLOSE_TIMEOUT_MS = 5_000
IN_FLIGHT_MAX = 1_024

Callback = Callable[[SendResult | SendError], None]


class Producer(Lifecycle):
    """`async with Producer("host:9876;host:9877", "group") as producer: await producer.send(Message(...))`.
    `client`: a RemotingClient to share; without it the producer owns one and closes it. `in_flight_max`: of
    send_async. `compress_over_bytes` None: never. `avoid_slow_brokers`: avoid brokers for some seconds after
    slow answers or failures (sendLatencyFaultEnable). `instance_name`: replaces the process id in the client
    id. `route_poll_interval_ms`: how often an idle producer refreshes its routes; it does so at once after
    losing a master. `close_timeout_ms`: how long close() waits for pending sends. `tls`: True, or
    TlsSettings to verify the servers, or to show a certificate. `credentials`: sign all requests.
    `telemetry_directory`: write there how long each broker group acknowledged nothing, for analytics."""

    _topics: Collection[str] = ()
    """Topics whose routes are requested before the first message."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str = "DEFAULT_PRODUCER",
        *,
        client: RemotingClient | None = None,
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
        super().__init__()
        check_shared(client, credentials)
        check_int("in_flight_max", in_flight_max, least=1)
        check_int("compress_over_bytes", compress_over_bytes, optional=True)
        check_one_of("avoid_slow_brokers", avoid_slow_brokers, bool)
        check_text("instance_name", instance_name, optional=True)
        check_int("route_poll_interval_ms", route_poll_interval_ms, least=1)
        check_int("close_timeout_ms", close_timeout_ms)
        check_one_of("telemetry_directory", telemetry_directory, str, Path, optional=True)
        self.group, self._close_timeout_ms = check_group(group), close_timeout_ms
        self.client_id = make_client_id(instance_name)
        self._pushed = OperationTable()
        self._requests = Requests(self._pushed)
        self._own_client = client is None
        self._client = client or RemotingClient(
            self._pushed,
            on_closed=self._connection_lost,
            drop_silent_ms=ATTEMPT_TIMEOUT_MS,
            tls=tls,
            signer=optional_signer(credentials),
        )
        self._routes = RouteCache(self._client, namesrv_addr, on_change=self._route_changed)
        self._monitor = BrokerMonitor(self._client, self._routes, cuts_replaced=False)
        self._reader = QueueReader(self._client, self._monitor, group)
        faults = FaultTable() if avoid_slow_brokers else None
        gaps: SendGapLog | None = None
        if telemetry_directory is not None:
            program, cluster_of = f"{group}-{self.client_id}", self._routes.cluster_of
            gaps = SendGapLog(telemetry_directory, program=program, cluster_of=cluster_of)
        self._sender = Sender(self._client, self._routes, self._monitor, group, faults=faults, gaps=gaps)
        self._membership = Membership(
            self._client,
            self._monitor,
            data=self._heartbeat,
            addresses=lambda: self._routes.addresses(masters_only=True),
        )
        doubted, settled = self._monitor.routes_doubted, self._membership.all_know
        self._route_poll = RoutePoll(
            self._routes, doubted=doubted, settled=settled, poll_ms=route_poll_interval_ms, also=self._topics
        )
        self._background = TaskSet()
        self._hooks = Hooks(hooks, namesrv_addr, self._client.tls, credentials)
        self._compress_over_bytes = compress_over_bytes
        self._unique_keys, self._slots = unique_keys(), asyncio.Semaphore(in_flight_max)
        self._tasks: set[asyncio.Task[SendResult]] = set()
        self._introduced = False

    async def close(self) -> None:
        """Waits `close_timeout_ms` for pending sends. Each that is not acknowledged by then ends with a
        SendError: UNKNOWN if it may be stored, else CLOSED. Later sends are refused. May be called twice.
        If the caller is cancelled, the closing goes on in the background."""
        await super().close()

    async def _close(self) -> None:
        deadline_ms = now_ms() + self._close_timeout_ms
        if self._tasks:  # the sender does not know the newest ones yet
            await asyncio.wait(tuple(self._tasks), timeout=self._close_timeout_ms / 1_000)
        self._requests.close()
        await self._sender.close(deadline_ms - now_ms())
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._background.stop()
        await self._hooks.detach()
        await self._monitor.close()
        await self._membership.leave(producer_group=self.group)
        await self._routes.close()
        if self._own_client:
            await self._client.close()

    # -- sending -----------------------------------------------------------------------------------------

    async def send(
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
        self._check_open()  # before the hooks, which must not start after close()
        _check_send(message, timeout_ms)
        return await self._send(message, choice_of(queue, key), now_ms() + timeout_ms)

    async def _send(self, message: Message, choice: Choice, deadline_ms: int) -> SendResult:
        message = self._hooks.before_send(message)
        pending_send = self._pending_send(message, deadline_ms)
        await pending_send.compress(self._compress_over_bytes)
        return await self._deliver(pending_send, choice, (message,), (pending_send.unique_key,))

    async def send_async(
        self,
        message: Message,
        *,
        queue: Choice = None,
        key: str | None = None,
        timeout_ms: int = SEND_TIMEOUT_MS,
        callback: Callback | None = None,
    ) -> "asyncio.Task[SendResult]":
        """Starts a send and returns its task; waits only while `in_flight_max` sends are pending (timeout_ms
        does not include that wait). `callback`: gets the result or the SendError (UNKNOWN if the task is
        cancelled); the task then needs no awaiting. SendError: the producer is closed."""
        choice = choice_of(queue, key)
        _check_send(message, timeout_ms)
        check_callable("callback", callback, plain=True, optional=True)
        await self._slots.acquire()
        if self._is_closed:
            self._slots.release()
            self._check_open()
        task = asyncio.create_task(self._send(message, choice, now_ms() + timeout_ms))
        self._tasks.add(task)
        task.add_done_callback(partial(self._send_done, callback))
        return task

    async def send_oneway(self, message: Message, *, queue: Choice = None, key: str | None = None) -> None:
        """Makes one attempt without a response: fast, but the caller does not learn whether the message
        arrived. SendError: it was certainly not sent."""
        self._check_open()
        _check_send(message, SEND_TIMEOUT_MS)
        deadline_ms = now_ms() + SEND_TIMEOUT_MS
        pending_send = self._pending_send(self._hooks.before_send(message), deadline_ms)
        await pending_send.compress(self._compress_over_bytes)
        await self._sender.oneway(pending_send, choice_of(queue, key))
        self._introduce()

    async def send_batch(
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
        self._check_open()
        check_instances("messages", messages, Message)
        check_int("timeout_ms", timeout_ms, least=1)
        check_int("bytes_max", bytes_max, least=1)
        deadline_ms = now_ms() + timeout_ms
        messages = [self._hooks.before_send(message) for message in messages]
        topic, wait = one_batch(messages)
        keys = [next(self._unique_keys) for _ in messages]
        items = [
            Item(message.body, encode_properties(message, key), message.flag)
            for message, key in zip(messages, keys, strict=True)
        ]
        results: list[SendResult] = []
        for count, body in encode_batches(items, bytes_max=bytes_max):
            part = slice(len(results), len(results) + count)
            mine = keys[part]
            properties = encode_properties(Message(topic, b"", wait=wait), mine[0])
            pending_send = PendingSend(topic, body, 0, 0, properties, mine[0], deadline_ms, batch=True)
            try:
                result = await self._deliver(pending_send, choice_of(queue, key), messages[part], mine)
            except SendError as error:
                raise SendError(
                    error.kind, error.remark, error.attempts, error.msg_id, tuple(results)
                ) from None
            results += results_of_batch(result, mine)
        return results

    async def request(
        self,
        message: Message,
        *,
        queue: Choice = None,
        key: str | None = None,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> ReplyMessage:
        """Sends a message and returns its consumer's reply (PushConsumer.reply), within `timeout_ms` in all.
        NoReply: the message was sent, but no reply came. SendError: as send()."""
        self._check_open()
        if not self._own_client:
            raise ValueError("replies reach a producer over its own connections, not over a shared client's")
        _check_send(message, timeout_ms)
        deadline_ms = now_ms() + timeout_ms
        correlation_id = str(uuid.uuid4())
        properties = as_request(
            message, correlation_id=correlation_id, client_id=self.client_id, timeout_ms=timeout_ms
        )
        with self._requests.waiting(correlation_id) as answer:
            await self._become_known(message.topic, timeout_ms)
            self._check_open()
            sent = await self._send(
                replace(message, properties=properties), choice_of(queue, key), deadline_ms
            )
            await asyncio.wait((answer,), timeout=max(0, deadline_ms - now_ms()) / 1_000)
            if not answer.done():
                raise NoReply(f"no reply in {timeout_ms} ms", sent)
            reply = answer.result()
            if reply is None:
                raise NoReply("the producer was closed", sent)
            return reply

    async def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int = REPLY_TIMEOUT_MS,
    ) -> None:
        """Sends a reply, as PushConsumer.reply, for programs that consume by other means."""
        self._check_open()
        await send_reply(self._reader, self.group, request, body, properties, timeout_ms)

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Returns the writable queues, from a fresh route. RouteError."""
        return list((await self._routes.refresh(topic, borrow=True)).write_queues)

    # -- parts -------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        """SendError: the producer is closed. One that was never opened sends as well."""
        if self._is_closed:
            raise SendError(SendErrorKind.CLOSED, "the producer is closed", 0)

    def _pending_send(self, message: Message, deadline_ms: int) -> PendingSend:
        return pending(message, next(self._unique_keys), deadline_ms)

    async def _deliver(
        self,
        pending_send: PendingSend,
        choice: Choice,
        messages: Sequence[Message],
        keys: Sequence[str],
    ) -> SendResult:
        """`messages` and their `keys`: the content of the pending send, for the hooks."""
        result: SendResult | None = None
        if not self._hooks:
            result = await self._sender.deliver(pending_send, choice)
            self._introduce()
            return result
        started_ms, started_wall_ms = now_ms(), wall_ms()
        error: BaseException | None = None
        try:
            result = await self._sender.deliver(pending_send, choice)
            self._introduce()
            return result
        except (SendError, asyncio.CancelledError) as caught:
            error = caught
            raise
        finally:
            self._hooks.after_send(
                SendTrace(
                    self.group,
                    pending_send.topic,
                    pending_send.unique_key,
                    len(messages),
                    len(pending_send.body),
                    pending_send.last_broker,
                    started_wall_ms,
                    now_ms() - started_ms,
                    pending_send.attempts,
                    error,
                    sent=tuple(messages),
                    msg_ids=tuple(keys),
                    results=tuple(results_of_batch(result, keys)) if result is not None else (),
                    broker_addr=pending_send.last_address,
                )
            )

    def _send_done(self, callback: Callback | None, task: "asyncio.Task[SendResult]") -> None:
        self._tasks.discard(task)
        self._slots.release()
        if callback is None:
            return
        if task.cancelled():
            callback(SendError(SendErrorKind.UNKNOWN, "the send was cancelled", 0))
            return
        error = task.exception()
        if error is None:
            callback(task.result())
        elif isinstance(error, SendError):
            callback(error)
        else:
            is_unsent = isinstance(error, ValueError | TypeError)  # an invalid message
            kind = SendErrorKind.REFUSED if is_unsent else SendErrorKind.UNKNOWN
            callback(SendError(kind, f"{type(error).__name__}: {error}", 0))

    # -- registration -----------------------------------------------------------------------------------

    def _introduce(self) -> None:
        """Starts heartbeats with the first message: no broker needs to know a producer that never sends."""
        if not self._introduced and not self._is_closed:
            self._introduced = True
            self._background.start("producer's heartbeats", self._membership.run)
            self._background.start("producer's routes", self._route_poll.run)

    async def _become_known(self, topic: str, timeout_ms: int) -> None:
        """Sends heartbeats to the topic's masters, one of which will push the reply. Errors show in the send
        itself."""
        with contextlib.suppress(RouteError, TimeoutError):
            async with asyncio.timeout(timeout_ms / 1_000):
                route = await self._routes.find(topic, borrow=True)
                masters = {route.master(name) for name in route.addresses}
                await self._membership.tell({address for address in masters if address is not None})
        self._introduce()

    def _heartbeat(self) -> HeartbeatData:
        return HeartbeatData(clientID=self.client_id, producer_data_set=[ProducerData(group_name=self.group)])

    def _route_changed(self, route: TopicRoute) -> None:
        self._monitor.route_changed(route)
        self._membership.wake()

    def _connection_lost(self, address: str) -> None:
        self._monitor.connection_lost(address)


def _check_send(message: object, timeout_ms: object) -> None:
    check_one_of("message", message, Message)
    check_int("timeout_ms", timeout_ms, least=1)
