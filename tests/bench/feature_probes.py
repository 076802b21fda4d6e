"""Timers, transactions and pops that go on during a fail-over, for tests/bench/full_load_features.py.

Each probe sends RATE messages a second with a key of its own as the body, to a topic with one queue, and
keeps what was acknowledged, what arrived, and what the broker answered. The store host of what arrived tells
which broker wrote it: a message that the new master wrote was due, checked or revived there.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, Final, NamedTuple, Self

from broker.pop.core.handles import NORMAL, Handle
from keelmq.client import Message, MessageQueue, Producer, PullConsumer, PullError, SendError
from keelmq.client.message import MessageExt, decode_messages
from keelmq.client.producer.transaction import Transaction, TransactionProducer, TransactionState
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.pop import ACK_MESSAGE, POP_MESSAGE, AckMessageRequest, PopMessageRequest
from keelmq.runtime.clock import wall_ms
from tests.bench.switch import Group

RATE: Final = 50
"""Timers, transactions and messages to pop a second, each."""
TIMER_DELAY_MS: Final = 1_000
DECIDED_AFTER_S: Final = 0.5
"""From the acknowledgement of a half message, or of a pop, to the producer's commit or the consumer's ack."""
IMMUNITY_S: Final = "30"
"""s; a transaction that its producer commits is not checked before: on a busy machine the check would be
first."""
INVISIBLE_MS: Final = 1_000
SUSPEND_MS: Final = 1_000
PULL_MAX: Final = 32
ATTEMPT_MS: Final = 1_000
AFTER_ERROR_S: Final = 0.01
_POP_CODES: Final = (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT)
SETTINGS: Final = {
    "timerPrecisionMs": "100",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
}
"""Of the brokers: with the defaults, half messages are checked after 6 s and timers are due in whole seconds,
and a gap would mostly be that."""


class Arrived(NamedTuple):
    """at: monotonic seconds. repeated: it had been delivered to the consumer before."""

    at: float
    key: str
    store_host: str
    repeated: bool = False


class Answered(NamedTuple):
    """A request that the broker answered with success: what it is about began, it was sent, it was answered;
    monotonic seconds."""

    begun: float
    asked: float
    answered: float


def first_of_new_master(arrived: Sequence[Arrived], killed: float, old_host: str) -> float | None:
    """Returns when the first message that another broker wrote arrived; None: none has yet."""
    return min(
        (each.at for each in arrived if each.at >= killed and each.store_host != old_host), default=None
    )


def first_answer(answers: Sequence[Answered], killed: float) -> float | None:
    """Returns when the first request that was sent after the kill, about what began before it, was answered;
    None: none was yet."""
    return min((each.answered for each in answers if each.begun < killed <= each.asked), default=None)


def start_offset(infos: str, queue_id: int) -> int:
    """Returns the offset of the checkpoint in the queue of the popped topic, of a pop's startOffsetInfo.
    ValueError: it has none."""
    for info in filter(None, infos.split(";")):
        flag, queue, offset = info.split(" ")
        if flag == NORMAL and int(queue) == queue_id:
            return int(offset)
    raise ValueError(f"startOffsetInfo {infos!r} has no queue {queue_id}")


def number_of(key: str) -> int:
    """Returns the number of a probe's message."""
    return int(key.rpartition("-")[2])


