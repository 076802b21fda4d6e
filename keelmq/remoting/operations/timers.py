"""Timer messages: recalling one (370), and the requests of RocketMQ's replicas about them (60, 61).

Source: RocketMQ 5.3.3 RecallMessageRequestHeader, TimerCheckpoint, TimerMetrics.
"""

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Empty, Operation, Wire


class RecallMessageRequest(Wire):
    """recall_handle: as the send answered it. forwarded (ours): by a broker that is not master any more."""

    producer_group: str | None = None
    topic: str
    recall_handle: str
    forwarded: bool | None = None


class RecallMessageResponse(Wire):
    """msg_id: UNIQ_KEY of the message that was taken back."""

    msg_id: str


RECALL_MESSAGE = Operation(
    RequestCode.RECALL_MESSAGE, "recallMessage", RecallMessageRequest, RecallMessageResponse
)
GET_TIMER_CHECK_POINT = Operation(
    RequestCode.GET_TIMER_CHECK_POINT, "getTimerCheckPoint", Empty, Empty, response_body=bytes
)
GET_TIMER_METRICS = Operation(RequestCode.GET_TIMER_METRICS, "getTimerMetrics", Empty, Empty)
