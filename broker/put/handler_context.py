"""What the handlers work with, given by the broker app."""

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from broker.client_settings import ClientSettings
from broker.clients.core.locks import QueueLocks
from broker.clients.core.registry import ClientRegistry
from broker.clients.core.resets import PendingResets
from broker.handlers.unique_keys import UniqueKeys
from broker.metadata.groups import Group
from broker.pending import PendingReplies, SendGate
from broker.stats.reads import ReadCounters
from broker.store.message_store import MessageStore
from broker.topics import TopicTable
from remoting.clock import now_ms
from remoting.operation import Operation, Outcome, Wire
from remoting.operations.broker_metadata import SubscriptionGroupConfig
from remoting.operations.route import TopicRouteData

if TYPE_CHECKING:
    from broker.handlers.writer import Letter, Refused, Stored

HandOn: TypeAlias = Callable[[Operation[Any, Any], Wire], Awaitable[Outcome[Any] | None]]
"""A request for the master, from a broker that is none. None: no other master is known."""


async def _to_nobody(operation: Operation[Any, Any], header: Wire) -> Outcome[Any] | None:
    return None


async def _no_route(topic: str) -> TopicRouteData | None:
    return None


def _any_group(name: str) -> Group:
    return Group(SubscriptionGroupConfig(group_name=name))


class HalfKeeper(Protocol):
    """Who looks after half messages: broker/transactions/service.py."""

    def refuse(self) -> "Refused | None":
        """Why none is taken now."""
        ...

    def stored(self, letter: "Letter", stored: "Stored") -> None: ...


class TimerKeeper(Protocol):
    """Who delivers timer messages: broker/timers/service.py."""

    @property
    def is_full(self) -> bool: ...

    @property
    def late_ms(self) -> int: ...

    @property
    def unread(self) -> int: ...

    @property
    def waiting(self) -> int: ...


@dataclass(slots=True)
class BrokerParts:
    """`call_soon` is the loop's; `end_of_tick` runs once per loop iteration in which something was put (the
    HA push and, alone, the confirmOffset). Texts and tables are asked for at each request."""

    store: MessageStore
    topics: TopicTable
    gate: SendGate
    pending: PendingReplies
    call_soon: Callable[[Callable[[], None]], object]
    end_of_tick: Callable[[], None]
    cluster_name: str = "DefaultCluster"
    message_bytes_max: int = 4_194_304
    replication_timeout_ms: int = 3_000  # slaveTimeout
    flush_timeout_ms: int = 5_000  # syncFlushTimeout
    runtime_info: Callable[[], Mapping[str, str]] = dict
    readable: bool = True  # brokerPermission
    permits_write: bool = True  # the same
    commit_offset: Callable[[str, str, int, int], None] = lambda group, topic, queue_id, offset: None
    find_group: Callable[[str], Group | None] = _any_group  # created if that is allowed
    locks: QueueLocks = field(default_factory=QueueLocks)
    new_unique_key: Callable[[], str] = field(default_factory=lambda: UniqueKeys().next)
    now_ms: Callable[[], int] = now_ms
    registry: ClientRegistry = field(default_factory=ClientRegistry)
    sends_to_master: Callable[[], bool] = lambda: False  # a replica that consumers should leave
    resets: PendingResets = field(default_factory=PendingResets)
    hand_on: HandOn = _to_nobody
    find_route: Callable[[str], Awaitable[TopicRouteData | None]] = _no_route  # as name servers know it
    settings: ClientSettings = field(default_factory=lambda: ClientSettings.model_validate({}))
    cached_bytes: int = sys.maxsize  # of the log's tail, taken to be in memory
    halves: HalfKeeper | None = None  # None: transactional messages are refused
    timers: TimerKeeper | None = None  # None: timer messages are refused
    broker_name: str = "broker"
    reads: ReadCounters = field(default_factory=ReadCounters)
