"""Maps from queues as fastjson writes them: with objects as keys, which only Java's tools read."""

import json
from collections.abc import Iterable, Mapping
from typing import Any


def by_queue(broker_name: str, entries: Iterable[tuple[str, int, Any]]) -> str:
    """`{{"brokerName":"b","queueId":0,"topic":"T"}:value,...}` from (topic, queue id, value)."""
    return "{" + ",".join(
        f"{compact({'brokerName': broker_name, 'queueId': queue_id, 'topic': topic})}:{compact(value)}"
        for topic, queue_id, value in entries
    ) + "}"  # fmt: skip


def with_table(name: str, table: str, others: Mapping[str, Any]) -> bytes:
    """A body: the other members, and by_queue() under this name."""
    members = [f"{compact(key)}:{compact(value)}" for key, value in others.items()]
    return ("{" + ",".join([*members, f"{compact(name)}:{table}"]) + "}").encode()


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
