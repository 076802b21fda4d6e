"""Handlers of END_TRANSACTION (37) and RESUME_CHECK_HALF_MESSAGE (323). Producers often send 37 oneway.

Source: RocketMQ 5.3.3 EndTransactionProcessor.
"""

from typing import Final

from broker.admission.send_gate import PutRefused
from broker.message.checked_topic import checked_topic
from broker.message.record import Record, decode, parse, property_value
from broker.put.forward_to_master import ask_master
from broker.put.handler_context import HandlerContext
from broker.put.message_writer import MessageWriter
from broker.store.querying import record_at
from broker.transactions.core.state import End
from broker.transactions.messages import COMMIT, GIVEN_UP_TOPIC, HALF_TOPIC, ROLLBACK
from broker.transactions.service import TransactionService
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import response_frame
from keelmq.remoting.operation import Call, CommandError, OperationTable, Reply
from keelmq.remoting.operations.transactions import (
    END_TRANSACTION,
    RESUME_CHECK_HALF_MESSAGE,
    EndTransactionRequest,
    ResumeCheckRequest,
)

READY_MS_MAX: Final = 2_000
"""Below the clients' timeout of 3 s."""
UNDECIDED: Final = 0
MESSAGE_ID_DIGITS: Final = (32, 56)
"""Lengths of a message id: address (IPv4 or IPv6), port, log offset."""
_ENDS: Final = {COMMIT: End.COMMITTED, ROLLBACK: End.ROLLED_BACK}


class EndTransactionHandler:
    def __init__(
        self, context: HandlerContext, writer: MessageWriter, transactions: TransactionService
    ) -> None:
        self._context, self._writer, self._transactions = context, writer, transactions

    def bind(self, table: OperationTable) -> None:
        """Binds 37 (END_TRANSACTION) and 323 (RESUME_CHECK_HALF_MESSAGE)."""
        table.bind(END_TRANSACTION, self.end_transaction)
        table.bind(RESUME_CHECK_HALF_MESSAGE, self.resume_check)

    async def end_transaction(self, header: EndTransactionRequest, call: Call) -> Reply | None:
        """Commits or rolls back a half message (37). Raises CommandError if there is no such half message, if
        it has ended in another way, or if writes are refused."""
        how = _ENDS.get(header.commit_or_rollback)
        if header.commit_or_rollback == UNDECIDED:  # the producer is asked later; RocketMQ sends no answer
            return Reply()
        if how is None:
            remark = f"commitOrRollback {header.commit_or_rollback} is not one of 0, {COMMIT}, {ROLLBACK}"
            raise _mismatch(remark)
        context, gate = self._context, self._context.gate
        if call.caller.checks_topics:
            _check_topic(call, self._half_at(header))
        if not gate.writable and await ask_master(
            context, END_TRANSACTION, header, otherwise=ResponseCode.SLAVE_NOT_AVAILABLE
        ):
            return Reply()
        context.gate.require_durability()
        if not await self._transactions.ready(READY_MS_MAX):
            remark = "this new master has not read all half messages yet"
            raise CommandError(ResponseCode.SYSTEM_BUSY, remark)
        end = self._transactions.end(self._half_at(header), how)
        if isinstance(end, PutRefused):
            raise CommandError(*end)
        if not end or not gate.wait or call.is_oneway:
            return Reply()
        reply = response_frame(call.opaque, ResponseCode.SUCCESS)
        code = RequestCode.END_TRANSACTION
        context.pending.add(end, call.peer, reply, self._writer.tick.ms, 1, code)
        return None

    async def resume_check(self, header: ResumeCheckRequest, call: Call) -> Reply | None:
        """Stores a message that was given up as a new half message (323); the old one stays in its topic.
        Raises CommandError if there is no such message, or if writes are refused."""
        context = self._context
        try:
            offset = int(header.msg_id[-16:], 16) if len(header.msg_id) in MESSAGE_ID_DIGITS else -1
        except ValueError:
            offset = -1
        view = record_at(context.store, offset) if offset >= 0 else None
        record = None if view is None else decode(view)
        if record is None or record.topic != GIVEN_UP_TOPIC:
            raise _mismatch(f"{header.msg_id} is not a message of {GIVEN_UP_TOPIC}")
        _check_topic(call, record)
        stored = self._transactions.resume(record)
        if isinstance(stored, PutRefused):
            raise CommandError(*stored)
        if not context.gate.wait or call.is_oneway:
            return Reply()
        reply = response_frame(call.opaque, ResponseCode.SUCCESS)
        code = RequestCode.RESUME_CHECK_HALF_MESSAGE
        context.pending.add(stored.end, call.peer, reply, self._writer.tick.ms, 1, code)
        return None

    def _half_at(self, header: EndTransactionRequest) -> Record:
        """Returns the half message that the request names, which may be above confirmOffset. Raises
        CommandError."""
        log = self._context.store.commit_log
        view = log.view(header.commit_log_offset, log.file_bytes) if header.commit_log_offset >= 0 else b""
        parsed = parse(view, 0, len(view), offset=header.commit_log_offset)
        if parsed is None or parsed[1] != HALF_TOPIC.name.encode():
            raise _mismatch(f"no half message at {header.commit_log_offset}")
        begin = header.commit_log_offset
        damage = self._context.store.log_check.first_bad(begin, begin + parsed[0])
        if damage is not None:
            raise _mismatch(f"the half message at {header.commit_log_offset} is damaged: {damage.reason}")
        record = decode(view)
        if record.queue_offset != header.tran_state_table_offset:
            remark = f"the half message at {header.commit_log_offset} has queue offset {record.queue_offset}"
            raise _mismatch(f"{remark}, not {header.tran_state_table_offset}")
        if property_value(record.properties, b"PGROUP") != header.producer_group.encode("utf-8", "replace"):
            raise _mismatch(f"the half message is not from producer group {header.producer_group}")
        return record


def _check_topic(call: Call, record: Record) -> None:
    call.caller.check_topic(checked_topic(record.topic, record.properties))


def _mismatch(remark: str) -> CommandError:
    return CommandError(ResponseCode.SYSTEM_ERROR, remark)
