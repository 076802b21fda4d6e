"""The transport of AdminClient: sends a request to one server, to several at once, or to a list until one
answers.

Returns the operation's response model. Every failure is an AdminError with the request, the server, the
response code, and whether a change may have happened nevertheless (`unknown`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from keelmq.remoting.address_text import parse_addresses
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok, Operation, Unknown, Wire
from keelmq.runtime.tasks import cancel_all
from keelmq.runtime.tls.contexts import Tls
from keelmq.security.signer import Credentials, check_shared, optional_signer

ADMIN_TIMEOUT_MS = 5_000
CONNECT_TIMEOUT_MS = 3_000
AT_ONCE_MAX = 128
"""Servers that are contacted concurrently, over one connection each."""
STAGGER_MS = 300
"""Without a response for this long, the next server of a list is contacted as well."""

Resp = TypeVar("Resp", bound=Wire)
T = TypeVar("T")


class AdminError(Exception):
    """A request failed. `code`: the response code, None if no server answered. `unknown`: a change may have
    happened."""

    def __init__(
        self, request: str, address: str, remark: str, code: int | None = None, *, unknown: bool = False
    ) -> None:
        super().__init__(f"{request} at {address}: {remark}")
        self.request, self.address, self.remark, self.code, self.unknown = (
            request,
            address,
            remark,
            code,
            unknown,
        )

    @property
    def code_name(self) -> str:
        """Returns RocketMQ's name of the code, "" if no server answered."""
        if self.code is None:
            return ""
        return ResponseCode(self.code).name if self.code in set(ResponseCode) else str(self.code)


@dataclass(frozen=True)
class ServerResult(Generic[T]):
    """The result of one of several servers: its response, or the error. `remark`: the remark of a success."""

    address: str
    answer: T | None = None
    error: AdminError | None = None
    remark: str = ""


CANNOT_SAY: Final = (
    "this server cannot say what the request would do (it is RocketMQ's, or an older KeelMQ): not known "
    "before it is done"
)


