"""Timer messages: recall (370), and requests of RocketMQ's replicas about timers (60, 61).

Source: RocketMQ 5.3.3 RecallMessageRequestHeader, TimerCheckpoint, TimerMetrics.
"""

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Operation, Wire


class RecallMessageRequest(Wire):
    """Header of 370. recall_handle: from the response to the send. forwarded (ours): set by a broker that
    received the request but is no longer master."""

    producer_group: str | None = None
    topic: str
    recall_handle: str
    forwarded: bool | None = None


class RecallMessageResponse(Wire):
    """Response header of 370. msg_id: UNIQ_KEY of the recalled message."""

    msg_id: str


RECALL_MESSAGE = Operation(
    RequestCode.RECALL_MESSAGE, "recallMessage", RecallMessageRequest, RecallMessageResponse
)
GET_TIMER_CHECK_POINT = Operation(
    RequestCode.GET_TIMER_CHECK_POINT, "getTimerCheckPoint", response_body=bytes
)
GET_TIMER_METRICS = Operation(RequestCode.GET_TIMER_METRICS, "getTimerMetrics")
