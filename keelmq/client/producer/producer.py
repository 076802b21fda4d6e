"""Producer: sends messages to the masters of a topic's queues and rides through a change of master.

How a message gets through a fail-over: client/delivery.py. An attempt that ended Unknown, or with a
replication or flush timeout, may be stored: the next one may duplicate it. SendResult.uncertain_attempts
counts these; all attempts of a message carry the same UNIQ_KEY.
"""

import asyncio
import contextlib
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self

from client.core.batches import BATCH_BYTES_MAX, Item, encode_batches
from client.core.queue_choice import FaultTable, queue_of_key
from client.core.queues import MessageQueue
from client.delivery import ATTEMPT_TIMEOUT_MS, Choice, Delivery
from client.hooks import ClientHook, Hooks, SendTrace
from client.membership import Membership, make_client_id
from client.message import (
    COMPRESSED_FLAG,
    HALF_FLAG,
    TRAN_MSG,
    ZLIB_LEVEL,
    Message,
    MessageExt,
    encode_properties,
    unique_keys,
)
from client.reading import QueueReader
from client.replies import (
    REPLY_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    NoReply,
    ReplyMessage,
    Requests,
    as_request,
    send_reply,
)
from client.route import ROUTE_POLL_MS, RouteCache, RouteError, TopicRoute
from client.route_poll import RoutePoll
from client.sending import Letter, SendError, SendErrorKind, SendResult, SendStatus
from remoting.client import RemotingClient
from remoting.clock import now_ms, wall_ms
from remoting.operation import OperationTable
from remoting.operations.clients import HeartbeatData, ProducerData
from remoting.tasks import TaskSet

__all__ = ["Producer", "SendError", "SendErrorKind", "SendResult", "SendStatus"]

SEND_TIMEOUT_MS = 3_000
IN_FLIGHT_MAX = 1_024
COMPRESS_OVER_BYTES = 4_096

Callback = Callable[[SendResult | SendError], None]


