"""HandlerContext: the dependencies of the request handlers, provided by the broker app."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from broker.admission.pending_replies import PendingReplies
from broker.admission.send_forwarder import ForwardToMaster
from broker.admission.send_gate import PutRefused, SendGate
from broker.clients.core.locks import QueueLocks
from broker.clients.core.registry import ClientRegistry
from broker.config.client_settings import ClientSettings
from broker.core.read_counters import ReadCounters
from broker.message.record import Record
from broker.metadata.core.resets import PendingResets
from broker.metadata.groups import Group
from broker.metadata.topics import TopicTable
from broker.put.message_to_store import MessageToStore, PutMessageResult
from broker.store.message_store import MessageStore
from keelmq.remoting.operation import Call, Peer, Reply
from keelmq.remoting.operations.clients import SendBackRequest
from keelmq.remoting.operations.route import TopicRouteData


class TransactionalMessages(Protocol):
    """The service of half messages: broker/transactions/service.py."""

    def refuse(self) -> PutRefused | None:
        """Returns why half messages are refused now; None: they are accepted."""
        ...

    def stored(self, to_store: MessageToStore, stored: PutMessageResult) -> None:
        """Records a half message that was stored."""
        ...


class TimerMessages(Protocol):
    """The service of timer messages: broker/timers/service.py."""

    @property
    def is_full(self) -> bool:
        """The limit of waiting timers is reached."""
        ...

    @property
    def late_ms(self) -> int:
        """How long the next timer has been due, ms; 0: it is not."""
        ...

    @property
    def unread(self) -> int:
        """Timer messages in the queue that are not in the wheel yet."""
        ...

    @property
    def waiting(self) -> int:
        """Timers in the wheel."""
        ...


class RetryStore(Protocol):
    """A master that stores retries of any group: broker/handlers/send_back.py."""

    async def store_retry(
        self, find_record: Callable[[], Record], header: SendBackRequest, call: Call
    ) -> Reply | None:
        """Stores a message in the group's retry topic. Raises CommandError, as find_record does."""
        ...


class HandlerContext(msgspec.Struct, kw_only=True):
    """Owned by the event loop's thread. Handlers read settings and callables at each request.

    There are no defaults: a missing dependency is an error at the start.
    """

    store: MessageStore
    topics: TopicTable
    gate: SendGate
    pending: PendingReplies
    call_soon: Callable[[Callable[[], None]], object]
    """Runs a callback in the next iteration of the event loop."""
    cluster_name: str
    broker_name: str
    message_bytes_max: int
    """maxMessageSize."""
    replication_timeout_ms: int
    """slaveTimeout."""
    flush_timeout_ms: int
    """syncFlushTimeout."""
    readable: bool
    """brokerPermission has the read bit."""
    settings: ClientSettings
    cached_bytes: int
    """Bytes at the end of the CommitLog that are assumed to be in memory."""
    runtime_info: Callable[[], Mapping[str, str]]
    """Returns the entries that metadata and controller mode add to 28."""
    commit_offset: Callable[[str, str, int, int], None]
    """(group, topic, queue id, offset) of a pull with the commit flag."""
    find_group: Callable[[str, Peer], Group | None]
    """Returns the group, created if that is allowed; None: there is none. Raises CommandError: this client
    may create no more."""
    find_route: Callable[[str], Awaitable[TopicRouteData | None]]
    """Returns a topic's route as the name servers know it; None: they know none."""
    sends_to_master: Callable[[], bool]
    """Returns whether this broker is a replica that consumers should leave for the master."""
    forward_to_master: ForwardToMaster
    escape_target: Callable[[], RetryStore | None]
    """Returns a master of another group, in the same process, that accepts retries while this broker's master
    is not available; None: there is none."""
    new_unique_key: Callable[[], str]
    now_ms: Callable[[], int]
    registry: ClientRegistry
    locks: QueueLocks
    resets: PendingResets
    reads: ReadCounters
    transactional_messages: TransactionalMessages | None
    """None: transactional messages are refused."""
    timers: TimerMessages | None
    """None: timer messages are refused."""
