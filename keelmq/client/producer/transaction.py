"""TransactionProducer: sends a message that consumers see only if a local transaction commits.

    async with TransactionProducer("127.0.0.1:9876", "orders", check=ask_database) as producer:
        async with producer.transaction(Message("orders", b"1")) as transaction:
            await database.commit(transaction.msg_id)
    # the block ended: committed; it raised: rolled back

The broker has the message before the block begins. If it never learns how the block ended (the process died,
the request was lost), it sends a check to any producer of the group: `check` must then find out, for example
by looking for msg_id in the database. `check` also gets transactions of other processes, and must not guess:
it may return UNKNOWN, and the broker checks again later.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from keelmq.client.cluster.queue_reader import PullError
from keelmq.client.cluster.routes import ROUTE_POLL_MS, RouteError
from keelmq.client.core.checks import check_callable, check_one_of, check_texts
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.send_result import SendResult
from keelmq.client.hooks import ClientHook, TransactionTrace
from keelmq.client.message import TRAN_MSG, Message, MessageExt, decode_messages
from keelmq.client.message_id import decode_offset_message_id
from keelmq.client.producer.producer import CLOSE_TIMEOUT_MS, SEND_TIMEOUT_MS, Producer
from keelmq.client.producer.sender import Choice
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, RemoteProtocolError
from keelmq.remoting.operations.transactions import (
    CHECK_TRANSACTION_STATE,
    END_TRANSACTION,
    CheckTransactionStateRequest,
    EndTransactionRequest,
)
from keelmq.runtime.tls.contexts import Tls
from keelmq.security.signer import Credentials

logger = logging.getLogger(__name__)

END_TIMEOUT_MS = 5_000
CHECK_TIMEOUT_S = 30.0


class TransactionState(IntEnum):
    """The decisions, with their numbers on the wire."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


Check = Callable[[MessageExt], Awaitable[TransactionState]]


