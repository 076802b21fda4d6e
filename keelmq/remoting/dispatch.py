"""Carries out a request: finds its handler in an OperationTable, and turns the handler's result into a Reply.

Shared by the TCP server, the HTTP server and the client (for requests that brokers push). Owns the tasks of
coroutine handlers. A request that arrived is carried out even if its connection closes meanwhile; close()
cancels the handlers that still run.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import (
    BadRequest,
    RemotingCommand,
    decode_body,
    decode_parts,
    parse_header,
    response_frame,
)
from keelmq.remoting.frame import Frame
from keelmq.remoting.operation import (
    ANYBODY,
    OUTCOME_UNKNOWN,
    Batched,
    Call,
    Caller,
    Changes,
    CommandError,
    FastPath,
    FastPathHandler,
    FrameTooLarge,
    LocalProtocolError,
    OperationTable,
    Peer,
    RememberingPeer,
    Reply,
    Request,
    Unknown,
    UnknownOutcome,
    Wire,
)
from keelmq.remoting.turn_requests import TurnRequests
from keelmq.runtime.clock import now_ms
from keelmq.runtime.rate_limited_log import RateLimitedLogger
from keelmq.runtime.tasks import cancel_all

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 1024
"""Coroutine requests of one connection that may run concurrently; more are answered SYSTEM_BUSY."""
RUNNING_BYTES_OF_CONNECTION_MAX = 33_554_432
"""Limit of these requests, which are kept while their handlers wait: two of the largest frames."""
RUNNING_BYTES_MAX = 536_870_912
"""The same of all connections of a port, of requests above LARGE_REQUEST_BYTES: more than all large frames
that can end in one iteration of the event loop. Without the smaller ones, so that others' heartbeats pass."""
LARGE_REQUEST_BYTES = 65_536
EXT_FIELD_BYTES = 128
"""Memory of a field besides its text."""

SUCCESS = Reply()

FAST_PATH_KEY_BYTES = 12
"""A header's first bytes select its typed decoder: a slice is cheaper than a search for the first comma."""


def fast_path_key(code: int) -> bytes:
    """Returns the first bytes of a JSON header of this code, if the peer writes the code first, as all known
    clients do."""
    return (b'{"code":%d,"' % code)[:FAST_PATH_KEY_BYTES]


AdmitAgain = Callable[[bytes, bytes, RememberingPeer], bool]
"""Access.admit_again() for one code: (header, body, connection)."""


AdmitFirst = Callable[[list[Frame], RememberingPeer], int]
"""Access.admit_first() for one code: (frames, connection)."""


class FastPathEntry(NamedTuple):
    """What serves the fast-path requests of one code. `again`: None without an access check."""

    decode: Callable[[bytes], Any]
    handler: FastPathHandler
    again: AdmitAgain | None
    turn: TurnRequests | None


class Requester(RememberingPeer, Protocol):
    """A Peer with the account of its running requests. It knows whether the access check has let one pass."""

    in_flight: int
    in_flight_bytes: int
    """Bytes that they take."""

    def refuse_request(self) -> str | None:
        """Returns why a request is not even checked; None: it is. Called until it is admitted."""

    def admitted(self) -> None:
        """The access check has let a first request pass."""