class Probe(ABC):
    """`async with`: runs until the end of the block, or until stop() ends its sends."""

    topic: str

    def __init__(self, namesrv_addr: str) -> None:
        self.namesrv_addr = namesrv_addr
        self.sent: set[str] = set()
        self.arrived: list[Arrived] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0

    @abstractmethod
    async def _send(self, key: str) -> None:
        """Sends one message, and adds the key to `sent` when it is acknowledged. SendError."""

    @abstractmethod
    async def receive(self) -> None:
        """Receives for ever."""

    @abstractmethod
    async def _close(self) -> None:
        """Closes the clients."""

    @property
    def missing(self) -> set[str]:
        """Keys that were acknowledged, and have not arrived."""
        return self.sent - {each.key for each in self.arrived}

    async def __aenter__(self) -> Self:
        self.receiver = asyncio.create_task(self.receive())
        self._feed = asyncio.create_task(self._send_all())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._feed.cancel()
        self.receiver.cancel()
        await asyncio.gather(self._feed, self.receiver, *self._tasks, return_exceptions=True)
        await self._close()

    def stop(self) -> None:
        """Sends nothing new; what is sent still arrives. Raises the error of a task that has failed."""
        self._feed.cancel()
        self.check()

    def check(self) -> None:
        """Raises the error that has ended a task of the probe."""
        for task in (self.receiver, self._feed):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _send_all(self) -> None:
        due = time.monotonic()
        while True:
            self._start(self._send_one(f"{self.topic}-{self._number}"))
            self._number += 1
            due += 1 / RATE
            await asyncio.sleep(max(due - time.monotonic(), 0))

    async def _send_one(self, key: str) -> None:
        try:
            await self._send(key)
        except SendError:
            return  # not acknowledged: it may arrive or not

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _PulledProbe(Probe):
    """A probe whose messages arrive in the one queue of its topic."""

    def __init__(self, namesrv_addr: str) -> None:
        super().__init__(namesrv_addr)
        self._consumer = PullConsumer(namesrv_addr, f"{self.topic}-group")

    async def receive(self) -> None:
        (queue,), offset = await self._consumer.fetch_queues(self.topic), 0
        while True:
            try:
                pulled = await self._consumer.pull(queue, offset, PULL_MAX, suspend_ms=SUSPEND_MS)
            except PullError:
                await asyncio.sleep(AFTER_ERROR_S)
                continue
            at = time.monotonic()
            self.arrived += [Arrived(at, each.body.decode(), each.store_host) for each in pulled.messages]
            offset = pulled.next_begin_offset

    async def _close(self) -> None:
        await self._consumer.close()


class Timers(_PulledProbe):
    """Messages that are due TIMER_DELAY_MS after they were sent."""

    topic = "KeelBenchTimers"

    def __init__(self, namesrv_addr: str) -> None:
        super().__init__(namesrv_addr)
        self._producer = Producer(namesrv_addr, "keelmq-bench-timers")

    async def _send(self, key: str) -> None:
        delay = {"TIMER_DELAY_MS": str(TIMER_DELAY_MS)}
        await self._producer.send(Message(self.topic, key.encode(), properties=delay))
        self.sent.add(key)

    async def _close(self) -> None:
        await super()._close()
        await self._producer.close()


class Transactions(_PulledProbe):
    """Of two transactions the producer commits one after DECIDED_AFTER_S, and waits to be checked for the
    other one. answers: of the commits."""

    topic = "KeelBenchTransactions"

    def __init__(self, namesrv_addr: str) -> None:
        super().__init__(namesrv_addr)
        self._producer = TransactionProducer(
            namesrv_addr, "keelmq-bench-transactions", self._check, topics=[self.topic]
        )
        self.answers: list[Answered] = []
        self.checked: set[str] = set()

    async def __aenter__(self) -> Self:
        await self._producer.__aenter__()
        return await super().__aenter__()

    async def _check(self, message: MessageExt) -> TransactionState:
        self.checked.add(message.body.decode())
        return TransactionState.COMMIT

    async def _send(self, key: str) -> None:
        begun, is_decided = time.monotonic(), number_of(key) % 2
        properties = {"CHECK_IMMUNITY_TIME_IN_SECONDS": IMMUNITY_S} if is_decided else {}
        transaction = await self._producer.begin(Message(self.topic, key.encode(), properties=properties))
        self.sent.add(key)
        if is_decided:
            self._start(self._commit(transaction, begun))

    async def _commit(self, transaction: Transaction, begun: float) -> None:
        await asyncio.sleep(DECIDED_AFTER_S)
        asked = time.monotonic()
        if await transaction.commit():
            self.answers.append(Answered(begun, asked, time.monotonic()))

    @property
    def of_checks(self) -> list[Arrived]:
        """What arrived because the producer was checked."""
        return [each for each in self.arrived if each.key in self.checked]

    async def _close(self) -> None:
        await super()._close()
        await self._producer.close()


