"""Status values of gRPC answers: made from the codes of brokers, and the refusals of this proxy. Pure.

A client repeats a request until the status says that this is useless, so each code of a broker has the status
that makes RocketMQ's clients do the right thing. Source: behaviour of RocketMQ 5.3's proxy and of its
clients."""

from collections.abc import Iterable, Mapping
from typing import Final

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Unknown
from proxy.wire import messaging_pb2 as pb

OK: Final = pb.Status(code=pb.OK, message="OK")
NO_LITE: Final = "lite topics are not supported by KeelMQ"

_CODES: Final[Mapping[int, pb.Code]] = {
    ResponseCode.SUCCESS: pb.OK,
    ResponseCode.SYSTEM_BUSY: pb.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: pb.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: pb.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: pb.NOT_IMPLEMENTED,
    ResponseCode.FLUSH_DISK_TIMEOUT: pb.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: pb.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: pb.HA_NOT_AVAILABLE,
    ResponseCode.SERVICE_NOT_AVAILABLE: pb.HA_NOT_AVAILABLE,
    ResponseCode.MESSAGE_ILLEGAL: pb.BAD_REQUEST,
    ResponseCode.INVALID_PARAMETER: pb.BAD_REQUEST,
    ResponseCode.ILLEGAL_OPERATION: pb.BAD_REQUEST,
    ResponseCode.NO_PERMISSION: pb.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: pb.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: pb.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: pb.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.POLLING_TIMEOUT: pb.MESSAGE_NOT_FOUND,
    ResponseCode.NO_MESSAGE: pb.MESSAGE_NOT_FOUND,
    ResponseCode.RPC_SEND_TO_CHANNEL_FAILED: pb.HA_NOT_AVAILABLE,
}
_STALE_HANDLE: Final = {
    ResponseCode.MESSAGE_ILLEGAL,
    ResponseCode.NO_MESSAGE,
    ResponseCode.TOPIC_NOT_EXIST,
}
"""Codes with which a broker refuses a handle whose message is gone, or that it has never given out."""


class Refused(Exception):
    """The request is answered with this status."""

    def __init__(self, code: pb.Code, message: str) -> None:
        super().__init__(f"{pb.Code.Name(code)}: {message}")
        self.status = pb.Status(code=code, message=message)


def status_of(outcome: Failed | Unknown) -> pb.Status:
    """Returns the status of a request that a broker did not carry out, or did not answer."""
    if isinstance(outcome, Unknown):
        return pb.Status(code=pb.PROXY_TIMEOUT, message=outcome.remark)
    return pb.Status(code=_CODES.get(outcome.code, pb.INTERNAL_SERVER_ERROR), message=outcome.remark)


def status_of_handle(outcome: Failed | Unknown) -> pb.Status:
    """As status_of(), for a request that names a receipt handle. Push consumers repeat an acknowledgement
    every second for ever, unless the answer is INVALID_RECEIPT_HANDLE."""
    if isinstance(outcome, Failed) and outcome.code in _STALE_HANDLE:
        return pb.Status(code=pb.INVALID_RECEIPT_HANDLE, message=outcome.remark)
    return status_of(outcome)


def status_of_dead_letter(outcome: Failed | Unknown) -> pb.Status:
    """As status_of_handle(), for a message that is forwarded. SYSTEM_ERROR: the broker has no message at the
    handle's offset in the log."""
    if isinstance(outcome, Failed) and outcome.code == ResponseCode.SYSTEM_ERROR:
        return pb.Status(code=pb.INVALID_RECEIPT_HANDLE, message=outcome.remark)
    return status_of_handle(outcome)


def status_of_offset(outcome: Failed | Unknown) -> pb.Status:
    """As status_of(), for a request that asks for the offset of a group."""
    if isinstance(outcome, Failed) and outcome.code == ResponseCode.QUERY_NOT_FOUND:
        return pb.Status(code=pb.OFFSET_NOT_FOUND, message=outcome.remark)
    return status_of(outcome)


def status_of_transaction(outcome: Failed | Unknown) -> pb.Status:
    """As status_of(), for a request that names a transaction id. SYSTEM_ERROR: the broker has no such half
    message, or its transaction has ended in the other way."""
    if isinstance(outcome, Failed) and outcome.code == ResponseCode.SYSTEM_ERROR:
        return pb.Status(code=pb.INVALID_TRANSACTION_ID, message=outcome.remark)
    return status_of(outcome)


def total_of(statuses: Iterable[pb.Status]) -> pb.Status:
    """Returns the status of an answer with these entries: theirs if all have the same code."""
    found = list(statuses)
    codes = {status.code for status in found}
    if len(codes) == 1:
        return found[0]
    return pb.Status(code=pb.MULTIPLE_RESULTS, message="the entries have different results")
