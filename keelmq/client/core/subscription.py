"""A consumer's subscription to a topic: the expression that brokers receive, and the client's own tag filter.

Brokers compare 32-bit hashes of tags, and two tags may have the same hash, so the client compares the text.
"""

from dataclasses import dataclass, field
from enum import Enum

ALL = "*"


class ExpressionType(Enum):
    """RocketMQ's ExpressionType."""

    TAG = "TAG"
    SQL92 = "SQL92"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription. `expression`: "*", "TagA || TagB", or for SQL92 a condition over properties.
    `version`: ms since 1970; at the broker, newer ones replace older ones."""

    topic: str
    expression: str = ALL
    type: ExpressionType = ExpressionType.TAG
    version: int = 0
    tags: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        if not self.topic:
            raise ValueError("a subscription needs the name of a topic")
        if self.type is ExpressionType.SQL92 and self.expression.strip() in ("", ALL):
            raise ValueError(f"subscription of {self.topic}: an SQL92 expression is needed, not {ALL!r}")
        is_tags = self.type is ExpressionType.TAG
        object.__setattr__(self, "tags", tags_of(self.expression) if is_tags else frozenset())

    def wants(self, tags: str | None) -> bool:
        """Returns whether a message with these tags matches; always True for SQL92."""
        return not self.tags or tags in self.tags


def tags_of(expression: str) -> frozenset[str]:
    """Returns the tags of an expression; an empty set means all messages."""
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    return frozenset() if ALL in tags else tags


def java_hash(text: str) -> int:
    """Returns Java's String.hashCode(): over UTF-16 units, a signed int32."""
    value = 0
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