class Pops(Probe):
    """Of three messages that are popped for the first time one is acknowledged at once, one after
    DECIDED_AFTER_S, and one never: it comes again after INVISIBLE_MS, and is acknowledged then. answers: of
    the acknowledgements; begun: the pop was answered."""

    topic, group = "KeelBenchPops", "keelmq-bench-pops"

    def __init__(self, namesrv_addr: str, cluster: Group) -> None:
        super().__init__(namesrv_addr)
        self._cluster = cluster
        self._producer = Producer(namesrv_addr, "keelmq-bench-pops")
        self._client = RemotingClient()
        self._consumer = PullConsumer(namesrv_addr, self.group)
        self._master = ""
        self.answers: list[Answered] = []
        self.acked: set[str] = set()

    @property
    def missing(self) -> set[str]:
        """Keys that were acknowledged to the producer, and not popped and acknowledged by the consumer."""
        return self.sent - self.acked

    async def _send(self, key: str) -> None:
        await self._producer.send(Message(self.topic, key.encode()))
        self.sent.add(key)

    async def receive(self) -> None:
        (queue,) = await self._consumer.fetch_queues(self.topic)
        while True:
            address = self._master or await self._find_master()
            header = PopMessageRequest(
                consumer_group=self.group,
                topic=self.topic,
                queue_id=-1,
                max_msg_nums=PULL_MAX,
                invisible_time=INVISIBLE_MS,
                poll_time=SUSPEND_MS,
                born_time=wall_ms(),
            )
            outcome = await self._client.call(
                address, POP_MESSAGE, header, timeout_ms=SUSPEND_MS + ATTEMPT_MS, good=_POP_CODES
            )
            if not isinstance(outcome, Ok):
                self._master = ""
                await asyncio.sleep(AFTER_ERROR_S)
                continue
            at = time.monotonic()
            for message in decode_messages(bytes(outcome.body or b"")):
                self._popped(message, self._handle(message, outcome.header, queue), at)

    async def _find_master(self) -> str:
        """Returns the address of the master that the name servers or its replicas name; "" while there is
        none."""
        name = (await self._cluster.look()).master
        self._master = next(
            (each.address for each in self._cluster.cluster.brokers if each.name == name),
            self._cluster.cluster.brokers[0].address,
        )
        return self._master

    def _handle(self, message: MessageExt, header: Any, queue: MessageQueue) -> str:
        """Returns the receipt handle, which a message that comes again has in a property."""
        own = message.properties.get("POP_CK")
        if own is not None:
            return own
        return Handle(
            start_offset(header.start_offset_info or "", message.queue_id), header.pop_time,
            header.invisible_time, header.revive_qid, NORMAL, queue.broker_name, message.queue_id,
            message.queue_offset,
        ).text()  # fmt: skip

    def _popped(self, message: MessageExt, handle: str, at: float) -> None:
        key = message.body.decode()
        again = message.reconsume_times > 0
        self.arrived.append(Arrived(at, key, message.store_host, again))
        turn = 0 if again else number_of(key) % 3
        if turn < 2:
            self._start(self._ack(key, handle, message, at, DECIDED_AFTER_S * turn))

    async def _ack(self, key: str, handle: str, message: MessageExt, popped: float, after_s: float) -> None:
        await asyncio.sleep(after_s)
        asked = time.monotonic()
        header = AckMessageRequest(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=message.queue_id,
            extra_info=handle,
            offset=message.queue_offset,
        )
        while not isinstance(
            await self._client.call(self._master or await self._find_master(), ACK_MESSAGE, header), Ok
        ):
            await asyncio.sleep(AFTER_ERROR_S)
            await self._find_master()
        self.acked.add(key)
        self.answers.append(Answered(popped, asked, time.monotonic()))

    @property
    def of_revivals(self) -> list[Arrived]:
        """What arrived again."""
        return [each for each in self.arrived if each.repeated]

    async def _close(self) -> None:
        await self._consumer.close()
        await self._producer.close()
        await self._client.close()
