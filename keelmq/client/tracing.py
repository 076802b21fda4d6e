"""TraceHook: writes RocketMQ's message trace, which `mqadmin queryMsgTraceById` reads.

    async with Producer("127.0.0.1:9876", hooks=[TraceHook()]) as producer: ...

Clients without this hook write no trace. Sends, consumed messages, commits and rollbacks become records in
the trace topic (keelmq/client/core/traces.py), written by a separate producer in the background. A trace
never fails or delays a message: at most `records_max` records wait, later ones are dropped and counted. A
trace message that is not acknowledged in five seconds is dropped, and the next one waits for a while. When
the client closes, the remaining records are sent, for at most `flush_timeout_ms`.
"""

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from keelmq.client.consumer.consume_message_service import ReconsumeLater
from keelmq.client.core.send_result import SendError
from keelmq.client.core.traces import (
    DEFAULT_REGION,
    ContextCode,
    MsgType,
    TraceBuffer,
    TraceRecord,
    end_transaction,
    pub,
    sub_after,
    sub_before,
)
from keelmq.client.hooks import ClientHook, ConsumeTrace, SendTrace, TransactionTrace
from keelmq.client.message import (
    DELAY,
    KEYS,
    TAGS,
    TIMER_PROPERTIES,
    TRAN_MSG,
    Message,
    MessageExt,
    index_keys,
)
from keelmq.client.producer.producer import Producer
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.tasks import TaskSet, wait_for_event
from keelmq.security.signer import Credentials

logger = logging.getLogger(__name__)

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
PRODUCER_GROUP: Final = "_INNER_TRACE_PRODUCER"
RECORDS_MAX: Final = 20_000
"""About 6 MB of text."""
LINGER_MS: Final = 500
FLUSH_TIMEOUT_MS: Final = 2_000
SEND_TIMEOUT_MS: Final = 5_000
AGAIN: Final = Backoff(first_ms=2_000, max_ms=60_000)
"""The pause after a trace message that was not acknowledged, so that a cluster without the trace topic does
not get endless route requests."""
CALLS_MAX: Final = 4_096
"""Listener calls whose end the hook has not seen. Only cancelled calls can exceed the number of concurrent
ones."""
TOLD_EVERY_MS: Final = 60_000
DELAYS: Final = (DELAY, "__STARTDELIVERTIME", *TIMER_PROPERTIES)


