"""MessageFilter: the messages of a topic that a consumer subscribes to. Pure.

TAG: the ConsumeQueue has the hash of each message's tag, so the filter reads no record. Tags with equal
hashes pass, and clients compare the text. SQL92 needs the properties. Source: RocketMQ 5.3.3 FilterAPI.
"""

from collections.abc import Callable

import msgspec

from broker.filter.core.sql import TEXT_CHARACTERS_MAX, BadSubscription, Expression, compile_sql

SQL_WEIGHT = 8
"""A parsed SQL92 expression uses 160 bytes for each character, a set of tags twenty."""
TAG = "TAG"
SQL92 = "SQL92"
ALL = "*"


class MessageFilter(msgspec.Struct, frozen=True):
    """tag_codes None: every tag matches. sql None: all properties match."""

    tag_codes: frozenset[int] | None = None
    sql: Expression | None = None


MATCH_ALL = MessageFilter()


def tags_of(sub_string: str) -> list[str]:
    """Returns the tags of an expression: `a || b` -> [a, b]. Empty: all tags."""
    tags = [tag.strip() for tag in sub_string.split("||")]
    return [] if ALL in tags else [tag for tag in tags if tag]


def weight_of(sub_string: str, expression_type: str) -> int:
    """Returns the size for limits of subscriptions: the characters, of SQL92 eightfold."""
    return len(sub_string) * (SQL_WEIGHT if expression_type == SQL92 else 1)


def parse(sub_string: str, expression_type: str, code_of: Callable[[str], int]) -> MessageFilter:
    """Returns the filter of an expression. code_of: the hash of a tag.

    Raises BadSubscription if the expression type is unknown, or the text is not an expression of it or above
    TEXT_CHARACTERS_MAX.
    """
    if expression_type in (TAG, ""):
        if len(sub_string) > TEXT_CHARACTERS_MAX:  # brokers keep thousands of them
            raise BadSubscription(f"tags of {len(sub_string)} characters; {TEXT_CHARACTERS_MAX} is the limit")
        tags = tags_of(sub_string)
        return MessageFilter(frozenset(map(code_of, tags))) if tags else MATCH_ALL
    if expression_type != SQL92:
        raise BadSubscription(f"expression type {expression_type!r} is unknown; known are TAG and SQL92")
    if sub_string.strip() in ("", ALL):
        return MATCH_ALL
    return MessageFilter(sql=compile_sql(sub_string))
