"""mqadmin queryMsgTraceById: what clients wrote into the trace topic, ours and those of RocketMQ."""

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime

import pytest

from keelmq.client import Message, Producer
from keelmq.client.core.trace_rows import TraceRow
from keelmq.client.core.trace_rows import rows_of as rows_of_bodies
from keelmq.client.core.traces import (
    FIELD_END,
    RECORD_END,
    ContextCode,
    MsgType,
    TraceRecord,
    end_transaction,
    pub,
    sub_after,
    sub_before,
)
from keelmq.client.message import MessageExt
from keelmq.client.tracing import TRACE_TOPIC
from tests.unit.cli.mqadmin.test_mqadmin_broker import World, ran, value

ID, SENT_MS = "AC1100010000000000000001", 1_795_240_973_000
WHEN = datetime.fromtimestamp(SENT_MS / 1000).strftime("%Y-%m-%d %H:%M:%S")
LINE = "%-10s %-20s %-20s %-20s %-10s %s"


def sent(msg_id: str = ID, *, success: bool = True) -> TraceRecord:
    return pub(
        time_ms=SENT_MS, region="R", group="g-send", topic="orders", msg_id=msg_id, tags=None, keys="k1",
        store_host="h:1", body_bytes=7, cost_ms=12, msg_type=MsgType.NORMAL, offset_msg_id="F0",
        success=success,
    )  # fmt: skip


def began(group: str, request_id: str, msg_id: str = ID) -> TraceRecord:
    return sub_before(
        time_ms=SENT_MS + 1_000, region="R", group=group, request_id=request_id, msg_id=msg_id, retry_times=2,
        keys=None,
    )  # fmt: skip


def ended(group: str, request_id: str, *, success: bool = True) -> TraceRecord:
    return sub_after(
        time_ms=SENT_MS + 2_000, group=group, request_id=request_id, msg_id=ID, cost_ms=5, success=success,
        keys=None, code=ContextCode.SUCCESS if success else ContextCode.FAILED,
    )  # fmt: skip


def rows_of(messages: Sequence[MessageExt], msg_id: str) -> list[TraceRow]:
    return rows_of_bodies(((each.body.decode(errors="replace"), each.born_host) for each in messages), msg_id)


def message(*records: TraceRecord | str) -> MessageExt:
    body = "".join(each if isinstance(each, str) else each.text for each in records).encode()
    return MessageExt(TRACE_TOPIC, body, {}, 0, 0, 0, 0, 0, 1, "10.0.0.9:4711", 2, "h:1", 0, 99)


def raw(*fields: object) -> str:
    return FIELD_END.join(map(str, fields)) + RECORD_END


def test_a_message_that_was_traced_when_it_was_sent(world: World) -> None:
    here = ("sendMessage", "-n", world.namesrv, "-t", "orders", "-p", "x", "-k", "trace-key", "-m")
    told = value(*here, "true")
    (row,) = value("queryMsgTraceById", "-n", world.namesrv, "-i", told["msgId"])
    assert (row["type"], row["group"], row["status"], row["topic"]) == ("Pub", "mqadmin", "success", "orders")
    assert row["offsetMsgId"] == told["offsetMsgId"] and row["clientHost"] == "127.0.0.1"
    plain = value(*here, "false")
    nothing = ran("queryMsgTraceById", "-n", world.namesrv, "-i", plain["msgId"], code=1)
    assert "QUERY_NOT_FOUND" in nothing.stderr and "client.TraceHook" in nothing.stderr


def test_sends_and_consumers_in_the_layout(world: World) -> None:
    first, second = [began("g-b", "R1"), ended("g-b", "R1")], [began("g-a", "R2")]
    records = [sent(), *first, *second, ended("g-a", "R2", success=False)]

    async def write() -> None:
        async with Producer(world.namesrv) as producer:
            text = "".join(record.text for record in records)
            await producer.send(Message(TRACE_TOPIC, text.encode(), keys=(ID,)))

    asyncio.run(write())
    lines = ran("queryMsgTraceById", "-n", world.namesrv, "-i", ID).stdout.splitlines()
    later = WHEN[:-2] + f"{int(WHEN[-2:]) + 2:02d}"
    host = "127.0.0.1"
    assert lines == [
        LINE % ("#Type", "#ProducerGroup", "#ClientHost", "#SendTime", "#CostTimes", "#Status"),
        LINE % ("Pub", "g-send", host, WHEN, "12ms", "success"),
        "",
        LINE % ("#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime", "#CostTimes", "#Status"),
        LINE % ("Sub", "g-a", host, later, "5ms", "failed"),
        "",
        LINE % ("#Type", "#ConsumerGroup", "#ClientHost", "#ConsumerTime", "#CostTimes", "#Status"),
        LINE % ("Sub", "g-b", host, later, "5ms", "success"),
    ]
    alias = ran("QueryMsgTraceById", "-n", world.namesrv, "-i", ID, "--json").stdout
    assert [(row["type"], row["retryTimes"]) for row in json.loads(alias)[1:]] == [("SubAfter", "2")] * 2


def test_what_goes_on_what_ended_and_what_is_another_messages() -> None:
    decision = end_transaction(
        time_ms=SENT_MS, region="R", group="g-send", topic="orders", msg_id=ID, tags=None, keys=None,
        store_host="h:1", transaction_id="T", committed=False, from_check=True,
    )  # fmt: skip
    rows = rows_of([message(sent("OTHER"), began("g", "R9"), decision), message(sent(success=False))], ID)
    assert [(row.kind, row.status) for row in rows] == [
        ("EndTransaction", "ROLLBACK_MESSAGE"), ("Pub", "failed"), ("SubBefore", "running"),
    ]  # fmt: skip
    assert {row.client_host for row in rows} == {"10.0.0.9"}


def test_a_record_that_came_twice_counts_once() -> None:
    assert len(rows_of([message(sent()), message(sent(), sent())], ID)) == 1


def test_records_of_older_and_newer_clients() -> None:
    """Time and group of an end came with 5.0 (the beginning has them); what newer ones add is passed over."""
    old = message(began("g", "R1"), raw("SubAfter", "R1", ID, 5, "true", "k"))
    (row,) = rows_of([old], ID)
    assert (row.kind, row.group, row.time_ms, row.cost_ms) == ("SubAfter", "g", SENT_MS + 1_000, 5)
    newer = raw(*sent().text.strip(RECORD_END).split(FIELD_END), "10.9.9.9", "more")
    (row,) = rows_of([message(newer)], ID)
    assert row.value["offsetMsgId"] == "F0"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "\x01\x02\x02",
        "nonsense",
        raw("Pub"),
        raw("Recall", 1, ID),
        raw("SubAfter", "", "", "x"),
        "\x00" * 99,
    ],
)
def test_what_is_no_record_is_passed_over(body: str) -> None:
    assert rows_of([message(body), message(sent())], ID)[0].kind == "Pub"


def test_numbers_that_are_none() -> None:
    (row,) = rows_of(
        [message(raw("Pub", "soon", "R", "g", "t", ID, "null", "null", "h", "-1", "9" * 40))], ID
    )
    assert (row.time_ms, row.cost_ms, row.status) == (0, 0, "failed")


def test_nobody_has_traced_anything(world: World) -> None:
    here = ("queryMsgTraceById", "-n", world.namesrv, "-i", ID)
    unknown = ran(*here, "-t", "no_such_topic", code=1)
    assert "nothing has been traced" in unknown.stderr and "traceTopicEnable" in unknown.stderr
