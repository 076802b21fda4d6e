"""What a reset of a group's offsets would do at a broker; nothing changes."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from keelmq.client.admin.brokers import QueueStats
from keelmq.client.admin.client import AdminClient
from keelmq.remoting.operations.clients import ResetOffsetRequest
from keelmq.remoting.queue_map import QueueKey

LATEST: Final = -1
"""As a time: the end of the queue."""


class ResetRow(NamedTuple):
    """A queue before a reset. consumer_offset None: the group has consumed nothing of it. is_told: the broker
    said reset_offset; otherwise it cannot say, and might refuse the reset."""

    queue: QueueKey
    broker_offset: int
    consumer_offset: int | None
    time_offset: int
    reset_offset: int
    is_told: bool = False


@dataclass(frozen=True)
class Wanted:
    """A reset: of all queues, or of one; to a time (ms; -1: the end), or to an offset."""

    group: str
    topic: str
    at_ms: int
    queue_id: int | None
    offset: int | None
    forced: bool

    def target(self, row: QueueStats, by_time: int, committed: int | None) -> int:
        """Returns the new offset, by the broker's rules."""
        if self.offset is not None:
            return self.offset
        found = row.max_offset if self.at_ms == LATEST else by_time
        return found if self.forced or committed is None else min(found, committed)


async def would_reset(admin: AdminClient, address: str, wanted: Wanted) -> list[ResetRow]:
    """Returns each queue of the topic at a broker with the offset that the group would get: as the broker
    says, or if it cannot, by its rules as they are known here. AdminError: the reset would be refused."""
    header = ResetOffsetRequest(
        topic=wanted.topic,
        group=wanted.group,
        queue_id=LATEST if wanted.queue_id is None else wanted.queue_id,
        offset=wanted.offset,
        timestamp=wanted.at_ms,
        is_force=wanted.forced,
    )
    said = await admin.groups.explain_reset_offset(address, header)
    told = None if said is None else {key.queue_id: offset for key, offset in said.items()}
    queues = (await admin.brokers.topic_stats(address, wanted.topic)).queues
    rows = []
    for key, row in sorted(queues.items()):
        if wanted.queue_id not in (None, key.queue_id):
            continue
        by_time = row.max_offset
        if wanted.at_ms != LATEST:
            by_time = await admin.messages.offset_at(address, key, wanted.at_ms)
        committed = await admin.messages.committed_offset(address, wanted.group, key)
        target = wanted.target(row, by_time, committed) if told is None else told.get(key.queue_id)
        if target is None:
            continue  # the topic has got this queue a moment ago
        rows.append(ResetRow(key, row.max_offset, committed, by_time, target, told is not None))
    return rows