class TraceHook(ClientHook):
    """Traces all clients of one cluster in one event loop. `topic`: the trace topic; brokers create it with
    traceTopicEnable, or with autoCreateTopicEnable at the first record. `credentials`: sign
    the records; None: those of the first client."""

    def __init__(
        self,
        *,
        topic: str = TRACE_TOPIC,
        records_max: int = RECORDS_MAX,
        linger_ms: int = LINGER_MS,
        flush_timeout_ms: int = FLUSH_TIMEOUT_MS,
        credentials: Credentials | None = None,
    ) -> None:
        self.topic = topic
        self._credentials = credentials
        self.sent = self.failed = 0
        """Records that are stored, and records that were not acknowledged."""
        self._buffer, self._sending = (
            TraceBuffer(records_max),
            0,
        )  # _sending: records of the message under way
        self._linger_ms, self._flush_timeout_ms = linger_ms, flush_timeout_ms
        self._namesrv_addr = ""
        self._clients = 0
        self._calls: dict[int, str] = {}
        self._producer: Producer | None = None
        self._tasks = TaskSet()
        self._hurry, self._ending, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._told_ms: int | None = None

    @property
    def dropped(self) -> int:
        """Returns the number of records that were dropped because the buffer was full."""
        return self._buffer.dropped

    @property
    def waiting(self) -> int:
        """Returns the number of records that are not sent yet."""
        return len(self._buffer)

    @property
    def is_open(self) -> bool:
        """Returns whether it has a producer: from the first record to the close of the last client."""
        return self._producer is not None

    # -- events -----------------------------------------------------------------------------------------

    def use_credentials(self, credentials: Credentials) -> None:
        """The records are signed as the messages of the first client are, unless the hook has its own."""
        self._credentials = self._credentials or credentials

    def attached(self, namesrv_addr: str) -> None:
        """Counts the client. ValueError: it belongs to another cluster."""
        if self._clients and namesrv_addr != self._namesrv_addr:
            raise ValueError(
                f"a TraceHook serves one cluster: this one serves {self._namesrv_addr}, not {namesrv_addr}"
            )
        self._namesrv_addr = namesrv_addr
        self._clients += 1

    async def detached(self) -> None:
        """Sends the remaining records after the last client, for at most flush_timeout_ms."""
        self._clients -= 1
        if self._clients or self._producer is None:
            return
        self._ending.set()
        self._hurry.set()
        left = 0
        if not await wait_for_event(self._ended, self._flush_timeout_ms):
            left = len(self._buffer) + self._sending
        if left:
            logger.warning("%d trace records were not sent in time", left)
        await self._tasks.stop()
        producer, self._producer = self._producer, None
        await producer.close()

    def after_send(self, trace: SendTrace) -> None:
        """Adds a Pub record for each message, unless the broker switched traces off."""
        if trace.topic.startswith(self.topic) or not all(result.trace_on for result in trace.results):
            return
        region = trace.results[0].region_id if trace.results else DEFAULT_REGION
        offsets = [result.offset_msg_id for result in trace.results] or [""] * len(trace.sent)
        self._add(
            pub(
                time_ms=trace.started_wall_ms,
                region=region,
                group=trace.group,
                topic=trace.topic,
                msg_id=msg_id,
                tags=message.tags or message.properties.get(TAGS),
                keys=index_keys(message) or message.properties.get(KEYS),
                store_host=trace.broker_addr,
                body_bytes=len(message.body),
                cost_ms=trace.took_ms,
                msg_type=_type_of(message),
                offset_msg_id=offset,
                success=trace.error is None,
            )
            for message, msg_id, offset in zip(trace.sent, trace.msg_ids, offsets, strict=True)
        )

    def before_consume(self, group: str, messages: Sequence[MessageExt]) -> None:
        """Adds a SubBefore record for each message of the call."""
        traced = _traced(messages)
        if not traced:
            return
        while len(self._calls) >= CALLS_MAX:
            del self._calls[next(iter(self._calls))]
        request_id = self._calls[id(messages)] = uuid.uuid4().hex.upper()
        time_ms = wall_ms()
        self._add(
            sub_before(
                time_ms=time_ms,
                region=message.properties.get("MSG_REGION", DEFAULT_REGION),
                group=group,
                request_id=request_id,
                msg_id=message.msg_id or message.offset_msg_id,
                retry_times=message.reconsume_times,
                keys=message.keys,
            )
            for message in traced
        )

    def after_consume(self, trace: ConsumeTrace) -> None:
        """Adds a SubAfter record for each message of the call."""
        request_id = self._calls.pop(id(trace.messages), None)
        if request_id is None:
            return
        time_ms = wall_ms()
        self._add(
            sub_after(
                time_ms=time_ms,
                group=trace.group,
                request_id=request_id,
                msg_id=message.msg_id or message.offset_msg_id,
                cost_ms=trace.took_ms // len(trace.messages),
                success=trace.error is None,
                keys=message.keys,
                code=_code_of(trace.error),
            )
            for message in _traced(trace.messages)
        )

    def after_end_transaction(self, trace: TransactionTrace) -> None:
        """Adds an EndTransaction record."""
        message = trace.message
        self._add(
            [
                end_transaction(
                    time_ms=wall_ms(),
                    region=message.properties.get("MSG_REGION", DEFAULT_REGION),
                    group=trace.group,
                    topic=message.topic,
                    msg_id=trace.msg_id,
                    tags=message.tags or message.properties.get(TAGS),
                    keys=_keys_of(message),
                    store_host=trace.broker_addr,
                    transaction_id=trace.transaction_id,
                    committed=trace.committed,
                    from_check=trace.from_check,
                )
            ]
        )

    # -- sending -----------------------------------------------------------------------------------------

    def _add(self, records: Iterable[TraceRecord]) -> None:
        self._buffer.add(records)
        if self._producer is None:
            self._producer = producer = Producer(
                self._namesrv_addr, PRODUCER_GROUP, tls=self.client_tls, credentials=self._credentials
            )
            self._hurry, self._ending, self._ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
            self._tasks.start("traces", lambda: self._run(producer))
        if self._buffer.is_worth_a_message:
            self._hurry.set()

    async def _run(self, producer: Producer) -> None:
        failures = 0
        while not self._ending.is_set():
            await wait_for_event(self._hurry, self._linger_ms)
            if await self._flush(producer):
                failures = 0
            else:
                failures += 1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN.pause_ms(failures, random.random()) / 1_000):
                        await self._ending.wait()
        await self._flush(producer)
        self._ended.set()

    async def _flush(self, producer: Producer) -> bool:
        """Sends the waiting records. False: a message failed; the others wait."""
        while (found := self._buffer.next_message()) is not None:
            body, keys, count = found
            self._sending = count
            try:
                await producer.send(Message(self.topic, body.encode(), keys=keys), timeout_ms=SEND_TIMEOUT_MS)
            except SendError as error:
                self.failed += count
                self._warn(error)
                return False
            finally:
                self._sending = 0
            self.sent += count
        return True

    def _warn(self, error: SendError) -> None:
        """Logs at most once a minute: the cluster may be unreachable for long."""
        now = now_ms()
        if self._told_ms is None or now - self._told_ms >= TOLD_EVERY_MS:
            self._told_ms = now
            logger.warning("%d trace records are lost so far: %s", self.failed + self.dropped, error)


def _traced(messages: Sequence[MessageExt]) -> list[MessageExt]:
    """Returns the messages that are not marked TRACE_ON=false, as brokers with traces switched off mark
    them."""
    return [message for message in messages if message.properties.get("TRACE_ON") != "false"]


def _keys_of(message: Message | MessageExt) -> str | None:
    if isinstance(message, MessageExt):
        return message.keys
    return index_keys(message) or message.properties.get(KEYS)


def _type_of(message: Message) -> MsgType:
    if message.properties.get(TRAN_MSG) == "true":
        return MsgType.TRANSACTION_HALF
    if message.delay_level or any(name in message.properties for name in DELAYS):
        return MsgType.DELAY
    return MsgType.NORMAL


def _code_of(error: BaseException | None) -> ContextCode:
    match error:
        case None:
            return ContextCode.SUCCESS
        case ReconsumeLater():
            return ContextCode.FAILED
        case TimeoutError():
            return ContextCode.TIME_OUT
        case _:
            return ContextCode.EXCEPTION
