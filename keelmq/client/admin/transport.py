"""The transport of AdminClient: asks one server, several at once, or the first of a list that answers.

Returns the operation's own model. Everything else is an AdminError with the request, the server, the answer,
and whether a change may have happened nevertheless (`unknown`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from keelmq.client.cluster.routes import parse_addresses
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok, Operation, Unknown, Wire

ADMIN_TIMEOUT_MS = 5_000
CONNECT_TIMEOUT_MS = 3_000
AT_ONCE_MAX = 128
"""Servers that are asked at a time: one connection each."""
STAGGER_MS = 300
"""After so long without an answer, the next server of a list is asked as well."""

Resp = TypeVar("Resp", bound=Wire)
T = TypeVar("T")


class AdminError(Exception):
    """`code`: the response's code, None when no server answered. `unknown`: a change may have happened."""

    def __init__(
        self, question: str, address: str, remark: str, code: int | None = None, *, unknown: bool = False
    ) -> None:
        super().__init__(f"{question} at {address}: {remark}")
        self.question, self.address, self.remark, self.code, self.unknown = (
            question,
            address,
            remark,
            code,
            unknown,
        )

    @property
    def code_name(self) -> str:
        """RocketMQ's name of the code, "" if no server answered."""
        if self.code is None:
            return ""
        return ResponseCode(self.code).name if self.code in set(ResponseCode) else str(self.code)


@dataclass(frozen=True)
class Said(Generic[T]):
    """The result of one of several servers: its answer, or the error. `remark`: a success's remark."""

    address: str
    answer: T | None = None
    error: AdminError | None = None
    remark: str = ""


class AdminTransport:
    """`client`: a RemotingClient to share; without it this object owns one and closes it. `timeout_ms`: for
    each request, instead of the defaults."""

    def __init__(self, client: RemotingClient | None = None, *, timeout_ms: int | None = None) -> None:
        self._own_client = client is None
        connect_timeout_ms = min(timeout_ms or CONNECT_TIMEOUT_MS, CONNECT_TIMEOUT_MS)
        self._client = client or RemotingClient(connect_timeout_ms=connect_timeout_ms)
        self.timeout_ms = timeout_ms

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own_client:
            await self._client.close()

    async def each(self, addresses: str, ask: Callable[[str], Awaitable[T]]) -> list[Said[T]]:
        """Asks every server of the list, all at once; the answers are in the list's order."""

        async def one(address: str) -> Said[T]:
            try:
                answer = await ask(address)
            except AdminError as error:
                return Said(address, error=error)
            return Said(address, answer, remark=answer if isinstance(answer, str) else "")

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
        """Sends any request. AdminError: no response, or another code than 0."""
        timeout_ms = self.timeout_ms or timeout_ms
        outcome = await self._client.call(address, operation, header, body, timeout_ms=timeout_ms)
        match outcome:
            case Ok():
                return outcome
            case Failed(code=ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, remark=remark):
                raise AdminError(operation.name, address, remark or "cannot connect")
            case Failed(code=code, remark=remark):
                raise AdminError(operation.name, address, remark or "no remark", code)
            case Unknown(remark=remark):
                raise AdminError(operation.name, address, remark, unknown=True)
        raise AssertionError(outcome)  # Outcome has no other member

    async def ask_any(self, addresses: str, operation: Operation[Any, Resp], header: Wire) -> Ok[Resp]:
        """Asks the next address when one does not answer soon, or does not know the topic (it may have just
        started); any other refusal is final."""

        def is_final(error: AdminError) -> bool:
            return error.code is not None and error.code != ResponseCode.TOPIC_NOT_EXIST

        return await first_of(
            parse_addresses(addresses),
            lambda address: self.ask(address, operation, header),
            is_final=is_final,
        )


async def gather_some(questions: Iterable[Coroutine[Any, Any, T]], limit: int = AT_ONCE_MAX) -> list[T]:
    """asyncio.gather for a cluster of any size: at most `limit` run at a time."""
    gate = asyncio.Semaphore(limit)

    async def one(question: Coroutine[Any, Any, T]) -> T:
        async with gate:
            return await question

    return await asyncio.gather(*(one(question) for question in questions))


async def first_of(
    addresses: Sequence[str],
    ask: Callable[[str], Awaitable[T]],
    *,
    is_enough: Callable[[T], bool] = lambda _: True,
    is_final: Callable[[AdminError], bool] = lambda _: False,
) -> T:
    """Asks one server after the other until an answer is enough. After STAGGER_MS without an answer the next
    one is asked as well. Otherwise returns the first answer, else raises the first refusal, else the last
    error."""
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
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    if answers:
        return answers[0]
    raise next((error for error in errors if error.code is not None), errors[-1])


def body_of(answer: Ok[Any], kind: type[Resp], operation: Operation[Any, Any], address: str) -> Resp:
    if not isinstance(answer.body, kind):
        raise AdminError(operation.name, address, "the answer has no body", answer.code)
    return answer.body


def properties_of(answer: Ok[Any]) -> dict[str, str]:
    """key=value lines."""
    text = bytes(answer.body or b"").decode(errors="replace")
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}