class Transaction:
    """An open transaction. As a context manager it commits at the end of the block, and rolls back if the
    block raises."""

    def __init__(self, producer: "TransactionProducer", message: Message, result: SendResult) -> None:
        self._producer, self.message, self.result = producer, message, result
        self.state: TransactionState | None = None
        """The decision; None: still open."""

    @property
    def msg_id(self) -> str:
        """Returns the message.msg_id that `check` will see: store it with the local transaction."""
        return self.result.msg_id

    async def commit(self) -> bool:
        """Makes the message visible. False: no broker received the decision; one will check, and `check` must
        return the same decision."""
        return await self._end(TransactionState.COMMIT)

    async def rollback(self) -> bool:
        """Discards the message. Returns as commit()."""
        return await self._end(TransactionState.ROLLBACK)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commits, or rolls back after an exception. A cancelled block may or may not have done its work, so
        no decision is sent, and the broker will call `check`."""
        if self.state is not None or isinstance(error, asyncio.CancelledError):
            return
        await (self.commit() if error is None else self.rollback())

    async def _end(self, state: TransactionState) -> bool:
        if self.state not in (None, state):
            raise ValueError(f"transaction {self.msg_id} is already decided: {self.state!r}")
        self.state = state
        return await self._producer.end(self.message, self.result, state)


class TransactionProducer(Producer):
    """A Producer with transactions; its send() is without one. `check`: called for transactions of the group
    that have no decision at the broker. `topics`: topics of the group, whose brokers can then send checks
    from the start; without them, brokers can do so after the first message."""

    def __init__(
        self,
        namesrv_addr: str,
        group: str,
        check: Check,
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
        check_texts("topics", topics)
        self._check, self._topics = check, (topics,) if isinstance(topics, str) else tuple(topics)
        super().__init__(
            namesrv_addr,
            group,
            hooks=hooks,
            avoid_slow_brokers=avoid_slow_brokers,
            instance_name=instance_name,
            route_poll_interval_ms=route_poll_interval_ms,
            close_timeout_ms=close_timeout_ms,
            tls=tls,
            credentials=credentials,
            telemetry_directory=telemetry_directory,
        )
        self._pushed.bind(CHECK_TRANSACTION_STATE, self._asked)

    async def _start(self) -> None:
        for topic in self._topics:
            try:
                await self._routes.refresh(topic)
            except RouteError as error:
                logger.info("producer group %s: %s", self.group, error.remark)
        if self._topics:
            self._introduce()

    async def begin(
        self,
        message: Message,
        *,
        queue: Choice = None,
        key: str | None = None,
        timeout_ms: int = SEND_TIMEOUT_MS,
    ) -> Transaction:
        """Sends the message, which stays invisible until commit(). SendError: the broker does not have it.
        ValueError: the message is delayed."""
        check_one_of("message", message, Message)
        if message.delay_level:
            raise ValueError("a message in a transaction cannot be delayed")
        properties = {**message.properties, TRAN_MSG: "true", "PGROUP": self.group}
        half = replace(message, properties=properties)
        result = await self.send(half, queue=queue, key=key, timeout_ms=timeout_ms)
        return Transaction(self, message, result)

    @contextlib.asynccontextmanager
    async def transaction(
        self,
        message: Message,
        *,
        queue: Choice = None,
        key: str | None = None,
        timeout_ms: int = SEND_TIMEOUT_MS,
    ) -> AsyncIterator[Transaction]:
        """The block of a transaction, with the arguments of begin()."""
        async with await self.begin(message, queue=queue, key=key, timeout_ms=timeout_ms) as transaction:
            yield transaction

    async def end(self, message: Message, result: SendResult, state: TransactionState) -> bool:
        """Ends a transaction of begin() (END_TRANSACTION, 37). True: a broker accepted the decision. Safe to
        repeat: the first decision counts."""
        header = EndTransactionRequest(
            topic=message.topic,
            producer_group=self.group,
            tran_state_table_offset=result.queue_offset,
            commit_log_offset=decode_offset_message_id(result.offset_msg_id)[1],
            commit_or_rollback=int(state),
            from_transaction_check=False,
            msg_id=result.msg_id,
            transaction_id=result.transaction_id or result.msg_id,
        )
        queue = MessageQueue(message.topic, result.broker_name, result.queue_id)
        return await self._tell(message, queue, header)

    async def _tell(
        self, message: Message | MessageExt, queue: MessageQueue, header: EndTransactionRequest
    ) -> bool:
        try:
            await self._reader.ask(
                queue, END_TRANSACTION, header, timeout_ms=END_TIMEOUT_MS, master_only=True
            )
        except PullError as error:
            logger.warning(
                "end of transaction %s: no broker received the decision, and one will check it: %s",
                header.msg_id,
                error,
            )
            return False
        if self._hooks:
            self._hooks.after_end_transaction(
                TransactionTrace(
                    self.group,
                    message,
                    header.msg_id or "",
                    header.transaction_id or header.msg_id or "",
                    committed=header.commit_or_rollback == TransactionState.COMMIT,
                    from_check=header.from_transaction_check,
                    broker_addr=self._routes.master_of(queue),
                )
            )
        return True

    async def _asked(self, header: CheckTransactionStateRequest, call: Call) -> None:
        """Serves 39. After UNKNOWN, or an error of `check`, nothing is sent, and the broker checks again."""
        try:
            (message,) = decode_messages(bytes(call.body or b""), header.bname)
        except (RemoteProtocolError, ValueError) as error:
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"no message to check: {error}") from None
        if message.body_error:
            logger.error("transaction %s cannot be checked: %s", header.msg_id, message.body_error)
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"no message to check: {message.body_error}")
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                state = TransactionState(await self._check(message))
        except Exception:
            logger.exception("check of transaction %s failed: the broker will check again", header.msg_id)
            return
        if state is TransactionState.UNKNOWN:
            return
        answer = EndTransactionRequest(
            topic=message.topic,
            producer_group=self.group,
            tran_state_table_offset=header.tran_state_table_offset,
            commit_log_offset=header.commit_log_offset,
            commit_or_rollback=int(state),
            from_transaction_check=True,
            msg_id=header.msg_id,
            transaction_id=header.transaction_id,
        )
        await self._tell(message, MessageQueue(message.topic, header.bname, message.queue_id), answer)
