"""How many copies a message needs, and how many slaves count, without controllers. Pure.

A slave is in sync while it lacks fewer than haMaxGapNotInSync bytes. Source: RocketMQ 5.3.3
DefaultHAService.inSyncReplicasNums, CommitLog.calcNeedAckNums.
"""

from collections.abc import Iterable

import msgspec


class CopyRules(msgspec.Struct, frozen=True, kw_only=True):
    """The comments name the configuration keys."""

    waits: bool  # brokerRole=SYNC_MASTER and inSyncReplicas > 1
    in_sync_replicas: int = 1  # inSyncReplicas
    min_in_sync_replicas: int = 1  # minInSyncReplicas
    auto: bool = False  # enableAutoInSyncReplicas
    max_gap_bytes: int = 268_435_456  # haMaxGapNotInSync

    def is_in_sync(self, ack_offset: int, max_offset: int) -> bool:
        """Returns whether a slave with this report counts. -1: it has not reported yet."""
        return ack_offset >= 0 and max_offset - ack_offset < self.max_gap_bytes

    def in_sync_count(self, acks: Iterable[int], max_offset: int) -> int:
        """Returns the number of copies that are in sync: those of the slaves, and the master's."""
        return 1 + sum(self.is_in_sync(ack, max_offset) for ack in acks)

    def needed(self, in_sync: int) -> int:
        """Returns how many copies a message needs, the master's included, while `in_sync` are in sync."""
        if not self.waits:
            return 1
        if not self.auto:
            return self.in_sync_replicas
        return max(min(self.in_sync_replicas, in_sync), self.min_in_sync_replicas)
