"""Requests for a consumer: its running state (307), one message to consume now (309), and its offsets (223,
which the consumer gets as 221).

The broker forwards them over the connection that the consumer opened, and returns the answer. Source:
RocketMQ 5.3.3 AdminBrokerProcessor.callConsumer, Broker2Client.getConsumeStatus.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from broker.clients.client_requests import ClientRequests
from broker.clients.core.registry import Client
from broker.clients.service import Clients
from broker.message.checked_topic import checked_topic
from broker.message.record import decode
from broker.store.message_store import MessageStore
from broker.store.querying import record_at
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.operation import Call, CommandError, OperationTable, Reply
from keelmq.remoting.operations.clients import (
    CONSUME_MESSAGE_DIRECTLY,
    GET_CONSUMER_RUNNING_INFO,
    GET_CONSUMER_STATUS_FROM_CLIENT,
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    ConsumerCallRequest,
    ConsumerStatusRequest,
)
from keelmq.remoting.queue_map import QueueKey, dump_queue_maps, load_queue_map
from keelmq.security.core.member_proof import unsigned

logger = logging.getLogger(__name__)

ANSWER_MS_MAX: Final = 10_000
STATUS_MS_MAX: Final = 3_000  # for all members in parallel: the sender of 223 waits for 5 s
VERSION_MIN: Final = 62  # V3_1_8_SNAPSHOT: older clients do not know these requests
STATUS_VERSION_MIN: Final = 28  # V3_0_7_SNAPSHOT, for 221
WAITING_MAX: Final = 256
STATUS_BYTES_MAX: Final = 1_048_576
"""Of an answer to 221: some 15,000 queues. The event loop waits while it is decoded: 16 MiB take seconds."""
MESSAGE_ID_DIGITS: Final = (32, 56)  # address of IPv4 or IPv6, port, offset


class ConsumerCalls:
    """broker_name: for consumers. answer_ms_max: timeout of 307 and 309. status_ms_max: timeout of 221."""

    def __init__(
        self,
        clients: Clients,
        store: MessageStore,
        *,
        broker_name: str,
        answer_ms_max: int = ANSWER_MS_MAX,
        status_ms_max: int = STATUS_MS_MAX,
    ) -> None:
        self._clients, self._store, self._broker_name = clients, store, broker_name
        self._requests = ClientRequests(clients, answer_ms_max=answer_ms_max, waiting_max=WAITING_MAX)
        self._status = ClientRequests(clients, answer_ms_max=status_ms_max, waiting_max=WAITING_MAX)

    def bind(self, table: OperationTable) -> None:
        """Binds 223, 307 and 309, which are forwarded to a connected consumer."""
        table.bind(INVOKE_BROKER_TO_GET_CONSUMER_STATUS, self.get_status)
        table.bind(GET_CONSUMER_RUNNING_INFO, self.get_running_info)
        table.bind(CONSUME_MESSAGE_DIRECTLY, self.consume_directly)

    async def get_running_info(self, header: ConsumerCallRequest, call: Call) -> Reply:
        """Returns the running state of a consumer, as it reports it."""
        return await self._ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header, call.ext_fields, b"")

    async def consume_directly(self, header: ConsumerCallRequest, call: Call) -> Reply:
        """Sends a stored message to a consumer, which consumes it at once and reports the result."""
        digits = header.msg_id or ""
        try:
            offset = int(digits[-16:], 16) if len(digits) in MESSAGE_ID_DIGITS else -1
        except ValueError:
            offset = -1
        record = record_at(self._store, offset) if offset >= 0 else None
        if record is None:
            raise CommandError(ResponseCode.SYSTEM_ERROR, f"there is no message {digits!r} here")
        if call.caller.checks_topics:
            found = decode(record)
            call.caller.check_topic(checked_topic(found.topic, found.properties))
        fields = {**call.ext_fields, "brokerName": self._broker_name}
        return await self._ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header, fields, bytes(record))

    async def get_status(self, header: ConsumerStatusRequest, call: Call) -> Reply:
        """Returns, by client id, the offsets of the member in its queues of the topic. Members that do not
        answer are left out; the remark gives their number."""
        group = self._clients.registry.consumers.get(header.group)
        if group is None:
            remark = f"No Any Consumer online in the consumer group: [{header.group}]"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        members = {each.client_id: each for each in group.members.values()}  # the newest connection of each
        if header.client_addr:
            members = {name: each for name, each in members.items() if name == header.client_addr}
            if not members:
                remark = f"the consumer <{header.group}> <{header.client_addr}> not online"
                raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        for member in members.values():
            if member.version < STATUS_VERSION_MIN:
                remark = f"the client does not support this feature. version={member.version}"
                raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        answers = await asyncio.gather(*(self._status_of(each, header) for each in members.values()))
        tables = {name: each for name, each in zip(members, answers, strict=True) if each is not None}
        if not tables:
            raise CommandError(ResponseCode.CONSUME_MSG_TIMEOUT, "no consumer has answered")
        silent = len(members) - len(tables)
        note = f"{silent} of {len(members)} consumers have not answered" if silent else None
        maps = {name: sorted(table.items()) for name, table in tables.items()}
        return Reply(body=dump_queue_maps("consumerTable", maps), remark=note)

    async def _status_of(self, member: Client, header: ConsumerStatusRequest) -> dict[QueueKey, int] | None:
        """Returns the offsets of one member; None: it does not answer."""
        peer = self._clients.peer_of(member.connection_id)
        if peer is None:
            return None
        fields = {"topic": header.topic, "group": header.group}
        question = RemotingCommand(GET_CONSUMER_STATUS_FROM_CLIENT.code, 0, 0, None, fields, b"")
        try:
            answer = await self._status.ask(peer, question)
            if answer.code != ResponseCode.SUCCESS:
                return None
            if len(answer.body) > STATUS_BYTES_MAX:
                raise ValueError(f"{len(answer.body)} bytes of offsets; {STATUS_BYTES_MAX} is the limit")
            return load_queue_map(answer.body or b"{}", "messageQueueTable")[0]
        except (CommandError, ValueError) as error:
            logger.info("consumer %s of %s: %s", member.client_id, header.group, error)
            return None

    async def _ask(
        self, code: int, header: ConsumerCallRequest, fields: Mapping[str, str], body: bytes
    ) -> Reply:
        client = self._clients.registry.find(header.consumer_group, header.client_id)
        peer = None if client is None else self._clients.peer_of(client.connection_id)
        if client is None or peer is None:
            remark = f"the consumer <{header.consumer_group}> <{header.client_id}> not online"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        if client.version < VERSION_MIN:
            remark = f"the consumer <{header.client_id}> is too old for that: {client.version}"
            raise CommandError(ResponseCode.SYSTEM_ERROR, remark)
        question = RemotingCommand(code, 0, 0, None, unsigned(fields), body)
        answer = await self._requests.ask(peer, question)
        return Reply(code=answer.code, remark=answer.remark, body=answer.body)
