"""Counters of reads: a few integer additions for each pull, on the data path. Statistics are made from
samples of them."""

from typing import Final

PAIRS_MAX: Final = 50_000
"""Pairs of topic and group that are counted; further ones are not."""


class GroupReads:
    """One group's reads of one topic since the start. times: pulls that found messages. next_offsets: by
    queue, the offset behind the last message that the group received."""

    __slots__ = ("bytes", "messages", "next_offsets", "times")

    def __init__(self) -> None:
        self.next_offsets: dict[int, int] = {}
        self.bytes = self.messages = self.times = 0


class ReadCounters:
    """`found`, `missed`: pulls with and without messages. `sent_back`: messages that consumers sent back, by
    (topic, group); `dead_letters`: those that went to the group's dead-letter topic. `longest_s`: the slowest
    lookup in the store, since the start."""

    __slots__ = ("dead_letters", "found", "groups", "longest_s", "missed", "sent_back")

    def __init__(self) -> None:
        self.groups: dict[tuple[str, str], GroupReads] = {}
        self.sent_back: dict[tuple[str, str], int] = {}
        self.dead_letters: dict[tuple[str, str], int] = {}
        self.found = self.missed = 0
        self.longest_s = 0.0

    def record_lookup_time(self, seconds: float) -> None:
        """Records how long a lookup of messages in the store took."""
        if seconds > self.longest_s:
            self.longest_s = seconds

    def count_read(
        self, topic: str, group: str, queue_id: int, next_offset: int, messages: int, size: int
    ) -> None:
        """Counts a pull that is answered with `messages` messages of `size` bytes together. next_offset:
        behind the last one."""
        self.found += 1
        reads = self.groups.get((topic, group))
        if reads is None:
            if len(self.groups) >= PAIRS_MAX:
                return
            reads = self.groups[topic, group] = GroupReads()
        reads.messages += messages
        reads.bytes += size
        reads.times += 1
        reads.next_offsets[queue_id] = next_offset

    def count_sent_back(self, topic: str, group: str) -> None:
        """Counts a message that a consumer sent back."""
        _count(self.sent_back, topic, group)

    def count_dead_letter(self, topic: str, group: str) -> None:
        """Counts a message of this topic that went to the group's dead-letter topic."""
        _count(self.dead_letters, topic, group)

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Drops the counters of a deleted topic or group."""
        tables: tuple[dict[tuple[str, str], object], ...] = (self.groups, self.sent_back, self.dead_letters)  # type: ignore[assignment]
        for table in tables:
            for pair in [pair for pair in table if pair[0] == topic or pair[1] == group]:
                del table[pair]


def _count(table: dict[tuple[str, str], int], topic: str, group: str) -> None:
    count = table.get((topic, group))
    if count is not None or len(table) < PAIRS_MAX:
        table[topic, group] = (count or 0) + 1
