"""Requests to other machines, which may be dead: each has a time limit, and all of them together.

Names are resolved in daemon threads: a resolver that hangs cannot be cancelled, and must not delay the exit.
"""

import asyncio
import base64
import ipaddress
import json
import os
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.address_text import join_address, split_address
from keelmq.remoting.client import LOST, RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.daemon_threads import in_daemon_thread
from keelmq.runtime.tasks import cancel_all
from keelmq.runtime.tls.contexts import Tls
from keelmq.security.signer import Credentials, optional_signer

if TYPE_CHECKING:
    import httpcore

ROUNDS = 4
"""Requests that depend on each other's answers; each may take the whole time limit."""
HTTP_BYTES_MAX = 4 << 20
SIGN = " (requests must be signed there: --credentials FILE)"

T = TypeVar("T")


class Silent(Exception):
    """No answer, or not a usable one; the text says which. code: of a server that refused, else None.
    was_plain: the server closed a connection without TLS, as one does that accepts only TLS."""

    def __init__(self, text: str, code: int | None = None, *, was_plain: bool = False) -> None:
        super().__init__(text)
        self.code, self.was_plain = code, was_plain

    @property
    def is_refusal(self) -> bool:
        """Returns whether the server answers, and wants other credentials, or has none for us."""
        return self.code == ResponseCode.NO_PERMISSION

    @property
    def is_another_program(self) -> bool:
        """Returns whether the server answers, but does not know what every server of its kind knows."""
        return self.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    @property
    def hangs(self) -> bool:
        """Returns whether no answer came in time. Something listens there, or the machine is away: starting a
        program does not help."""
        return "no answer" in str(self)


