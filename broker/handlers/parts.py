"""What the handlers work with, given by the broker app."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.pending import PendingReplies, SendGate
from broker.store.message_store import MessageStore
from broker.topics import TopicTable


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
    properties_text: Callable[[], str] = str
    runtime_info: Callable[[], Mapping[str, str]] = dict
    readable: bool = True  # brokerPermission
    commit_offset: Callable[[str, str, int, int], None] = lambda group, topic, queue_id, offset: None
