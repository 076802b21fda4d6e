"""A broker's metadata without a broker, and one whose handlers answer over a table."""

from collections.abc import Callable
from pathlib import Path

from broker.metadata.service import Metadata
from broker.pending import ROLE, SendGate
from broker.topics import TopicTable
from remoting.clock import now_ms


def open_metadata(
    path: Path,
    *,
    waits: bool = False,
    timeout_ms: int = 3_000,
    auto_create_groups: bool = True,
    clock: Callable[[], int] = now_ms,
) -> Metadata:
    """Loaded; its gate is open."""
    config = path / "config"
    topics = TopicTable(config / "topics.json", broker_name="b-a", cluster_name="C1")
    gate = SendGate()
    gate.open(ROLE)
    metadata = Metadata(
        config,
        topics,
        gate,
        waits=waits,
        timeout_ms=timeout_ms,
        auto_create_groups=auto_create_groups,
        clock=clock,
    )
    metadata.load()
    return metadata
