"""The attacker: somebody with an address of their own, who connects, signs or does not sign, and looks."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Literal

import httpx

from tests.attacks.frames import CLOSED, Answer, Identity, Request
from tests.attacks.line import ANSWER_S, GONE, Line, dialled
from tests.attacks.stage import Stage

Tls = ssl.SSLContext | None | Literal["as the cluster wants it"]
DEFAULT: Final = "as the cluster wants it"
ADDRESSES_PER_ATTACKER: Final = 250


class Attacker:
    """One for each attack. Loopback has 16 million addresses: what one attacker does wrong, another one is
    not refused for."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.stage = stage
        self._network = f"127.{64 + number // 250}.{1 + number % 250}"
        self._host = 0
        self.source = ""
        self.move()

    def move(self) -> None:
        """From here on the attacker has another address."""
        self._host = self._host % ADDRESSES_PER_ATTACKER + 1
        self.source = f"{self._network}.{self._host}"

    def tls(self, choice: Tls) -> ssl.SSLContext | None:
        return self.stage.client_tls() if choice == DEFAULT else choice

    @contextlib.asynccontextmanager
    async def dial(self, server: str, *, tls: Tls = DEFAULT) -> AsyncIterator[Line]:
        """`server`: a name of Stage.addresses. Raises one of GONE, or TimeoutError."""
        address = self.stage.addresses[server]
        async with dialled(address, source=self.source, tls=self.tls(tls)) as line:
            yield line

    async def ask(
        self,
        server: str,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        by: Identity | None = None,
        proof: bool = False,
        tls: Tls = DEFAULT,
        timeout_s: float = ANSWER_S,
    ) -> Answer:
        """One request on a connection of its own. by None: it is not signed."""
        request = request_of(code, fields, body)
        if by is not None:
            request = request.signed(by, proof=proof)
        return await self.send(server, request, tls=tls, timeout_s=timeout_s)

    async def send(
        self, server: str, request: Request | bytes, *, tls: Tls = DEFAULT, timeout_s: float = ANSWER_S
    ) -> Answer:
        """Sends a request or a whole frame as it is, on a connection of its own."""
        try:
            async with self.dial(server, tls=tls) as line:
                return await line.ask(request, timeout_s=timeout_s)
        except TimeoutError:
            return Answer(CLOSED, "no connection")
        except GONE as error:
            return Answer(CLOSED, f"connection closed: {reason(error)}")

    async def http(self, server: str, method: str, path: str, **options: Any) -> Answer:
        """One HTTP request; the status is the code. options: of httpx."""
        scheme = options.pop("scheme", "https" if self.stage.is_closed else "http")
        transport = httpx.AsyncHTTPTransport(verify=False, local_address=self.source)
        async with httpx.AsyncClient(transport=transport, timeout=10) as client:
            try:
                answer = await client.request(
                    method, f"{scheme}://{self.stage.http_addresses[server]}{path}", **options
                )
            except httpx.TransportError as error:
                return Answer(CLOSED, f"connection closed: {type(error).__name__}")
        return Answer(answer.status_code, answer.text[:200], dict(answer.headers), answer.content)


def request_of(code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> Request:
    """Returns a request; numbers and booleans of `fields` become text as Java writes it."""
    return Request(code, {name: text_of(value) for name, value in (fields or {}).items()}, body)


def text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def reason(error: BaseException) -> str:
    """Returns what the attacker's TLS library says, or the kind of the error."""
    return getattr(error, "reason", None) or type(error).__name__
