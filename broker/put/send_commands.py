"""Send requests (310, 320, 10): the types that msgspec decodes, and the lenient decoder for odd headers."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec

from broker.admission.fast_path import Int32
from keelmq.remoting.booleans import is_true

_NAMES_V2: Final = {
    "group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "max_reconsume_times": "l",
    "batch": "m",
}
_NAMES_V1: Final = {
    "default_topic": "defaultTopic",
    "default_topic_queue_nums": "defaultTopicQueueNums",
    "queue_id": "queueId",
    "sys_flag": "sysFlag",
    "born_timestamp": "bornTimestamp",
    "reconsume_times": "reconsumeTimes",
    "max_reconsume_times": "maxReconsumeTimes",
}


NO_MAXIMUM: Final = -1
"""maxReconsumeTimes of a client that sends none, or an illegal one: the group's retryMaxTimes applies."""


class SendFieldsV2(msgspec.Struct, gc=False, rename=_NAMES_V2):
    """extFields of 310 that the broker uses. group: KEELMQ_FORWARDED in a message from another broker."""

    topic: str
    queue_id: int
    born_timestamp: int = 0
    sys_flag: int = 0
    flag: int = 0
    properties: str = ""
    reconsume_times: int = 0
    default_topic: str = ""
    default_topic_queue_nums: int = 0
    batch: bool = False
    max_reconsume_times: int = NO_MAXIMUM
    group: str = ""


class SendFieldsV1(msgspec.Struct, gc=False, rename=_NAMES_V1):
    """extFields of 10: the same attributes, under long names on the wire."""

    topic: str
    queue_id: int
    born_timestamp: int = 0
    sys_flag: int = 0
    flag: int = 0
    properties: str = ""
    reconsume_times: int = 0
    default_topic: str = ""
    default_topic_queue_nums: int = 0
    batch: bool = False
    max_reconsume_times: int = NO_MAXIMUM


class SendCommandV2(msgspec.Struct, gc=False, rename={"ext": "extFields"}):
    """A request 310 or 320."""

    opaque: Int32
    ext: SendFieldsV2
    flag: int = 0


class SendCommandV1(msgspec.Struct, gc=False, rename={"ext": "extFields"}):
    """A request 10."""

    opaque: Int32
    ext: SendFieldsV1
    flag: int = 0


SendCommand: TypeAlias = SendCommandV1 | SendCommandV2


def _number(ext: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = ext[name] if default is None else ext.get(name) or default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"header field {name} is not a number: {text!r}") from None


def _lenient_fields(ext: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the attributes that both types have. KeyError: a field is missing; ValueError: no number."""
    return {
        "topic": ext[names.get("topic", "topic")],
        "queue_id": _number(ext, names["queue_id"]),
        "born_timestamp": _number(ext, names["born_timestamp"], 0),
        "sys_flag": _number(ext, names["sys_flag"], 0),
        "flag": _number(ext, names.get("flag", "flag"), 0),
        "properties": ext.get(names.get("properties", "properties")) or "",
        "reconsume_times": _number(ext, names["reconsume_times"], 0),
        "default_topic": ext.get(names["default_topic"]) or "",
        "default_topic_queue_nums": _number(ext, names["default_topic_queue_nums"], 0),
        "max_reconsume_times": _number(ext, names["max_reconsume_times"], NO_MAXIMUM),
        "batch": is_true(ext.get(names.get("batch", "batch"))),
    }


def lenient_v2(code: int, opaque: int, flag: int, ext: Mapping[str, str]) -> SendCommandV2:
    """Returns a 310 or 320 from text fields. Raises KeyError or ValueError."""
    fields = SendFieldsV2(**_lenient_fields(ext, _NAMES_V2), group=ext.get(_NAMES_V2["group"]) or "")
    return SendCommandV2(opaque, fields, flag)


def lenient_v1(code: int, opaque: int, flag: int, ext: Mapping[str, str]) -> SendCommandV1:
    """Returns a 10 from text fields. Raises KeyError or ValueError."""
    return SendCommandV1(opaque, SendFieldsV1(**_lenient_fields(ext, _NAMES_V1)), flag)
