"""Maps whose keys are queues, in fastjson's notation: {{"brokerName":...}:value, ...}.

This is not standard JSON. Java tools read no other form, so our brokers write it, and our tools read it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from keelmq.remoting.lenient_json import REWRITTEN_BYTES_MAX, load_lenient

_TOKEN: Final = re.compile(
    r"""
    (?P<before>[{,]\s*) (?P<key>\{ (?:[^{}"] | "(?:[^"\\]|\\.)*")* \}) (?=\s*:)   # an object as a key
    | "(?:[^"\\]|\\.)*(?:"|\\?\Z)   # an unterminated string runs to the end, as in lenient_json
    """,
    re.VERBOSE | re.DOTALL,
)


class QueueKey(NamedTuple):
    """A queue as the key of a map."""

    topic: str
    broker_name: str
    queue_id: int

    @classmethod
    def from_json(cls, text: str) -> "QueueKey":
        """Returns the queue. Raises ValueError, KeyError or TypeError if the text is not one."""
        value = json.loads(text)
        return cls(str(value["topic"]), str(value["brokerName"]), int(value["queueId"]))


def queue_json(queue: QueueKey) -> dict[str, Any]:
    """Returns the queue as a JSON object, with members in fastjson's order."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def dump_queue_map(name: str, entries: Iterable[tuple[QueueKey, Any]], **members: Any) -> bytes:
    """Returns {"<name>": {queue: value, ...}, <other members>}; members in alphabetical order."""
    parts = {key: _compact(value) for key, value in members.items()} | {name: _table(entries)}
    return ("{" + ",".join(f'"{key}":{parts[key]}' for key in sorted(parts)) + "}").encode()


def dump_queue_maps(name: str, tables: Mapping[str, Iterable[tuple[QueueKey, Any]]]) -> bytes:
    """Returns {"<name>": {"<key>": {queue: value, ...}, ...}}; keys in alphabetical order."""
    inner = ",".join(f"{_compact(key)}:{_table(entries)}" for key, entries in sorted(tables.items()))
    return f'{{"{name}":{{{inner}}}}}'.encode()


def load_queue_map(raw: bytes, name: str) -> tuple[dict[QueueKey, Any], dict[str, Any]]:
    """Returns the map called `name`, and the other members; a nested map of queues has JSON texts as keys
    (QueueKey.from_json). ValueError: `raw` has another form."""
    text = _TOKEN.sub(_quoted, raw.decode())
    try:
        value = json.loads(text)
        table = {QueueKey.from_json(key): item for key, item in (value.pop(name, None) or {}).items()}
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a map of queues: {error}") from None
    return table, value


def load_standard(raw: bytes) -> Any:
    """Returns the value of JSON in fastjson's notation; a queue that is a key becomes its JSON text.
    ValueError: `raw` is no JSON, or too large to be rewritten."""
    if len(raw) > REWRITTEN_BYTES_MAX:
        raise ValueError(f"more than {REWRITTEN_BYTES_MAX} bytes")
    return load_lenient(_TOKEN.sub(_quoted, raw.decode()).encode())


def _table(entries: Iterable[tuple[QueueKey, Any]]) -> str:
    rows = (f"{_compact(queue_json(queue))}:{_compact(value)}" for queue, value in entries)
    return "{" + ",".join(rows) + "}"


def _quoted(match: re.Match[str]) -> str:
    return match[0] if match["key"] is None else match["before"] + json.dumps(match["key"])


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
