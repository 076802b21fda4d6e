"""mqadmin queryMsgTraceById: the history of a message, from what its clients wrote to the trace topic.

Source: RocketMQ 5.3.3 QueryMsgTraceByIdSubCommand, TraceView; the records: keelmq/client/core/trace_rows.py.
"""

from typing import Annotated

import typer

from cli.command_line import NamesrvAddr
from cli.mqadmin.commands.query import found_messages
from cli.mqadmin.layouts import message as layouts_message
from cli.mqadmin.shell import Action, Output, command
from keelmq.client.admin import AdminClient, AdminError
from keelmq.client.admin.messages import LONG_MAX, QUERY_NUMS
from keelmq.client.core.trace_rows import rows_of
from keelmq.client.message import MessageExt
from keelmq.client.tracing import TRACE_TOPIC
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.broker import QueryMessageRequest


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
        bodies = (
            (each.body.decode(errors="replace"), each.born_host) for each in messages if not each.body_error
        )
        rows = rows_of(bodies, msg_id)
        problems += tuple(
            f"trace message {each.offset_msg_id}: {each.body_error}" for each in messages if each.body_error
        )
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
