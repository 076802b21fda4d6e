"""Bounded texts about consumer groups in the runtime information (28), for `keelmq status`."""

from collections.abc import Mapping
from itertools import islice
from typing import Final

from broker.clients.core.registry import ClientRegistry
from broker.metadata.service import Metadata
from broker.store.message_store import MessageStore

NAMES_MAX: Final = 10
LOOKED_AT_MAX: Final = 100


def agreement_report(registry: ClientRegistry, metadata: Metadata, store: MessageStore) -> Mapping[str, str]:
    """Returns two texts. subscriptionsDiffer: "group,group" of at most 10. topicsNotConsumed: "group@topic"
    of at most 10, of topics that every member has unsubscribed from while messages are left to consume."""
    agreement = registry.agreement
    left = (
        f"{group}@{topic}"
        for group in sorted(islice(agreement.dropping, LOOKED_AT_MAX))
        for topic in agreement.dropped(group)
        if _has_more(metadata, store, group, topic)
    )
    return {
        "subscriptionsDiffer": ",".join(sorted(islice(agreement.differing, NAMES_MAX))),
        "topicsNotConsumed": ",".join(islice(left, NAMES_MAX)),
    }


def _has_more(metadata: Metadata, store: MessageStore, group: str, topic: str) -> bool:
    """Returns whether the group has consumed from the topic, and not to its end."""
    if topic not in metadata.topics.topics:
        return False
    row = metadata.offsets.row(group, topic)
    return any(offset < store.max_queue_offset(topic, queue_id) for queue_id, offset in row.items())
