"""Questions that are for a consumer: its running state (307), one message to handle now (309).

The broker hands them on over the connection that the consumer opened, and gives back what it answers. Source:
RocketMQ 5.3.3 AdminBrokerProcessor.callConsumer.
"""

from typing import Final

from broker.clients.exchange import Exchange
from broker.clients.service import Clients
from broker.store.message_store import MessageStore
from broker.store.querying import record_at
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.operation import Call, CommandError, OperationTable, Reply
from remoting.operations.clients import (
    CONSUME_MESSAGE_DIRECTLY,
    GET_CONSUMER_RUNNING_INFO,
    ConsumerCallRequest,
)

ANSWER_MS_MAX: Final = 10_000
VERSION_MIN: Final = 62  # V3_1_8_SNAPSHOT: older clients do not know these requests
WAITING_MAX: Final = 256
MESSAGE_ID_DIGITS: Final = 32  # of IPv4: address, port, offset


class ConsumerCalls:
    def __init__(self, clients: Clients, store: MessageStore, *, answer_ms_max: int = ANSWER_MS_MAX) -> None:
        self._clients, self._store = clients, store
        self._exchange = Exchange(clients, answer_ms_max=answer_ms_max, waiting_max=WAITING_MAX)

    def bind(self, table: OperationTable) -> None:
        table.bind(GET_CONSUMER_RUNNING_INFO, self.get_running_info)
        table.bind(CONSUME_MESSAGE_DIRECTLY, self.consume_directly)

    async def get_running_info(self, header: ConsumerCallRequest, call: Call) -> Reply:
        return await self._ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header, call, b"")

    async def consume_directly(self, header: ConsumerCallRequest, call: Call) -> Reply:
        """The consumer gets the message as it is stored."""
        digits = header.msg_id or ""
        try:
            offset = int(digits[-16:], 16) if len(digits) == MESSAGE_ID_DIGITS else -1
        except ValueError:
            offset = -1
        record = record_at(self._store, offset) if offset >= 0 else None
        if record is None:
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"there is no message {digits!r} here")
        return await self._ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, call, bytes(record))

    async def _ask(self, code: int, header: ConsumerCallRequest, call: Call, body: bytes) -> Reply:
        client = self._clients.registry.find(header.consumer_group, header.client_id)
        peer = None if client is None else self._clients.peer_of(client.connection_id)
        if client is None or peer is None:
            remark = f"the consumer <{header.consumer_group}> <{header.client_id}> not online"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        if client.version < VERSION_MIN:
            remark = f"the consumer <{header.client_id}> is too old for that: {client.version}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        question = RemotingCommand(code, 0, 0, None, dict(call.ext_fields), body)
        answer = await self._exchange.ask(peer, question)
        return Reply(code=answer.code, remark=answer.remark, body=answer.body)
