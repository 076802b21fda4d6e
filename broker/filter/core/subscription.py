"""What a consumer wants of a topic, ready to be asked for each message. Pure.

TAG: the ConsumeQueue has the hash of each message's tag, so nothing is read to filter; tags with equal hashes
pass, and clients look at the text. SQL92 needs the properties. Source: RocketMQ 5.3.3 FilterAPI.
"""

from collections.abc import Callable
from dataclasses import dataclass

from broker.filter.core.sql import BadSubscription, Expression, compile_sql

TAG = "TAG"
SQL92 = "SQL92"
ALL = "*"


@dataclass(frozen=True, slots=True)
class Wanted:
    """tag_codes None: of every tag. sql None: whatever the properties are."""

    tag_codes: frozenset[int] | None = None
    sql: Expression | None = None


EVERYTHING = Wanted()


def tags_of(sub_string: str) -> list[str]:
    """`a || b` -> a, b. Empty: all."""
    tags = [tag.strip() for tag in sub_string.split("||")]
    return [] if ALL in tags else [tag for tag in tags if tag]


def parse(sub_string: str, expression_type: str, code_of: Callable[[str], int]) -> Wanted:
    """BadSubscription: no such expression type, or not an expression of it."""
    if expression_type in (TAG, ""):
        tags = tags_of(sub_string)
        return Wanted(frozenset(map(code_of, tags))) if tags else EVERYTHING
    if expression_type != SQL92:
        raise BadSubscription(f"expression type {expression_type!r} is not known: TAG and SQL92 are")
    if sub_string.strip() in ("", ALL):
        return EVERYTHING
    return Wanted(sql=compile_sql(sub_string))
