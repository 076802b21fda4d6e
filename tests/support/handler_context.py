"""What handlers work with, for tests: a gate, and a HandlerContext with a default for each field."""

from typing import Any

from broker.admission.pending_replies import PendingReplies
from broker.admission.send_forwarder import no_other_master
from broker.admission.send_gate import ROLE, SendGate
from broker.clients.core.locks import QueueLocks
from broker.clients.core.registry import ClientRegistry
from broker.config.client_settings import ClientSettings
from broker.core.read_counters import ReadCounters
from broker.metadata.core.resets import PendingResets
from broker.metadata.groups import Group
from broker.metadata.topics import TopicTable
from broker.put.handler_context import HandlerContext
from broker.store.message_store import MessageStore
from keelmq.remoting.messages.unique_keys import UniqueKeys
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.route import TopicRouteData
from keelmq.runtime.clock import now_ms

MEMORY_BYTES = 1 << 40


def send_gate(*, is_open: bool = False, wait: bool = False) -> SendGate:
    """Returns a gate that is closed because the broker is not master, or open."""
    gate = SendGate(wait=wait, permits_write=True, accept_from_ms=0)
    if is_open:
        gate.open(ROLE)
    return gate


async def _no_route(topic: str) -> TopicRouteData | None:
    return None


def handler_context(
    store: MessageStore, topics: TopicTable, gate: SendGate, pending: PendingReplies, **changed: Any
) -> HandlerContext:
    """Returns the context of a lone master that reads and writes; changed: other values of its fields."""
    fields: dict[str, Any] = {
        "call_soon": lambda callback: None,
        "cluster_name": "DefaultCluster",
        "broker_name": "broker",
        "message_bytes_max": 4_194_304,
        "replication_timeout_ms": 3_000,
        "flush_timeout_ms": 5_000,
        "readable": True,
        "settings": ClientSettings.model_validate({}),
        "cached_bytes": MEMORY_BYTES,
        "runtime_info": dict,
        "commit_offset": lambda group, topic, queue_id, offset: None,
        "find_group": lambda name, _peer: Group(SubscriptionGroupConfig(group_name=name)),
        "find_route": _no_route,
        "sends_to_master": lambda: False,
        "forward_to_master": no_other_master,
        "escape_target": lambda: None,
        "new_unique_key": UniqueKeys().next,
        "now_ms": now_ms,
        "registry": ClientRegistry(),
        "locks": QueueLocks(),
        "resets": PendingResets(),
        "reads": ReadCounters(),
        "transactional_messages": None,
        "timers": None,
    }
    return HandlerContext(store=store, topics=topics, gate=gate, pending=pending, **fields | changed)