class HttpAnswer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    clock_ms: int | None  # how far the other clock is ahead of ours, to the second

    def json(self) -> Any:
        """Returns the body's JSON value; None: it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class Reach:
    """`credentials`: they sign all requests. `tls`: for all connections; False: as the command line says."""

    def __init__(self, timeout_ms: int, credentials: Credentials | None = None, *, tls: Tls = False) -> None:
        self.timeout_ms, self._credentials = timeout_ms, credentials
        self._is_signing = credentials is not None
        signer = optional_signer(credentials, proof=True)
        self._client = RemotingClient(connect_timeout_ms=timeout_ms, signer=signer, tls=tls)
        self._admin = AdminClient(self._client, timeout_ms=timeout_ms)
        self._names: dict[str, asyncio.Task[list[str]]] = {}
        self._deadline = 0.0
        self.begin()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await cancel_all(self._names.values())
        await self._client.close()

    def begin(self) -> None:
        """Starts the time limit of all requests together again, for another round over the same connections.
        Names are resolved again."""
        self._deadline = asyncio.get_running_loop().time() + ROUNDS * self.timeout_ms / 1000
        self._names = {host: task for host, task in self._names.items() if not task.done()}

    async def ask(self, address: str, question: Callable[[AdminClient, str], Awaitable[T]]) -> T:
        """Returns the answer to `question`, which gets the client and the address with its name resolved. If
        nothing listens at one address of a name, the next one is tried. Raises Silent."""
        hosts, port = await self._hosts(address)
        try:
            async with asyncio.timeout(self._left_s()):
                for host in hosts[:-1]:
                    try:
                        return await question(self._admin, join_address(host, port))
                    except AdminError as error:
                        if error.code is not None or error.unknown:
                            raise
                return await question(self._admin, join_address(hosts[-1], port))
        except TimeoutError:
            raise Silent(f"no answer in {self.timeout_ms} ms") from None
        except AdminError as error:
            code = f"{error.code_name}, " if error.code else ""
            hint = "" if self._is_signing or error.code != ResponseCode.NO_PERMISSION else SIGN
            was_plain = self._client.tls is None and error.unknown and error.remark.endswith(LOST)
            raise Silent(f"{code}{_reason(error.remark)}{hint}", error.code, was_plain=was_plain) from None

    async def get(self, address: str, path: str, *, as_user: bool = False) -> HttpAnswer:
        """Returns the answer to an HTTP GET. as_user: with the password, if the server is verified with TLS.
        Raises Silent."""
        import httpcore  # programs that serve a console need it once it is used

        hosts, port = await self._hosts(address)
        # The HTTP port may still be plain (httpTlsMode) where the command has TLS.
        schemes = (b"http",) if self._client.tls is None else (b"https", b"http")
        urls = [
            httpcore.URL(scheme=scheme, host=host.encode(), port=port, target=path.encode())
            for scheme in schemes
            for host in hosts
        ]
        try:
            async with asyncio.timeout(self._left_s()):
                for url in urls[:-1]:
                    with suppress(httpcore.ConnectError):
                        return await self._got(url, address, as_user)
                return await self._got(urls[-1], address, as_user)
        except TimeoutError:
            raise Silent(f"no answer in {self.timeout_ms} ms") from None
        except httpcore.ProtocolError:
            raise Silent("the server there does not speak HTTP") from None
        except (
            httpcore.NetworkError,
            OSError,
        ) as error:  # after the handshake a TLS error is a plain OSError
            raise Silent(_reason(str(_root(error)))) from None

    async def _got(self, url: "httpcore.URL", address: str, as_user: bool) -> HttpAnswer:
        """Raises httpcore's errors: ConnectError if nothing listens there, or the TLS handshake fails."""
        import httpcore

        tls, is_tls = self._client.tls, url.scheme == b"https"
        headers: dict[str | bytes, str | bytes] = {b"Host": address.encode(), b"Connection": b"close"}
        # Only over TLS to a verified server. Unlike a signature a password is lost once another process
        # has read it, and on this machine, too, any process may listen on the port of a program that is down.
        if as_user and self._credentials is not None and tls is not None and tls.verifies and is_tls:
            user = f"{self._credentials.access_key}:{self._credentials.secret_key}"
            headers[b"Authorization"] = b"Basic " + base64.b64encode(user.encode())
        async with (
            httpcore.AsyncHTTPConnection(url.origin, None if tls is None else tls.http_context) as connection,
            connection.stream("GET", url, headers=headers) as answer,
        ):
            answered_ms = wall_ms()
            body = bytearray()
            async for part in answer.aiter_stream():
                body += part
                if len(body) >= HTTP_BYTES_MAX:
                    break
        return HttpAnswer(answer.status, bytes(body), _clock_ms(answer.headers, answered_ms))

    async def _hosts(self, address: str) -> tuple[list[str], int]:
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise Silent(str(error)) from None
        return await self.resolve(host), port

    async def resolve(self, host: str) -> list[str]:
        """Returns the IP addresses of a host. Raises Silent."""
        with suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        if host not in self._names:
            self._names[host] = asyncio.create_task(_resolved(host))
        try:
            async with asyncio.timeout(self._left_s()):
                return await asyncio.shield(self._names[host])
        except TimeoutError:
            raise Silent(f"the name {host} was not resolved in {self.timeout_ms} ms") from None

    def _left_s(self) -> float:
        left = self._deadline - asyncio.get_running_loop().time()
        return max(0.0, min(self.timeout_ms / 1000, left))


def _root(error: BaseException) -> BaseException:
    """Returns the root cause: the system's error, which has a number."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _reason(remark: str) -> str:
    """Returns the reason alone, such as "connection refused", without the library's context."""
    if found := re.search(r"\[Errno (\d{1,4})\]", remark):
        return os.strerror(int(found[1])).lower()
    if found := re.fullmatch(r"\[SSL: \w+\] (.*) \(_ssl\.c:\d+\)", remark):
        return found[1].lower()
    return remark.rpartition("cannot connect to ")[2].partition(": ")[2].lower() or remark


async def _resolved(host: str) -> list[str]:
    def look() -> list[str]:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as problem:
            raise Silent(f"the name {host} does not resolve: {problem}") from None
        if not found:
            raise Silent(f"the name {host} does not resolve: no address")
        return list(dict.fromkeys(str(each[4][0]) for each in found))

    return await in_daemon_thread(look, name=f"resolve {host}")


def _clock_ms(headers: Sequence[tuple[bytes, bytes]], answered_ms: int) -> int | None:
    found = {name.lower(): value for name, value in headers}
    try:
        date = parsedate_to_datetime(found[b"date"].decode("latin-1"))
    except (KeyError, ValueError, TypeError):
        return None
    return round(date.timestamp() * 1000) + 500 - answered_ms