class AdminTransport:
    """Sends requests. `client`: a RemotingClient to share; without it this object owns one and closes it.
    `timeout_ms`: for each request, instead of the defaults. `credentials`: they sign all requests,
    which also carry the proof that they are new."""

    def __init__(
        self,
        client: RemotingClient | None = None,
        *,
        timeout_ms: int | None = None,
        tls: Tls = False,
        credentials: Credentials | None = None,
    ) -> None:
        check_shared(client, credentials)
        self._own_client = client is None
        connect_timeout_ms = min(timeout_ms or CONNECT_TIMEOUT_MS, CONNECT_TIMEOUT_MS)
        self._client = client or RemotingClient(
            connect_timeout_ms=connect_timeout_ms, tls=tls, signer=optional_signer(credentials, proof=True)
        )
        self.timeout_ms, self.credentials = timeout_ms, credentials

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own_client:
            await self._client.close()

    @property
    def client(self) -> RemotingClient:
        """The connections and their signer, for a Producer that shares them."""
        return self._client

    async def each(self, addresses: str, ask: Callable[[str], Awaitable[T]]) -> list[ServerResult[T]]:
        """Calls `ask` for every server of the list concurrently; returns the results in the list's order."""

        async def one(address: str) -> ServerResult[T]:
            try:
                answer = await ask(address)
            except AdminError as error:
                return ServerResult(address, error=error)
            return ServerResult(address, answer, remark=answer if isinstance(answer, str) else "")

        return await gather_some(one(address) for address in parse_addresses(addresses))

    # requests

    async def ask(
        self,
        address: str,
        operation: Operation[Any, Resp],
        header: Wire,
        body: object = None,
        *,
        timeout_ms: int = ADMIN_TIMEOUT_MS,
    ) -> Ok[Resp]:
        """Sends any request and returns its response. AdminError: no response, or a code other than 0."""
        timeout_ms = self.timeout_ms or timeout_ms
        outcome = await self._client.call(address, operation, header, body, timeout_ms=timeout_ms)
        if isinstance(outcome, Ok):
            return outcome
        raise self.error_of(address, operation.name, outcome)

    async def explain(
        self,
        address: str,
        operation: Operation[Any, Resp],
        header: Wire,
        *,
        timeout_ms: int = ADMIN_TIMEOUT_MS,
    ) -> Ok[Resp]:
        """Asks a server what a change would do (ADR 68); nothing is changed. AdminError: it would refuse the
        change; REQUEST_CODE_NOT_SUPPORTED: it cannot say, as RocketMQ's servers and older ones of KeelMQ."""
        try:
            answer = await self.ask(address, operation, header, timeout_ms=timeout_ms)
        except AdminError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
        else:
            if operation.response_body is None or isinstance(answer.body, operation.response_body):
                return answer
        raise AdminError(operation.name, address, CANNOT_SAY, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    @staticmethod
    def error_of(address: str, request: str, outcome: Failed | Unknown) -> AdminError:
        """Returns the error for an outcome other than success."""
        match outcome:
            case Failed(code=ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, remark=remark):
                return AdminError(request, address, remark or "cannot connect")
            case Failed(code=code, remark=remark):
                return AdminError(request, address, remark or "no remark", code)
            case Unknown(remark=remark):
                return AdminError(request, address, remark, unknown=True)

    async def ask_any(self, addresses: str, operation: Operation[Any, Resp], header: Wire) -> Ok[Resp]:
        """Sends a read to the servers of a list until one answers. The next one is tried if a server does not
        answer soon, or does not know the topic (it may just have started); any other refusal is final."""

        def is_final(error: AdminError) -> bool:
            return error.code is not None and error.code != ResponseCode.TOPIC_NOT_EXIST

        return await first_of(
            parse_addresses(addresses),
            lambda address: self.ask(address, operation, header),
            is_final=is_final,
        )


async def gather_some(requests: Iterable[Coroutine[Any, Any, T]], limit: int = AT_ONCE_MAX) -> list[T]:
    """Runs coroutines as asyncio.gather does, at most `limit` at a time."""
    semaphore = asyncio.Semaphore(limit)

    async def one(request: Coroutine[Any, Any, T]) -> T:
        async with semaphore:
            return await request

    return await asyncio.gather(*(one(request) for request in requests))


async def first_of(
    addresses: Sequence[str],
    ask: Callable[[str], Awaitable[T]],
    *,
    is_enough: Callable[[T], bool] = lambda _: True,
    is_final: Callable[[AdminError], bool] = lambda _: False,
) -> T:
    """Calls `ask` for one server after the other until a response is enough. After STAGGER_MS without a
    response the next server is contacted as well. If no response was enough, returns the first one. Without
    any response, raises the first refusal, or the last error if no server answered."""
    answers: list[T] = []
    errors: list[AdminError] = []
    waiting: set[asyncio.Future[T]] = set()
    left = list(addresses)
    try:
        while left or waiting:
            if left:
                waiting.add(asyncio.ensure_future(ask(left.pop(0))))
            done, waiting = await asyncio.wait(
                waiting,
                timeout=STAGGER_MS / 1000 if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task, error in [(task, task.exception()) for task in done]:
                if error is None and is_enough(task.result()):
                    return task.result()
                if error is None:
                    answers.append(task.result())
                elif not isinstance(error, AdminError) or is_final(error):
                    raise error
                else:
                    errors.append(error)
    finally:
        await cancel_all(waiting)
    if answers:
        return answers[0]
    raise next((error for error in errors if error.code is not None), errors[-1])


def body_of(answer: Ok[Any], kind: type[Resp], operation: Operation[Any, Any], address: str) -> Resp:
    """Returns the response's body as `kind`. AdminError: the response has no such body."""
    if not isinstance(answer.body, kind):
        raise AdminError(operation.name, address, "the response has no body", answer.code)
    return answer.body


def properties_of(answer: Ok[Any]) -> dict[str, str]:
    """Returns the key=value lines of the response's body."""
    text = bytes(answer.body or b"").decode(errors="replace")
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}