class Producer:
    """`async with Producer("host:9876;host:9877", "group") as producer: await producer.send(Message(...))`.

    `client`: a RemotingClient to share; without it the producer owns one and closes it. `in_flight_max`: of
    send_async. `compress_over_bytes` None: never. `avoid_slow_brokers`: leave brokers that answer slowly, or
    failed, out for some seconds (clients.md: sendLatencyFaultEnable). `instance_name`: instead of the process
    id in the client id. `route_poll_interval_ms`: an idle producer looks for new masters so often, and at
    once when it lost one.
    """

    _topics: Collection[str] = ()
    """Their routes are wanted before the first message."""

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
    ) -> None:
        self.group = group
        self.client_id = make_client_id(instance_name)
        self._pushed = OperationTable()
        self._requests = Requests(self._pushed)
        self._own_client = client is None
        self._client = client or RemotingClient(
            self._pushed, on_closed=self._connection_lost, drop_silent_ms=ATTEMPT_TIMEOUT_MS
        )
        self._routes = RouteCache(self._client, namesrv_addr, on_change=self._route_changed)
        self._reader = QueueReader(self._client, self._routes, group)
        faults = FaultTable() if avoid_slow_brokers else None
        self._delivery = Delivery(self._client, self._routes, group, faults=faults)
        self._membership = Membership(
            self._client,
            data=self._heartbeat,
            addresses=lambda: self._routes.addresses(masters_only=True),
            on_lost=self._master_lost,
        )
        self._route_poll = RoutePoll(
            self._routes,
            settled=self._membership.all_know,
            poll_ms=route_poll_interval_ms,
            also=self._topics,
        )
        self._background = TaskSet()
        self._introduced = False
        self._hooks = Hooks(hooks, namesrv_addr)
        self._compress_over_bytes = compress_over_bytes
        self._unique_keys: Iterator[str] = unique_keys()
        self._slots = asyncio.Semaphore(in_flight_max)
        self._tasks: set[asyncio.Task[SendResult]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Sends that are under way are cancelled: wait for them first if they matter. May be called twice."""
        if self._closed:
            return
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._requests.close()
        await self._background.stop()
        await self._hooks.detach()
        await self._delivery.close()
        await self._reader.close()
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
        """`queue`: to this one only, or to the one that a function picks of all queues. `key`: all messages
        of a key go to one queue, and keep their order there if each is sent after the one before it was
        acknowledged. SendError: the deadline passed, or a refusal that would repeat. ValueError: no message
        of the protocol."""
        self._check_open()  # before the hooks: they begin with the first message, and end with close()
        message = self._hooks.before_send(message)
        letter = self._letter(message, now_ms() + timeout_ms)
        return await self._deliver(letter, _choice(queue, key), timeout_ms, (message,), (letter.unique_key,))

    async def send_async(
        self,
        message: Message,
        *,
        queue: Choice = None,
        key: str | None = None,
        timeout_ms: int = SEND_TIMEOUT_MS,
        callback: Callback | None = None,
    ) -> "asyncio.Task[SendResult]":
        """Start a send; waits only while `in_flight_max` are under way (that wait is not in timeout_ms).
        `callback`: gets the result or the SendError; then nobody needs to look at the task."""
        await self._slots.acquire()
        task = asyncio.create_task(self.send(message, queue=queue, key=key, timeout_ms=timeout_ms))
        self._tasks.add(task)
        task.add_done_callback(partial(self._send_done, callback))
        return task

    async def send_oneway(self, message: Message, *, queue: Choice = None, key: str | None = None) -> None:
        """One attempt, without an answer: fast, and nobody learns whether it arrived. SendError: it surely
        did not leave."""
        self._check_open()
        letter = self._letter(self._hooks.before_send(message), now_ms() + SEND_TIMEOUT_MS)
        await self._delivery.oneway(letter, _choice(queue, key))
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
        """Messages of one topic in as few requests as `bytes_max` allows, one result for each message in
        order. A request is stored as a whole or not at all; SendError.sent has the results of the requests
        before the one that failed. ValueError: messages that cannot be in one batch."""
        self._check_open()
        messages = [self._hooks.before_send(message) for message in messages]
        topic, wait = _one_batch(messages)
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
            letter = Letter(
                topic, body, 0, 0, properties, mine[0], now_ms() + timeout_ms, batch=True
            )  # every request has the whole time
            try:
                result = await self._deliver(letter, _choice(queue, key), timeout_ms, messages[part], mine)
            except SendError as error:
                raise SendError(
                    error.kind, error.remark, error.attempts, error.msg_id, tuple(results)
                ) from None
            results += _results_of_batch(result, mine)
        return results

    async def request(
        self,
        message: Message,
        *,
        queue: Choice = None,
        key: str | None = None,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> ReplyMessage:
        """Send it, and wait for the reply of whoever consumes it (PushConsumer.reply), `timeout_ms` in all.
        NoReply: it was sent. SendError: as send()."""
        self._check_open()
        if not self._own_client:
            raise ValueError("replies reach a producer over its own connections, not over a shared client's")
        deadline_ms = now_ms() + timeout_ms
        correlation_id = str(uuid.uuid4())
        properties = as_request(
            message, correlation_id=correlation_id, client_id=self.client_id, timeout_ms=timeout_ms
        )
        with self._requests.waiting(correlation_id) as answer:
            await self._become_known(message.topic, timeout_ms)
            left_ms = max(1, deadline_ms - now_ms())
            sent = await self.send(
                replace(message, properties=properties), queue=queue, key=key, timeout_ms=left_ms
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
        """As PushConsumer.reply, for who consumes with something else."""
        self._check_open()
        await send_reply(self._reader, self.group, request, body, properties, timeout_ms)

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """The queues that can be written now, asked from the name server. RouteError."""
        return list((await self._routes.refresh(topic, borrow=True)).write_queues)

    # -- parts -------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise SendError(SendErrorKind.CLOSED, "the producer is closed", 0)

    def _letter(self, message: Message, deadline_ms: int) -> Letter:
        unique_key = next(self._unique_keys)
        body, sys_flag = message.body, 0
        if self._compress_over_bytes is not None and len(body) >= self._compress_over_bytes:
            body, sys_flag = zlib.compress(body, ZLIB_LEVEL), COMPRESSED_FLAG
        if message.properties.get(TRAN_MSG) == "true":
            sys_flag |= HALF_FLAG
        properties = encode_properties(message, unique_key)
        return Letter(message.topic, body, sys_flag, message.flag, properties, unique_key, deadline_ms)

    async def _deliver(
        self,
        letter: Letter,
        choice: Choice,
        timeout_ms: int,
        messages: Sequence[Message],
        keys: Sequence[str],
    ) -> SendResult:
        """`messages` and their `keys`: what the letter is made of, for the hooks."""
        self._check_open()
        result: SendResult | None = None
        if not self._hooks:
            result = await self._delivery.deliver(letter, choice, timeout_ms)
            self._introduce()
            return result
        started_ms, started_wall_ms = now_ms(), wall_ms()
        error: BaseException | None = None
        try:
            result = await self._delivery.deliver(letter, choice, timeout_ms)
            self._introduce()
            return result
        except (SendError, asyncio.CancelledError) as caught:
            error = caught
            raise
        finally:
            self._hooks.after_send(
                SendTrace(
                    self.group,
                    letter.topic,
                    letter.unique_key,
                    len(messages),
                    len(letter.body),
                    letter.last_broker,
                    started_wall_ms,
                    now_ms() - started_ms,
                    letter.attempts,
                    error,
                    sent=tuple(messages),
                    msg_ids=tuple(keys),
                    results=tuple(_results_of_batch(result, keys)) if result is not None else (),
                    broker_addr=letter.last_address,
                )
            )

    def _send_done(self, callback: Callback | None, task: "asyncio.Task[SendResult]") -> None:
        self._tasks.discard(task)
        self._slots.release()
        if callback is None or task.cancelled():
            return
        error = task.exception()
        if error is None:
            callback(task.result())
        elif isinstance(error, SendError):
            callback(error)
        else:
            raise error  # an illegal message: the loop's exception handler reports it

    # -- who we are --------------------------------------------------------------------------------------

    def _introduce(self) -> None:
        """Heartbeats begin with the first message: a producer that never sends is nobody's business."""
        if not self._introduced and not self._closed:
            self._introduced = True
            self._background.start("producer's heartbeats", self._membership.run)
            self._background.start("producer's routes", self._route_poll.run)

    async def _become_known(self, topic: str, timeout_ms: int) -> None:
        """To the masters of this topic: the reply comes from one of them. Sending tells what is wrong."""
        with contextlib.suppress(RouteError, TimeoutError):
            async with asyncio.timeout(timeout_ms / 1_000):
                route = await self._routes.find(topic, borrow=True)
                masters = {route.master(name) for name in route.addresses}
                await self._membership.tell({address for address in masters if address is not None})
        self._introduce()

    def _heartbeat(self) -> HeartbeatData:
        return HeartbeatData(clientID=self.client_id, producer_data_set=[ProducerData(group_name=self.group)])

    def _route_changed(self, _: TopicRoute) -> None:
        self._membership.wake()

    def _connection_lost(self, address: str) -> None:
        self._membership.lost(address)

    def _master_lost(self) -> None:
        self._route_poll.wake()


def _choice(queue: Choice, key: str | None) -> Choice:
    if queue is not None and key is not None:
        raise ValueError("a message goes to a queue or by a key, not both")
    return partial(queue_of_key, key=key) if key is not None else queue


def _one_batch(messages: Sequence[Message]) -> tuple[str, bool]:
    """The topic and the WAIT that they share; ValueError."""
    if not messages:
        raise ValueError("an empty batch")
    topics, waits = {message.topic for message in messages}, {message.wait for message in messages}
    if len(topics) > 1 or len(waits) > 1:
        raise ValueError(f"a batch has one topic and one `wait`, these have {sorted(topics)} and {waits}")
    (topic,) = topics
    if topic.startswith("%RETRY%") or any(message.delay_level for message in messages):
        raise ValueError("a batch is neither delayed nor for a retry topic: send those one by one")
    return topic, waits.pop()


def _results_of_batch(whole: SendResult, keys: Sequence[str]) -> list[SendResult]:
    """The broker names the first queue offset, and all ids with commas between them; or one for all, of a
    batch that is one record (queue.type=BatchCQ)."""
    ids = whole.offset_msg_id.split(",")
    ids += [ids[0] if len(ids) == 1 else ""] * (len(keys) - len(ids))
    return [
        replace(whole, msg_id=key, offset_msg_id=ids[index], queue_offset=whole.queue_offset + index)
        for index, key in enumerate(keys)
    ]
