"""The history of one message from the records of the trace topic; their format: traces.py."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from keelmq.client.core.traces import NULL, fields_of

PUB, BEFORE, AFTER, END = "Pub", "SubBefore", "SubAfter", "EndTransaction"
FIELDS: Final[dict[str, tuple[str, ...]]] = {
    PUB: (
        "time", "region", "group", "topic", "msgId", "tags", "keys", "storeHost", "bodyLength", "costTime",
        "msgType", "offsetMsgId", "success",
    ),
    BEFORE: ("time", "region", "group", "requestId", "msgId", "retryTimes", "keys"),
    AFTER: ("requestId", "msgId", "costTime", "success", "keys", "contextCode", "time", "group"),
    END: (
        "time", "region", "group", "topic", "msgId", "tags", "keys", "storeHost", "msgType", "transactionId",
        "state", "fromCheck",
    ),
}  # fmt: skip
"""Older clients leave out the last fields; newer ones append more."""


class TraceRow(NamedTuple):
    """What one client did with a message. value: the whole record."""

    kind: str
    group: str
    client_host: str
    time_ms: int
    cost_ms: int
    status: str
    value: Mapping[str, Any]


def rows_of(traces: Iterable[tuple[str, str]], msg_id: str) -> list[TraceRow]:
    """Returns the rows in order of time. traces: body and born host of each trace message. Skips what is not
    a record: any client may send to the trace topic."""
    records = [record for body, born_host in traces for record in _records(body, born_host)]
    begun = {record["requestId"]: record for record in records if record["type"] == BEFORE}
    rows = {}
    for record in records:
        if record.get("msgId") != msg_id:
            continue
        before = begun.get(record.get("requestId", ""), {}) if record["type"] == AFTER else {}
        row = _row({**before, **record})
        rows[tuple(sorted(row.value.items()))] = row  # a trace message that was sent twice counts once
    ended = {row.value["requestId"] for row in rows.values() if row.kind == AFTER}
    shown = [row for row in rows.values() if row.kind != BEFORE or row.value["requestId"] not in ended]
    return sorted(shown, key=lambda row: (row.time_ms, row.kind, row.group))


def _records(body: str, born_host: str) -> Iterator[dict[str, Any]]:
    for kind, *fields in fields_of(body):
        names = FIELDS.get(kind)
        if names is None:
            continue
        texts = {name: text for name, text in zip(names, fields, strict=False) if text not in ("", NULL)}
        if "msgId" in texts:
            host = born_host.rpartition(":")[0]
            yield {"type": kind, "requestId": "", "clientHost": host} | texts


def _row(record: dict[str, Any]) -> TraceRow:
    numbers = {name: _number(record.get(name)) for name in ("time", "costTime")}
    status = "success" if record.get("success") == "true" else "failed"
    if record["type"] == BEFORE:
        status = "running"
    elif record["type"] == END:
        status = record.get("state", "")
    value = {key: text for key, text in record.items() if key != "success"} | numbers | {"status": status}
    return TraceRow(
        record["type"],
        record.get("group", ""),
        record["clientHost"],
        numbers["time"],
        numbers["costTime"],
        status,
        value,
    )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 19 else 0