class Dispatcher:
    """Serves one table. `name`: for log lines. `bad_request_code`: the response to headers that do not fit.
    closed_peers: logs why connections were closed, rate-limited, since any peer can cause these lines."""

    def __init__(
        self, table: OperationTable, *, name: str, bad_request_code: int = ResponseCode.SYSTEM_ERROR
    ) -> None:
        self.name = name
        self.table = table
        self.fast_path: dict[bytes, FastPathEntry] = {
            fast_path_key(code): FastPathEntry(
                _typed_decoder(code, fast_path),
                fast_path.handler,
                self._again(code),
                None if fast_path.batched is None else fast_path.batched.turn,
            )
            for code, fast_path in table.fast_path.items()
        }
        self.batched: dict[bytes, tuple[Batched, AdmitFirst | None]] = {
            fast_path_key(code): (fast_path.batched, self._first(code))
            for code, fast_path in table.fast_path.items()
            if fast_path.batched is not None
        }
        self.closed_peers = RateLimitedLogger(logger)
        self._refused_requests = RateLimitedLogger(logger)
        self._bad_request_code = int(bad_request_code)
        self._tasks: set[asyncio.Task[None]] = set()
        self._running_bytes = 0

    def _again(self, code: int) -> AdmitAgain | None:
        access = self.table.access
        if access is None:
            return None
        return _when_admitted if access.is_open(code) else partial(access.admit_again, code)

    def _first(self, code: int) -> AdmitFirst | None:
        access = self.table.access
        if access is None:
            return None
        return _all_when_admitted if access.is_open(code) else partial(access.admit_first, code)

    def request(self, command: RemotingCommand, peer: Requester) -> bytes | None:
        """Serves one decoded request. Returns the whole response frame, or None if the response comes later
        or never."""
        caller = ANYBODY
        if self.table.access is not None:
            if not peer.is_admitted and (why := peer.refuse_request()) is not None:
                self._refused_requests.tell(now_ms(), "%s: refused a request: %s", self.name, why)
                return _error(command, ResponseCode.SYSTEM_BUSY, why)
            try:
                caller = self.table.access.admit(command, peer)
            except CommandError as error:
                record(self.table, command, peer, caller, error.code, error.remark, {})
                return _error(command, error.code, error.remark)
            except Exception as error:  # noqa: BLE001 - answered, and logged with its traceback
                return self._refusal(error, command)
            if not peer.is_admitted:
                peer.admitted()
        fast_path = self.table.fast_path.get(command.code)
        if fast_path is not None:
            if self.table.access is not None:
                self.table.access.remember(command, peer, caller)
            return self._lenient_fast_path(fast_path, command, peer)
        if command.code not in self.table.handlers:
            unknown = f" request type {command.code} not supported"
            remark = self.table.unsupported.get(command.code, unknown)
            record(self.table, command, peer, caller, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark, {})
            return _error(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        busy = self._why_busy(peer, count := _bytes_of(command))
        if busy is not None:
            remark = f"[OVERLOAD]system busy: {busy}"
            record(self.table, command, peer, caller, ResponseCode.SYSTEM_BUSY, remark, {})
            return _error(command, ResponseCode.SYSTEM_BUSY, remark)
        self._count(peer, 1, count)
        task = asyncio.get_running_loop().create_task(self._serve(command, peer, caller, count))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    def _why_busy(self, peer: Requester, count: int) -> str | None:
        """Returns why no request with `count` bytes may run now; None: it may."""
        if peer.in_flight >= IN_FLIGHT_MAX:
            return f"{IN_FLIGHT_MAX} requests of this connection are running"
        if peer.in_flight_bytes + count > RUNNING_BYTES_OF_CONNECTION_MAX:
            return f"running requests of this connection have {peer.in_flight_bytes} bytes"
        if count > LARGE_REQUEST_BYTES and self._running_bytes + count > RUNNING_BYTES_MAX:
            return f"running requests of all connections have {self._running_bytes} bytes"
        return None

    def _count(self, peer: Requester, requests: int, count: int) -> None:
        peer.in_flight += requests
        peer.in_flight_bytes += requests * count
        if count > LARGE_REQUEST_BYTES:
            self._running_bytes += requests * count

    def batch(self, frames: list[Frame], peer: RememberingPeer) -> tuple[int, bytes]:
        """Serves the first requests of a read together, since most have one code. Returns how many were
        served, and their responses."""
        key = frames[0][1][:FAST_PATH_KEY_BYTES]
        fast_path = self.batched.get(key)
        if fast_path is None:
            return 0, b""
        (read, serve, _), first = fast_path
        requests = read(frames, key)
        if first is not None:
            del requests[first(frames[: len(requests)], peer) :]
        try:
            return serve(requests, peer)
        except Exception as error:  # noqa: BLE001 - answered, and logged with its traceback
            # It may have served some: none is repeated.
            replies = [
                self.fast_path_failed(error, header, body) for _, header, body, _ in frames[: len(requests)]
            ]
            return len(requests), b"".join([reply for reply in replies if reply is not None])

    def fast_path_failed(self, error: Exception, header: bytes, body: bytes) -> bytes | None:
        """Returns the response to a fast-path request whose handler raised; called inside the except block.
        The handler may have changed the typed command: flag and opaque are read again from the JSON header.
        """
        return self._refusal(error, decode_parts(0, header, body))

    def _lenient_fast_path(
        self, fast_path: FastPath, command: RemotingCommand, peer: Requester
    ) -> bytes | None:
        try:
            typed = fast_path.lenient(command.code, command.opaque, command.flag, command.ext_fields)
        except (KeyError, ValueError, BadRequest) as error:
            text = f"header field {error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            return _error(command, self._bad_request_code, text)
        except Exception as error:  # noqa: BLE001 - answered, and logged with its traceback
            return self._refusal(error, command)
        try:
            return fast_path.handler(typed, command.body, peer)
        except Exception as error:  # noqa: BLE001 - answered, and logged with its traceback
            return self._refusal(error, command)

    async def _serve(self, command: RemotingCommand, peer: Requester, caller: Caller, count: int) -> None:
        try:
            frame = await self.answer(command, peer, caller)
        finally:
            self._count(peer, -1, count)
        if frame is not None:
            peer.send(frame)

    async def answer(self, command: RemotingCommand, peer: Peer, caller: Caller = ANYBODY) -> bytes | None:
        operation, handler = self.table.handlers[command.code]
        changes: Changes = {}
        try:
            header = parse_header(operation.request, command.ext_fields)
            call = Call(
                peer,
                decode_body(operation.request_body, command.body),
                command.version,
                command.ext_fields,
                command.body,
                command.opaque,
                command.is_oneway,
                command.language,
                caller,
                changes,
            )
            result = await handler(header, call)
            if isinstance(result, Unknown):
                record(self.table, command, peer, caller, OUTCOME_UNKNOWN, result.remark, changes)
                return None  # the outcome is unknown: the caller's timeout says the same
            reply = as_reply(result)
            answered = reply or SUCCESS
            record(self.table, command, peer, caller, answered.code, answered.remark, changes)
            if reply is None or command.is_oneway:
                return None
            return response_frame(command.opaque, reply.code, reply.remark, reply.header, reply.body)
        except asyncio.CancelledError:
            record(
                self.table, command, peer, caller, OUTCOME_UNKNOWN, "the server stopped meanwhile", changes
            )
            raise
        except Exception as error:  # noqa: BLE001 - answered, and logged with its traceback
            code, remark = answer_of(error, self._bad_request_code)
            record(self.table, command, peer, caller, code, remark, changes)
            return self._refusal(error, command)

    def _refusal(self, error: Exception, command: RemotingCommand) -> bytes | None:
        """Returns the response to a request whose handler raised; called inside the except block, for the
        traceback."""
        if isinstance(error, BadRequest):
            return _error(command, self._bad_request_code, error.remark)
        if isinstance(error, CommandError):
            return _error(command, error.code, error.remark, error.header, error.body)
        if isinstance(error, FrameTooLarge):  # a table has grown: nothing is wrong in the handler
            logger.warning("%s: the answer to code %d is not sent: %s", self.name, command.code, error)
            return _error(command, ResponseCode.SYSTEM_ERROR, f"the answer does not fit: {error}")
        logger.error(
            "%s: handler of code %d failed",
            self.name,
            command.code,
            exc_info=error,
            extra={"requestCode": command.code, "opaque": command.opaque},
        )
        return _error(command, ResponseCode.SYSTEM_ERROR, f"internal error: {type(error).__name__}: {error}")

    async def close(self) -> None:
        """Cancels the running handlers and waits for them."""
        await cancel_all(self._tasks)


def record(
    table: OperationTable,
    command: Request,
    peer: Peer,
    caller: Caller,
    code: int,
    remark: str | None,
    changes: Changes,
) -> None:
    """Reports a request that was answered with this code to a table's audit."""
    audit = table.audit
    if audit is not None and (audit.wants(command.code) or code == ResponseCode.NO_PERMISSION):
        audit.record(command, peer, caller, code=code, remark=remark or "", changes=changes)


def answer_of(error: Exception, bad_request_code: int) -> tuple[int, str]:
    """Returns the code and the remark that an audit gets for a request whose handler raised."""
    if isinstance(error, BadRequest):
        return bad_request_code, error.remark
    if isinstance(error, UnknownOutcome):
        return OUTCOME_UNKNOWN, error.remark
    if isinstance(error, CommandError):
        return error.code, error.remark
    return ResponseCode.SYSTEM_ERROR, f"internal error: {type(error).__name__}"


def _when_admitted(header: bytes, body: bytes, peer: RememberingPeer) -> bool:
    """AdmitAgain of codes that any peer may send: the first request of a connection is admitted as a whole,
    since limits count the connections of anonymous clients."""
    return peer.is_admitted


def _all_when_admitted(frames: list[Frame], peer: RememberingPeer) -> int:
    """AdmitFirst of these codes."""
    return len(frames) if peer.is_admitted else 0


def _bytes_of(command: RemotingCommand) -> int:
    fields = command.ext_fields
    texts = sum(map(len, fields)) + sum(map(len, fields.values()))
    return len(command.body) + texts + EXT_FIELD_BYTES * len(fields)


def as_reply(result: Reply | Wire | None) -> Reply | None:
    """Returns the result of a handler as a Reply; None: no response."""
    return Reply(header=result) if isinstance(result, Wire) else result


def _error(
    command: RemotingCommand, code: int, remark: str, header: Wire | None = None, body: object = None
) -> bytes | None:
    return None if command.is_oneway else response_frame(command.opaque, code, remark, header, body)


def _typed_decoder(code: int, fast_path: FastPath) -> Callable[[bytes], Any]:
    """Responses share the number space of codes, so the typed command must show its flag."""
    if "flag" not in getattr(fast_path.command_type, "__struct_fields__", ()):
        raise LocalProtocolError(f"command type of fast-path code {code} has no flag")
    return msgspec.json.Decoder(fast_path.command_type, strict=False).decode
