"""Streams of clients, and the checks of orphaned transactions that are sent on them.

A broker asks a producer that is connected to it about a half message without a decision (39). For producers
of gRPC this proxy is that producer: it sends heartbeats for the topics of its open streams, since the
producer group of a transaction is its topic. Nothing is kept of a stream that has ended: its client opens
another one, at any proxy."""

import asyncio
import logging
from typing import Final

from broker.clients.proxied_requests import Sender
from keelmq.client.cluster.heartbeats import make_client_id
from keelmq.client.message import decode_messages
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Call as Request
from keelmq.remoting.operation import Empty, Ok, OperationTable, RemoteProtocolError
from keelmq.remoting.operations.clients import HEART_BEAT, HeartbeatData, ProducerData
from keelmq.remoting.operations.transactions import CHECK_TRANSACTION_STATE, CheckTransactionStateRequest
from keelmq.runtime.clock import now_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.runtime.tasks import wait_for_event
from proxy.core.messages import message_of
from proxy.core.names import Client, topic_name
from proxy.core.statuses import Refused
from proxy.core.transactions import HalfMessage
from proxy.server.cluster import Cluster
from proxy.server.guard import Guard
from proxy.wire import messaging_pb2 as pb

logger = logging.getLogger(__name__)

HEARTBEAT_MS: Final = 10_000
HEARTBEAT_TIMEOUT_MS: Final = 3_000
OUTGOING_MAX: Final = 16
"""Commands that a stream holds for a client that does not read; each may be a message of 4 MiB."""
TOPICS_MAX: Final = 256
"""Topics of one producer."""


class Stream:
    """A client's open stream. sender: whose it is. kind: the client's type and language; None: it has sent no
    settings. topics: of a producer, as the client calls them, by their names at the brokers.

    It holds OUTGOING_MAX commands at most; None: the stream ends. Each client has a stream, and the deques of
    an asyncio.Queue would take 2.5 KiB of it, those of an asyncio.Event 0.7 KiB."""

    __slots__ = ("_all_written", "_more", "_outgoing", "_unwritten", "client", "kind", "sender", "topics")

    def __init__(self, client: Client, sender: Sender) -> None:
        self.client, self.sender = client, sender
        self.kind: tuple[str, str] | None = None
        self.topics: dict[str, pb.Resource] = {}
        self._outgoing: list[pb.TelemetryCommand | None] = []
        self._unwritten = 0
        self._more: asyncio.Future[None] | None = None
        self._all_written: asyncio.Future[None] | None = None

    def send(self, command: pb.TelemetryCommand) -> bool:
        """Returns False: the client does not read, and has OUTGOING_MAX commands to read already."""
        has_room = len(self._outgoing) < OUTGOING_MAX
        if has_room:
            self._unwritten += 1
            self._put(command)
        return has_room

    def end(self) -> None:
        """No command follows."""
        self._put(None)

    def _put(self, command: pb.TelemetryCommand | None) -> None:
        self._outgoing.append(command)
        _wake(self._more)

    async def next(self) -> pb.TelemetryCommand | None:
        """Returns the next command; None: the stream ends. For one caller, which says written() then."""
        while not self._outgoing:
            self._more = asyncio.get_running_loop().create_future()
            await self._more
        return self._outgoing.pop(0)

    def written(self) -> None:
        """The command that next() returned is written."""
        self._unwritten -= 1
        if not self._unwritten:
            _wake(self._all_written)

    async def all_written(self) -> None:
        """Waits until no command is left to write. For one caller."""
        while self._unwritten:
            self._all_written = asyncio.get_running_loop().create_future()
            await self._all_written


def _wake(waiting: "asyncio.Future[None] | None") -> None:
    """Lets a waiting caller go on; one that was cancelled is left alone."""
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class Producers:
    def __init__(self, table: OperationTable, client: RemotingClient, cluster: Cluster, guard: Guard) -> None:
        """table: of the client, for what brokers send to it."""
        self._client, self._cluster, self._guard = client, cluster, guard
        self._client_id = make_client_id()
        self._streams: dict[str, dict[Stream, None]] = {}
        self._wanted = asyncio.Event()
        self._failures = RateLimitedLogger(logger, level=logging.WARNING)
        table.bind(CHECK_TRANSACTION_STATE, self.check)

    def publishes(self, stream: Stream, publishing: pb.Publishing) -> None:
        """The client of a stream has said to which topics it sends. Raises Refused."""
        if len(publishing.topics) > TOPICS_MAX:
            raise Refused(pb.BAD_REQUEST, f"{len(publishing.topics)} topics; {TOPICS_MAX} is the limit")
        topics = {topic_name(each, stream.client): each for each in publishing.topics}
        self.ended(stream)
        stream.topics = topics
        for topic in topics:
            if topic not in self._streams:
                self._wanted.set()
            self._streams.setdefault(topic, {})[stream] = None

    def ended(self, stream: Stream) -> None:
        """The stream has no topics any more."""
        for topic in stream.topics:
            streams = self._streams.get(topic, {})
            streams.pop(stream, None)
            if not streams:
                self._streams.pop(topic, None)
        stream.topics = {}

    async def run(self) -> None:
        """Sends heartbeats to the masters of all topics, until it is cancelled."""
        while True:
            await wait_for_event(self._wanted, HEARTBEAT_MS)
            await self._introduce()

    async def _introduce(self) -> None:
        topics_at: dict[str, set[str]] = {}
        for topic in sorted(self._streams):
            try:
                route = await self._cluster.route(topic)
            except Refused:
                continue
            for broker_name in route.addresses:
                address = route.master(broker_name)
                if address is not None:
                    topics_at.setdefault(address, set()).add(topic)
        for address, topics in topics_at.items():
            groups = [ProducerData(group_name=topic) for topic in sorted(topics)]
            body = HeartbeatData(clientID=self._client_id, producer_data_set=groups)
            outcome = await self._client.call(
                address, HEART_BEAT, Empty(), body, timeout_ms=HEARTBEAT_TIMEOUT_MS
            )
            if not isinstance(outcome, Ok):
                self._failures.tell(
                    now_ms(), "no heartbeat for transactions at %s: %s", address, outcome.remark
                )

    async def check(self, header: CheckTransactionStateRequest, call: Request) -> None:
        """Asks one of the topic's producers (39). A check that nobody gets is repeated by the broker."""
        try:
            messages = decode_messages(call.raw_body, header.bname)
        except RemoteProtocolError as error:
            self._failures.tell(now_ms(), "a check of a transaction cannot be read: %s", error)
            return
        for message in messages:
            half = HalfMessage(
                header.bname, header.commit_log_offset, header.tran_state_table_offset, message.msg_id
            )
            streams = self._streams.get(message.topic, {})
            for stream in list(streams):
                if not await self._may_read(message.topic, stream) or stream not in streams:
                    continue
                command = pb.RecoverOrphanedTransactionCommand(
                    message=message_of(message, stream.topics[message.topic]), transaction_id=half.text()
                )
                if stream.send(pb.TelemetryCommand(recover_orphaned_transaction_command=command)):
                    streams[stream] = streams.pop(stream)  # the next check goes to another one
                    break

    async def _may_read(self, topic: str, stream: Stream) -> bool:
        """Whether the stream's user still has the right to send to the topic, as when it was opened."""
        try:
            await self._guard.may_publish(topic, stream.sender)
        except Refused:
            return False
        return True
