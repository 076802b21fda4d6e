"""A consumer's subscription to a topic: the text that goes to brokers, and the filter of what they send.

Brokers compare 32-bit hashes of tags, and two tags may have the same hash: the client compares the text.
"""

from dataclasses import dataclass, field
from enum import Enum

ALL = "*"


class ExpressionType(Enum):
    TAG = "TAG"
    SQL92 = "SQL92"


@dataclass(frozen=True, slots=True)
class Subscription:
    """`expression`: "*", "TagA || TagB", or for SQL92 a condition over properties. `version`: newer ones
    replace older ones at the broker (ms since 1970)."""

    topic: str
    expression: str = ALL
    type: ExpressionType = ExpressionType.TAG
    version: int = 0
    tags: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        if self.type is ExpressionType.SQL92 and self.expression.strip() in ("", ALL):
            raise ValueError(f"subscription of {self.topic}: an SQL92 expression is needed, not {ALL!r}")
        is_tags = self.type is ExpressionType.TAG
        object.__setattr__(self, "tags", tags_of(self.expression) if is_tags else frozenset())

    def wants(self, tags: str | None) -> bool:
        return not self.tags or tags in self.tags


def tags_of(expression: str) -> frozenset[str]:
    """Returns the tags of an expression; empty: all messages."""
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    return frozenset() if ALL in tags else tags


def java_hash(text: str) -> int:
    """String.hashCode(): over UTF-16 units, a signed int32."""
    value = 0
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value
