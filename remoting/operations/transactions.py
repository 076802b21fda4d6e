"""The two requests of a transaction: what a producer decides (37), and the broker's question to it (39).

Source: RocketMQ 5.3.3 EndTransactionRequestHeader, CheckTransactionStateRequestHeader.
"""

from remoting.codes import RequestCode
from remoting.operation import Empty, Operation, Wire


class EndTransactionRequest(Wire):
    """commit_or_rollback: 8, 12, or 0 for not known yet. tran_state_table_offset: the half message's queue
    offset. forwarded (ours): by a broker that is not master any more."""

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None
    forwarded: bool | None = None


class CheckTransactionStateRequest(Wire):
    """msg_id: the message's UNIQ_KEY."""

    topic: str | None = None
    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str
    transaction_id: str
    offset_msg_id: str
    bname: str


END_TRANSACTION = Operation(RequestCode.END_TRANSACTION, "endTransaction", EndTransactionRequest, Empty)
CHECK_TRANSACTION_STATE = Operation(
    RequestCode.CHECK_TRANSACTION_STATE,
    "checkTransactionState",
    CheckTransactionStateRequest,
    Empty,
    request_body=bytes,
    oneway=True,
)
