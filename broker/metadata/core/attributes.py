"""Attributes of topics and groups as administrators change them: "+key=value" sets, "-key" removes. Pure.

An attribute that this broker would store without implementing it is refused with the reason. Tables of
RocketMQ may contain some: they are loaded, without_effect() lists them, and they can be removed.

Source: RocketMQ 5.3.3 AttributeParser, AttributeUtil, TopicAttributes; 5.5 SubscriptionGroupAttributes.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

MESSAGE_TYPE: Final = "message.type"
PRIORITY_FACTOR: Final = "priority.factor"


class Attribute(msgspec.Struct, frozen=True):
    """changeable: it may be changed after creation. allows(text): returns whether the value is legal. values:
    the legal ones, for errors. done: the values that have an effect, or need none; None: all. lacking: the
    feature that the others need."""

    changeable: bool
    allows: Callable[[str], bool]
    values: str
    done: frozenset[str] | None = None
    lacking: str = ""

    def refusal(self, key: str, value: str) -> str | None:
        """Returns why this legal value is not implemented; None: it is."""
        return None if self.done is None or value in self.done else f"{key}={value}: {self.lacking}"


def whole_number(text: str) -> bool:
    """Returns whether the text is a decimal number of 64 bits at most."""
    return text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 20


def is_percentage(text: str) -> bool:
    """Returns whether the text is a whole number from 0 to 100."""
    return whole_number(text) and 0 <= int(text) <= 100


def priority_factor(topic: Mapping[str, str], group: Mapping[str, str]) -> int:
    """Returns how many of 100 pops read a topic's queues in the order of priority, from the attributes of the
    topic and the group."""
    if topic.get(MESSAGE_TYPE) != "PRIORITY":
        return 0
    factor = group.get(PRIORITY_FACTOR, "")
    return int(factor) if is_percentage(factor) else 100


def _one_of(
    *values: str, changeable: bool = True, done: frozenset[str] | None = None, lacking: str = ""
) -> Attribute:
    return Attribute(changeable, values.__contains__, " ".join(values), done, lacking)


TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    "queue.type": _one_of("BatchCQ", "SimpleCQ", changeable=False),
    "cleanup.policy": _one_of(
        "DELETE",
        "COMPACTION",
        changeable=False,
        done=frozenset({"DELETE"}),
        lacking="there is no compaction: all messages are kept, and retention deletes the oldest ones of all "
        "topics",
    ),
    MESSAGE_TYPE: _one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY"),
    "reserve.time": Attribute(
        True,
        whole_number,
        "a whole number of 64 bits",
        frozenset({"-1"}),
        "a topic has no retention time of its own: all topics share the CommitLog, see fileReservedTime",
    ),
}
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {
    PRIORITY_FACTOR: Attribute(True, is_percentage, "a whole number from 0 to 100"),
}


def without_effect(known: Mapping[str, Attribute], attributes: Mapping[str, str]) -> list[str]:
    """Returns a text for each of a table's attributes that this broker does not implement."""
    found = []
    for key, value in sorted(attributes.items()):
        attribute = known.get(key)
        why = f"{key}={value}: unknown here" if attribute is None else attribute.refusal(key, value)
        if why is not None:
            found.append(why)
    return found


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
    known: Mapping[str, Attribute],
    current: Mapping[str, str],
    changes: Mapping[str, str],
    *,
    creating: bool,
) -> dict[str, str]:
    """Returns the attributes after the changes. Raises ValueError with the reason if a change is refused."""
    after = dict(current)
    for change, value in changes.items():
        sign, key = change[:1], change[1:]
        if sign not in ("+", "-") or not key:
            raise ValueError(f"wrong format key: {change}")
        if creating and sign == "-":
            raise ValueError(f"only add attribute is supported while creating. key: {key}")
        is_idle = key in current and bool(without_effect(known, {key: current[key]}))
        if sign == "-" and is_idle:  # regardless of its rules
            del after[key]
            continue
        attribute = known.get(key)
        if attribute is None:
            names = ", ".join(sorted(known)) or "none"
            raise ValueError(f"unsupported key: {key}; known are {names}")
        if not creating and not attribute.changeable:
            raise ValueError(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "-":
            if key not in after:
                raise ValueError(f"attempt to delete a nonexistent key: {key}")
            del after[key]
            continue
        if not attribute.allows(value):
            raise ValueError(f"value {value!r} is not one of attribute {key}: allowed is {attribute.values}")
        if (refusal := attribute.refusal(key, value)) is not None:
            raise ValueError(refusal)
        after[key] = value
    return after
