"""Producer: sends messages to the masters of a topic's queues and rides through a change of master.

A failed attempt (connection lost, no master yet, a code of RETRY_CODES) refreshes the route at once and the
message is sent again, until its deadline. While the sends of a topic fail, one message at a time probes the
cluster and the others wait for its success: a fail-over costs a few dozen requests, not thousands, on the
very machines that elect.

An attempt that ended Unknown, or with a replication or flush timeout, may be stored: the next one may
duplicate it. SendResult.uncertain_attempts counts these; all attempts of a message carry the same UNIQ_KEY.
"""

import asyncio
import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import TracebackType
from typing import Self

from client.message import COMPRESSED_FLAG, ZLIB_LEVEL, Message, encode_properties, unique_keys
from client.route import MessageQueue, RouteCache, RouteError
from remoting.client import RemotingClient
from remoting.clock import now_ms, wall_ms
from remoting.codes import ResponseCode
from remoting.operation import Failed, Ok, Unknown
from remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2

SEND_TIMEOUT_MS = 3_000
ATTEMPT_TIMEOUT_MS = 3_000
IN_FLIGHT_MAX = 1_024
SILENT_MS = 500
"""So long an answer is out until the route is asked again: the broker may hang, and be master no more."""
WATCH_MS = 100
RETRY_PAUSE_MIN_MS = 5
RETRY_PAUSE_MAX_MS = 20
COMPRESS_OVER_BYTES = 4_096

