"""A broker's metadata without a broker, and one whose handlers answer over a table."""

import sys
from collections.abc import Callable, Collection, Coroutine, Iterator
from pathlib import Path
from typing import Any

from broker.admission.send_gate import ROLE
from broker.metadata.ports import LocalQueues
from broker.metadata.queue_ends import Ends
from broker.metadata.service import Metadata
from broker.metadata.topics import TopicTable
from keelmq.runtime.clock import now_ms
from tests.support.handler_context import send_gate


class QueuesWithoutLog:
    """LocalQueues of a broker whose log is empty, and whose queues have no end. A test replaces methods."""

    def log_end(self) -> int:
        return 0

    def queue_end(self, topic: str, queue_id: int) -> int:
        return sys.maxsize

    def queue_end_before(self, topic: str, queue_id: int, log_offset: int) -> int:
        return self.queue_end(topic, queue_id)

    def emptied(self) -> Iterator[Ends]:
        return iter(())

    def go_on_from(self, topic: str, queue_id: int, end: int) -> None:
        return None


class ReplicasT:
    """Replicas of a master; members(epoch) can be replaced."""

    def __init__(self, members: Callable[[int], Collection[int] | None] = lambda epoch: ()) -> None:
        self.members = members
        self.caught_up: list[int] = []

    def metadata_members(self, epoch: int) -> Collection[int] | None:
        return self.members(epoch)

    def metadata_caught_up(self, slave_id: int) -> None:
        self.caught_up.append(slave_id)


def begin_term(
    metadata: Metadata,
    epoch: int,
    replicas: ReplicasT | None = None,
    on_released: Callable[[], None] = lambda: None,
) -> None:
    """A term of a master, without other members unless `replicas` has some."""
    at_once(metadata.begin_term(epoch, replicas or ReplicasT(), on_released=on_released))


def at_once(coroutine: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine to its end that waits for nothing but asyncio.sleep(0)."""
    try:
        while True:
            assert coroutine.send(None) is None
    except StopIteration:
        return


def open_metadata(
    path: Path,
    *,
    waits: bool = False,
    timeout_ms: int = 3_000,
    auto_create_groups: bool = True,
    clock: Callable[[], int] = now_ms,
    queues: LocalQueues | None = None,
    flush_period_ms: int = 5_000,
) -> Metadata:
    """Loaded; its gate is open."""
    config = path / "config"
    topics = TopicTable(config / "topics.json", broker_name="b-a", cluster_name="C1")
    gate = send_gate()
    gate.open(ROLE)
    metadata = Metadata(
        config,
        topics,
        gate,
        queues or QueuesWithoutLog(),
        waits=waits,
        timeout_ms=timeout_ms,
        auto_create_groups=auto_create_groups,
        clock=clock,
        flush_period_ms=flush_period_ms,
    )
    metadata.load()
    return metadata
