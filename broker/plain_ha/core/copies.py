"""How many copies a message needs, and which slaves count, without controllers. Pure.

A slave is in sync while it lacks fewer than haMaxGapNotInSync bytes. Source: RocketMQ 5.3.3
DefaultHAService.inSyncReplicasNums, CommitLog.calcNeedAckNums.

The protocol does not identify slaves. A slave that lost its connection and connects again has two links until
the master notices that the older one is dead, and RocketMQ counts both as copies. Here a new link makes the
older ones from the same host wait: each counts again with its next report, which a dead link never sends.
"""

from collections.abc import Iterable, Mapping

import msgspec

from broker.ha.core.master_link import MasterLink


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


class CountedLinks:
    """Which links count as copies, by the number of the link: below 0, and lower for a newer link; above 0:
    the proved broker id of a slave, which has one link."""

    def __init__(self) -> None:
        self._hosts: dict[int, str] = {}
        self._silent: dict[int, int] = {}  # links that wait for a report, with the number that they had sent

    def update(self, links: Mapping[int, MasterLink], hosts: Mapping[int, str]) -> None:
        """Replaces the known links by the present ones, with their hosts. Call it when links change."""
        for number in hosts.keys() - self._hosts.keys():
            for older, host in hosts.items():
                if number < older < 0 and host == hosts[number]:
                    self._silent[older] = links[older].ack_count
        self._hosts = dict(hosts)
        self._silent = {number: count for number, count in self._silent.items() if number in hosts}

    def acks(self, links: Mapping[int, MasterLink]) -> dict[int, int]:
        """Returns the log end that each slave has reported, for the links that count."""
        if self._silent:
            self._silent = {
                number: count
                for number, count in self._silent.items()
                if number in links and links[number].ack_count == count
            }
        return {number: link.ack_offset for number, link in links.items() if number not in self._silent}
