"""Transaction ids: where a half message is, so that any proxy can end its transaction. Pure."""

from typing import Final

import msgspec

from keelmq.remoting.operations.transactions import EndTransactionRequest
from proxy.core.statuses import Refused
from proxy.wire import messaging_pb2 as pb

FIELDS: Final = 4
CHARACTERS_MAX: Final = 1_024
NUMBER_CHARACTERS_MAX: Final = 18
COMMIT, ROLLBACK = 8, 12
_ENDS: Final = {pb.COMMIT: COMMIT, pb.ROLLBACK: ROLLBACK}


class HalfMessage(msgspec.Struct, frozen=True):
    """A half message. log_offset: in the CommitLog; queue_offset: in the queue of half messages."""

    broker_name: str
    log_offset: int
    queue_offset: int
    message_id: str

    def text(self) -> str:
        """Returns the transaction id."""
        return f"{self.broker_name} {self.log_offset} {self.queue_offset} {self.message_id}"

    def end(
        self, topic: str, resolution: pb.TransactionResolution, source: pb.TransactionSource
    ) -> EndTransactionRequest:
        """Returns the request that ends the transaction. The producer group is the topic. Raises Refused."""
        if resolution not in _ENDS:
            raise Refused(pb.BAD_REQUEST, "the resolution is neither COMMIT nor ROLLBACK")
        return EndTransactionRequest(
            topic=topic,
            producer_group=topic,
            tran_state_table_offset=self.queue_offset,
            commit_log_offset=self.log_offset,
            commit_or_rollback=_ENDS[resolution],
            from_transaction_check=source == pb.SOURCE_SERVER_CHECK,
            msg_id=self.message_id,
            transaction_id=self.message_id,
        )


def half_message_of(text: str) -> HalfMessage:
    """Parses a transaction id. Raises Refused."""
    fields = text.split(" ") if len(text) <= CHARACTERS_MAX else []
    if len(fields) != FIELDS or not all(fields):
        raise Refused(pb.INVALID_TRANSACTION_ID, "the transaction id is not one of this cluster's")
    broker_name, log_offset, queue_offset, message_id = fields
    return HalfMessage(broker_name, _number(log_offset), _number(queue_offset), message_id)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= NUMBER_CHARACTERS_MAX):
        raise Refused(pb.INVALID_TRANSACTION_ID, "the transaction id has no number where one belongs")
    return int(text)
