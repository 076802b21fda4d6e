"""UnassignedTopics: topics whose queues cannot be assigned to a consumer, and since when.

No call of a consumer fails when its name servers do not answer, refuse it, or do not know the topic, because
this may be temporary. To an application it looks as if there were no messages, so a warning is logged if it
lasts.
"""

import logging
from collections.abc import Mapping

logger = logging.getLogger(__name__)

WARN_AFTER_MS = 5_000
"""More than a fail-over takes, or a topic that its first message creates."""
WARN_EVERY_MS = 60_000
TOPICS_SHOWN = 5


class UnassignedTopics:
    """Of one member of a group; used in its event loop."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._since_ms: dict[str, int] = {}
        self._next_ms = 0
        self._no_topic_since_ms: int | None = None
        self._no_topic_next_ms = 0

    def rebalanced(self, problems: Mapping[str, Exception], now_ms: int, *, subscribed: bool = True) -> None:
        """Takes the topics whose assignment failed just now, and why. Logs a warning if it has failed for
        long, once in a minute. `subscribed` False: there is no subscription; this is logged likewise."""
        if subscribed:
            self._no_topic_since_ms, self._no_topic_next_ms = None, 0
        elif self._no_topic_since_ms is None:
            self._no_topic_since_ms = now_ms
        elif now_ms - self._no_topic_since_ms >= WARN_AFTER_MS and now_ms >= self._no_topic_next_ms:
            self._no_topic_next_ms = now_ms + WARN_EVERY_MS
            logger.warning(
                "group %s gets no messages: it subscribes to no topic, see subscribe()", self._group
            )
        self._since_ms = {topic: self._since_ms.get(topic, now_ms) for topic in problems}
        overdue = [topic for topic, since in self._since_ms.items() if now_ms - since >= WARN_AFTER_MS]
        if not overdue:
            self._next_ms = 0
        elif now_ms >= self._next_ms:
            self._next_ms = now_ms + WARN_EVERY_MS
            more = f" and {len(overdue) - TOPICS_SHOWN} more" if len(overdue) > TOPICS_SHOWN else ""
            logger.warning(
                "group %s: the queues of %s%s cannot be assigned for %.0f s now: %s",
                self._group,
                ", ".join(overdue[:TOPICS_SHOWN]),
                more,
                (now_ms - self._since_ms[overdue[-1]]) / 1_000,
                problems[overdue[-1]],
            )
