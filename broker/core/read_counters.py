"""What pulls count: a few integer additions each, on the data path. Everything else is made of samples."""

from typing import Final

PAIRS_MAX: Final = 50_000
"""Pairs of topic and group that are counted one by one."""


class GroupReads:
    """Of one group in one topic, since the start. times: pulls that found something."""

    __slots__ = ("bytes", "messages", "times")

    def __init__(self) -> None:
        self.bytes = self.messages = self.times = 0


class ReadCounters:
    """`found`, `missed`: pulls. `sent_back`: messages that came back from consumers, by (topic, group)."""

    __slots__ = ("found", "groups", "missed", "sent_back")

    def __init__(self) -> None:
        self.groups: dict[tuple[str, str], GroupReads] = {}
        self.sent_back: dict[tuple[str, str], int] = {}
        self.found = self.missed = 0

    def got(self, topic: str, group: str, messages: int, size: int) -> None:
        """A pull that is answered with messages."""
        self.found += 1
        reads = self.groups.get((topic, group))
        if reads is None:
            if len(self.groups) >= PAIRS_MAX:
                return
            reads = self.groups[topic, group] = GroupReads()
        reads.messages += messages
        reads.bytes += size
        reads.times += 1

    def came_back(self, topic: str, group: str) -> None:
        count = self.sent_back.get((topic, group))
        if count is not None or len(self.sent_back) < PAIRS_MAX:
            self.sent_back[topic, group] = (count or 0) + 1

    def forget(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Of a topic or a group that is deleted."""
        tables: tuple[dict[tuple[str, str], object], ...] = (self.groups, self.sent_back)  # type: ignore[assignment]
        for table in tables:
            for pair in [pair for pair in table if pair[0] == topic or pair[1] == group]:
                del table[pair]