RETRY_CODES = frozenset(
    {
        ResponseCode.RPC_SEND_TO_CHANNEL_FAILED,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
STORED_CODES = frozenset(
    {ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT}
)
"""The master has the message, but the flush or replication came not in time: neither yes nor no."""


class SendStatus(IntEnum):
    """Only what is promised is a result: codes 10, 11 and 12 are retried, and in the end a SendError."""

    SEND_OK = 0


@dataclass(frozen=True, slots=True)
class SendResult:
    """`msg_id`: the UNIQ_KEY; `offset_msg_id`: the broker's. `attempts`: requests tried for this message;
    `uncertain_attempts`: those of them that may have stored another copy."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    attempts: int
    uncertain_attempts: int


class SendErrorKind(Enum):
    NO_ROUTE = (
        "no route"  # surely not stored: no name server answered, or none knows the topic or a master of it
    )
    REFUSED = "refused"  # surely not stored: a broker said no, or no broker could be reached
    UNKNOWN = "unknown"  # at least one attempt may be stored
    CLOSED = "closed"  # surely not stored: the producer was closed


class SendError(Exception):
    def __init__(self, kind: SendErrorKind, remark: str, attempts: int, msg_id: str = "") -> None:
        super().__init__(f"{kind.value} after {attempts} attempts: {remark}")
        self.kind, self.remark, self.attempts, self.msg_id = kind, remark, attempts, msg_id


@dataclass(slots=True)
class _Letter:
    """One message on its way, over all its attempts."""

    topic: str
    body: bytes
    sys_flag: int
    flag: int
    properties: str
    unique_key: str
    deadline_ms: int
    attempts: int = 0
    uncertain: int = 0
    in_doubt: bool = False  # an attempt is out and unanswered
    last_broker: str = ""
    problem: SendErrorKind = SendErrorKind.NO_ROUTE
    remark: str = "no attempt was made"

    def fail(self, kind: SendErrorKind, remark: str) -> None:
        self.problem, self.remark = kind, remark

    def error(self) -> SendError:
        uncertain = self.uncertain + self.in_doubt
        kind = SendErrorKind.UNKNOWN if uncertain else self.problem
        return SendError(kind, self.remark, self.attempts, self.unique_key)


@dataclass(slots=True)
class _Recovery:
    """Per topic. While `failing`, an attempt needs `probe`: so there is one at a time."""

    failing: bool = False
    probe: asyncio.Lock = field(default_factory=asyncio.Lock)
    pause_ms: int = 0
    next_queue: int = 0

    def failed(self) -> None:
        self.failing = True

    def succeeded(self) -> None:
        self.failing, self.pause_ms = False, 0

    def next_pause_ms(self) -> int:
        """0 first: the route is asked at once."""
        pause_ms = self.pause_ms
        self.pause_ms = min(max(2 * pause_ms, RETRY_PAUSE_MIN_MS), RETRY_PAUSE_MAX_MS)
        return pause_ms


class Producer:
    """`async with Producer("host:9876;host:9877", "group") as producer: await producer.send(Message(...))`.

    `client`: a RemotingClient to share; without it the producer owns one and closes it.
    """

    def __init__(
        self,
        namesrv_addr: str,
        group: str = "DEFAULT_PRODUCER",
        *,
        client: RemotingClient | None = None,
        in_flight_max: int = IN_FLIGHT_MAX,
        compress_over_bytes: int | None = COMPRESS_OVER_BYTES,
    ) -> None:
        self._group = group
        self._own_client = client is None
        self._client = client or RemotingClient(drop_silent_ms=ATTEMPT_TIMEOUT_MS)
        self._routes = RouteCache(self._client, namesrv_addr)
        self._compress_over_bytes = compress_over_bytes
        self._unique_keys: Iterator[str] = unique_keys()
        self._recoveries: dict[str, _Recovery] = {}
        self._slots = asyncio.Semaphore(in_flight_max)
        self._tasks: set[asyncio.Task[SendResult]] = set()
        self._waiting: dict[int, tuple[int, str, str, str]] = {}  # since when, topic, broker name, address
        self._watcher: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Sends that are under way are cancelled: wait for them first if they matter."""
        self._closed = True
        tasks = [*self._tasks, *([self._watcher] if self._watcher is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._routes.close()
        if self._own_client:
            await self._client.close()

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int = SEND_TIMEOUT_MS
    ) -> SendResult:
        """`queue`: send to this one only. SendError: the deadline passed, or a refusal that would repeat."""
        if self._closed:
            raise SendError(SendErrorKind.CLOSED, "the producer is closed", 0)
        letter = self._letter(message, now_ms() + timeout_ms)
        recovery = self._recoveries.setdefault(message.topic, _Recovery())
        try:
            async with asyncio.timeout(timeout_ms / 1_000):
                return await self._deliver(letter, recovery, queue)
        except TimeoutError:
            raise letter.error() from None

    async def send_async(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int = SEND_TIMEOUT_MS
    ) -> "asyncio.Task[SendResult]":
        """Start a send; waits only while `in_flight_max` are under way (that wait is not in timeout_ms)."""
        await self._slots.acquire()
        task = asyncio.create_task(self.send(message, queue=queue, timeout_ms=timeout_ms))
        self._tasks.add(task)
        task.add_done_callback(self._send_done)
        return task

    def _send_done(self, task: "asyncio.Task[SendResult]") -> None:
        self._tasks.discard(task)
        self._slots.release()

    def _letter(self, message: Message, deadline_ms: int) -> _Letter:
        unique_key = next(self._unique_keys)
        body, sys_flag = message.body, 0
        if self._compress_over_bytes is not None and len(body) >= self._compress_over_bytes:
            body, sys_flag = zlib.compress(body, ZLIB_LEVEL), COMPRESSED_FLAG
        properties = encode_properties(message, unique_key)
        return _Letter(message.topic, body, sys_flag, message.flag, properties, unique_key, deadline_ms)

    async def _deliver(self, letter: _Letter, recovery: _Recovery, queue: MessageQueue | None) -> SendResult:
        """Attempts until one is acknowledged; the caller's timeout ends it."""
        while True:
            if not recovery.failing:
                result = await self._attempt(letter, recovery, queue)
            else:
                async with recovery.probe:
                    if not recovery.failing:
                        continue  # somebody else's probe succeeded while this one waited
                    await asyncio.sleep(recovery.next_pause_ms() / 1_000)
                    await self._refresh(letter)
                    result = await self._attempt(letter, recovery, queue)
            if result is not None:
                return result

    async def _refresh(self, letter: _Letter) -> None:
        try:
            await self._routes.refresh(letter.topic, borrow=True, rotate=True)
        except RouteError as error:
            letter.fail(SendErrorKind.NO_ROUTE, error.remark)

    async def _attempt(
        self, letter: _Letter, recovery: _Recovery, wanted: MessageQueue | None
    ) -> SendResult | None:
        """None: failed in a way that another attempt may mend; letter.remark says how."""
        try:
            route = await self._routes.find(letter.topic, borrow=True)
        except RouteError as error:
            letter.fail(SendErrorKind.NO_ROUTE, error.remark)
            recovery.failed()
            return None
        queue = wanted or _choose(route.write_queues, recovery, letter.last_broker)
        address = route.master(queue.broker_name) if queue else None
        if queue is None or address is None:
            letter.fail(SendErrorKind.NO_ROUTE, f"no broker of topic {letter.topic} has a master now")
            recovery.failed()
            return None
        return await self._request(letter, recovery, queue, address)

    async def _request(
        self, letter: _Letter, recovery: _Recovery, queue: MessageQueue, address: str
    ) -> SendResult | None:
        header = SendMessageRequestV2(  # one-letter names: the wire's own
            a=self._group,
            b=letter.topic,
            e=queue.queue_id,
            f=letter.sys_flag,
            g=wall_ms(),
            h=letter.flag,
            i=letter.properties,
            n=queue.broker_name,
        )
        letter.attempts += 1
        letter.last_broker = queue.broker_name
        letter.in_doubt = True
        timeout_ms = max(1, min(ATTEMPT_TIMEOUT_MS, letter.deadline_ms - now_ms()))
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch(), name="producer's watch for hung masters")
        self._waiting[id(letter)] = (now_ms(), letter.topic, queue.broker_name, address)
        try:
            outcome = await self._client.call(
                address, SEND_MESSAGE_V2, header, letter.body, timeout_ms=timeout_ms
            )
        finally:
            del self._waiting[id(letter)]
        letter.in_doubt = False
        match outcome:
            case Ok(header=answer):
                recovery.succeeded()
                if answer.master_address is not None:
                    self._routes.refresh_soon(letter.topic)
                return SendResult(
                    status=SendStatus.SEND_OK,
                    msg_id=letter.unique_key,
                    offset_msg_id=answer.msg_id,
                    topic=letter.topic,
                    broker_name=queue.broker_name,
                    queue_id=answer.queue_id,
                    queue_offset=answer.queue_offset,
                    attempts=letter.attempts,
                    uncertain_attempts=letter.uncertain,
                )
            case Failed(code=code, remark=remark):
                letter.uncertain += code in STORED_CODES
                letter.fail(SendErrorKind.REFUSED, f"{address} answered {code} {remark}".rstrip())
                if code not in RETRY_CODES:
                    raise letter.error()
            case Unknown(remark=remark):
                letter.uncertain += 1
                letter.fail(SendErrorKind.UNKNOWN, f"{address}: {remark}")
        recovery.failed()
        return None

    async def _watch(self) -> None:
        """A master that hangs keeps its connections: who waits for it goes on as soon as there is another."""
        while True:
            await asyncio.sleep(WATCH_MS / 1_000)
            oldest = next(iter(self._waiting.values()), None)
            if oldest is None or now_ms() - oldest[0] < SILENT_MS:
                continue
            _, topic, broker_name, address = oldest
            with contextlib.suppress(RouteError):
                route = await self._routes.refresh(topic, borrow=True)
                if route.master(broker_name) not in (None, address):
                    self._client.drop(address)


def _choose(queues: tuple[MessageQueue, ...], recovery: _Recovery, last_broker: str) -> MessageQueue | None:
    """Round robin; a message that failed at one broker goes to another one if there is another one."""
    if not queues:
        return None
    for _ in queues:
        queue = queues[recovery.next_queue % len(queues)]
        recovery.next_queue += 1
        if queue.broker_name != last_broker:
            break
    return queue
