"""mqadmin queryMsgTraceById: the history of a message, from what its clients wrote to the trace topic.

Source: RocketMQ 5.3.3 QueryMsgTraceByIdSubCommand, TraceView; the records: keelmq/client/core/traces.py.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import typer

from cli.mqadmin.commands.query import LONG_MAX, QUERY_NUMS, found_messages
from cli.mqadmin.layouts import message as layouts_message
from cli.mqadmin.layouts.message import TraceRow
from cli.mqadmin.shell import Action, NamesrvAddr, Output, command
from keelmq.client.admin import AdminClient, AdminError
from keelmq.client.core.traces import NULL, fields_of
from keelmq.client.message import MessageExt
from keelmq.client.tracing import TRACE_TOPIC
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.broker import QueryMessageRequest

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


@command("queryMsgTraceById")
def query_trace(
    namesrv_addr: NamesrvAddr,
    msg_id: Annotated[str, typer.Option("-i", "--msgId", help="The producer's id (msgId of a send)")],
    topic: Annotated[
        str, typer.Option("-t", "--traceTopic", help="Topic of the traces, msgTraceTopicName")
    ] = TRACE_TOPIC,
    begin_ms: Annotated[int, typer.Option("-b", "--beginTimestamp", help="Stored at or after, ms")] = 0,
    end_ms: Annotated[int, typer.Option("-e", "--endTimestamp", help="Stored at or before, ms")] = LONG_MAX,
    count: Annotated[
        int, typer.Option("-c", "--maxNum", min=1, help="At most this many trace messages from each broker")
    ] = QUERY_NUMS,
) -> Action:
    """Who sent and consumed a message, when, and the results; its clients must have traced it."""

    async def action(admin: AdminClient) -> Output:
        header = QueryMessageRequest(
            topic=topic, key=msg_id, max_num=count, begin_timestamp=begin_ms, end_timestamp=end_ms
        )
        messages, problems = await _found(admin, namesrv_addr, header)
        rows = rows_of(messages, msg_id)
        if not rows:
            raise _no_trace(namesrv_addr, header)
        return Output([row.value for row in rows], layouts_message.traces(rows), problems)

    return action


async def _found(
    admin: AdminClient, namesrv_addr: str, header: QueryMessageRequest
) -> tuple[list[MessageExt], tuple[str, ...]]:
    try:
        return await found_messages(admin, namesrv_addr, header)
    except AdminError as error:
        if error.code == ResponseCode.QUERY_NOT_FOUND:
            raise _no_trace(namesrv_addr, header) from None
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        made = "brokers create it at their start with traceTopicEnable"
        remark = f"there is no topic {header.topic}: nothing has been traced; {made}"
        raise AdminError("queryMsgTraceById", namesrv_addr, remark, ResponseCode.QUERY_NOT_FOUND) from None


def _no_trace(namesrv_addr: str, header: QueryMessageRequest) -> AdminError:
    how = "clients write one only if asked to (keelmq.client.TraceHook, Java's enableMsgTrace)"
    remark = f"no trace of {header.key} in {header.topic}: {how}"
    return AdminError("queryMsgTraceById", namesrv_addr, remark, ResponseCode.QUERY_NOT_FOUND)


def rows_of(messages: Sequence[MessageExt], msg_id: str) -> list[TraceRow]:
    """Returns the rows in order of time. Skips what is not a record: anybody may send to the trace topic."""
    records = [record for message in messages for record in _records(message)]
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


def _records(message: MessageExt) -> Iterator[dict[str, Any]]:
    for kind, *fields in fields_of(message.body.decode(errors="replace")):
        names = FIELDS.get(kind)
        if names is None:
            continue
        texts = {name: text for name, text in zip(names, fields, strict=False) if text not in ("", NULL)}
        if "msgId" in texts:
            host = message.born_host.rpartition(":")[0]
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
