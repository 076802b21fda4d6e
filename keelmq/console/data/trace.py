"""The trace of a message: who sent and consumed it, when, and the results, from the trace topic."""

from typing import Final

from pydantic import Field

from keelmq.client.admin.messages import QUERY_NUMS
from keelmq.client.core.trace_rows import rows_of
from keelmq.client.tracing import TRACE_TOPIC
from keelmq.console.data.cluster_context import (
    ClusterContext,
    Missing,
    ServerProblem,
    ServerProblems,
    ask_each,
    brokers_of,
    route_of,
)
from keelmq.console.data.messages import INFLATED_MAX
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Wire
from keelmq.remoting.operations.broker import QueryMessageRequest
from keelmq.runtime.clock import wall_ms

ROWS_MAX: Final = 500
TEXT_MAX: Final = 512


class TraceStep(Wire):
    """kind: "sent", "consuming" (begun, not ended), "consumed", "transaction ended". details: the other
    fields of the record."""

    kind: str
    time_ms: int | None
    cost_ms: int | None
    group: str
    client: str
    status: str
    topic: str = ""
    details: dict[str, str] = Field(default_factory=dict)


class TraceView(Wire):
    """steps: in the order of time. sentMs: when it was sent, null: no record says it."""

    taken_ms: int
    msg_id: str
    topic: str
    sent_ms: int | None
    steps: list[TraceStep]
    cut: str = ""
    problems: list[ServerProblem] = Field(default_factory=list)


_KINDS: Final = {
    "Pub": "sent", "SubBefore": "consuming", "SubAfter": "consumed", "EndTransaction": "transaction ended",
}  # fmt: skip


async def trace(context: ClusterContext, msg_id: str, *, topic: str = TRACE_TOPIC) -> TraceView:
    """Returns the history of a message by the producer's id. Raises Missing: nothing is traced."""
    server_problems, messages = ServerProblems(), list[tuple[str, str]]()
    header = QueryMessageRequest(topic=topic, key=msg_id, max_num=QUERY_NUMS)
    try:
        brokers = brokers_of(await route_of(context, topic))
    except Missing:
        raise Missing(
            f"there is no topic {topic}: nothing has been traced; brokers create it with traceTopicEnable"
        ) from None

    async def ask(address: str) -> int:
        found = await context.admin.messages.query_messages(address, header, inflated_max=INFLATED_MAX)
        messages.extend(
            (each.body.decode(errors="replace"), each.born_host) for each in found if not each.body_error
        )
        return len(found)

    results = await ask_each(server_problems, brokers, ask, unless=(ResponseCode.QUERY_NOT_FOUND,), at_once=2)
    rows = rows_of(messages, msg_id)
    steps = [
        TraceStep(
            kind=_KINDS[row.kind],
            time_ms=row.time_ms or None,
            cost_ms=None if row.kind in ("SubBefore", "EndTransaction") else row.cost_ms,
            group=row.group[:TEXT_MAX],
            client=row.client_host,
            status=row.status[:TEXT_MAX],
            topic=str(row.value.get("topic", ""))[:TEXT_MAX],
            details={key: str(value)[:TEXT_MAX] for key, value in row.value.items()},
        )
        for row in rows[:ROWS_MAX]
    ]
    is_full = any(count >= QUERY_NUMS for _, count in results) or len(rows) > ROWS_MAX
    return TraceView(
        taken_ms=wall_ms(),
        msg_id=msg_id,
        topic=topic,
        sent_ms=next((each.time_ms for each in steps if each.kind == "sent"), None),
        steps=steps,
        cut="there may be more: a broker returns 64 trace messages at most" if is_full else "",
        problems=server_problems.listed,
    )
