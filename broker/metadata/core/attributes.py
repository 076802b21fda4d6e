"""Attributes of topics and groups as administrators change them: "+key=value" sets, "-key" removes. Pure.

Source: RocketMQ 5.3.3 AttributeParser, AttributeUtil, TopicAttributes.
"""

from collections.abc import Callable, Mapping

import msgspec


class Attribute(msgspec.Struct, frozen=True):
    """changeable: it may be changed after creation. allows(text): returns whether the value is legal."""

    changeable: bool
    allows: Callable[[str], bool]


def one_of(*values: str) -> Callable[[str], bool]:
    """Returns an `allows` that accepts these values."""
    return lambda text: text in values


def whole_number(text: str) -> bool:
    """Returns whether the text is a decimal number of 64 bits at most."""
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 20


TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": Attribute(False, one_of("BatchCQ", "SimpleCQ")),
    "cleanup.policy": Attribute(False, one_of("DELETE", "COMPACTION")),
    "message.type": Attribute(True, one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")),
    "reserve.time": Attribute(True, whole_number),
}


def parse_changes(text: str | None) -> dict[str, str]:
    """Parses "+a=b,-c" into {"+a": "b", "-c": ""}. Raises ValueError."""
    changes: dict[str, str] = {}
    for part in (text or "").split(","):
        if not part:
            continue
        key, equals, value = part.partition("=")
        if not equals and not part.startswith("-"):
            raise ValueError(f"attribute {part!r} has no value")
        if equals and not part.startswith("+"):
            raise ValueError(f"attribute {part!r}: a change begins with + (set) or - (remove)")
        if key in changes:
            raise ValueError(f"key duplication: {key}")
        changes[key] = value
    return changes


def alter(
    known: Mapping[str, Attribute] | None,
    current: Mapping[str, str],
    changes: Mapping[str, str],
    *,
    creating: bool,
) -> dict[str, str]:
    """Returns the attributes after the changes. `known` None: any name is legal. Raises ValueError, with the
    reason, if a change is refused."""
    after = dict(current)
    for change, value in changes.items():
        sign, key = change[:1], change[1:]
        if sign not in ("+", "-") or not key:
            raise ValueError(f"wrong format key: {change}")
        if creating and sign == "-":
            raise ValueError(f"only add attribute is supported while creating. key: {key}")
        attribute = None if known is None else known.get(key)
        if known is not None and attribute is None:
            raise ValueError(f"unsupported key: {key}; known are {', '.join(sorted(known))}")
        if attribute is not None and not creating and not attribute.changeable:
            raise ValueError(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "-":
            if key not in after:
                raise ValueError(f"attempt to delete a nonexistent key: {key}")
            del after[key]
            continue
        if attribute is not None and not attribute.allows(value):
            raise ValueError(f"value {value!r} is not one of attribute {key}")
        after[key] = value
    return after
