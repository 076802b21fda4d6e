"""Requests of transactions: the producer's decision (37), the broker's check (39), and resuming checks (323).

Source: RocketMQ 5.3.3 EndTransactionRequestHeader, CheckTransactionStateRequestHeader.
"""

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Operation, Wire


class EndTransactionRequest(Wire):
    """Header of 37. commit_or_rollback: 8 commit, 12 rollback, 0 not known yet. tran_state_table_offset: the
    half message's queue offset. forwarded (ours): set by a broker that received the request but is no longer
    master."""

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None
    forwarded: bool | None = None


class CheckTransactionStateRequest(Wire):
    """Header of 39, broker to producer; the body is the half message. msg_id: the message's UNIQ_KEY."""

    topic: str | None = None
    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str
    transaction_id: str
    offset_msg_id: str
    bname: str


class ResumeCheckRequest(Wire):
    """Header of 323. msg_id: the offset message id of a half message whose checks were given up, 32 hex
    digits."""

    topic: str | None = None
    msg_id: str


RESUME_CHECK_HALF_MESSAGE = Operation(
    RequestCode.RESUME_CHECK_HALF_MESSAGE, "resumeCheckHalfMessage", ResumeCheckRequest
)
END_TRANSACTION = Operation(RequestCode.END_TRANSACTION, "endTransaction", EndTransactionRequest)
CHECK_TRANSACTION_STATE = Operation(
    RequestCode.CHECK_TRANSACTION_STATE,
    "checkTransactionState",
    CheckTransactionStateRequest,
    request_body=bytes,
    oneway=True,
)
