"""uvicorn's HTTP protocol with limits on connections, on the size of a request's head and on its duration.

uvicorn itself waits for a request without limit, accepts a head of any size, and counts idle connections
against its limit. So any host could open a few hundred connections and make /livez answer 503, after which an
orchestrator kills a healthy program. Here the connection that has been idle longest is closed to admit a new
one.
"""

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from keelmq.remoting.frame import FRAME_BYTES_MAX
from keelmq.remoting.servers.http_answers import problem
from keelmq.remoting.servers.http_call import CERTIFICATE_NAMES
from keelmq.runtime.rate_limited_log import RateLimitedFilter

CONNECTIONS_MAX = 256
HEAD_BYTES_MAX = 64 * 1024
REQUEST_BYTES_MAX = 2 * FRAME_BYTES_MAX
"""Includes the overhead of the body: chunk sizes, trailers."""
REQUEST_S = 30
"""From the connection, or the first byte after a response, to the end of the request."""
UNREAD_S = 30
"""How long a response may wait for a client that does not read it."""

_warnings = RateLimitedFilter()


def limit_warnings() -> None:
    """Lets uvicorn write one warning of a kind per second: anonymous clients cause them, by bytes that are no
    HTTP. Safe to repeat."""
    logging.getLogger("uvicorn.error").addFilter(_warnings)


class LimitedHttp(HttpToolsProtocol):
    """One connection. `limit_concurrency` of uvicorn must be above CONNECTIONS_MAX."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._request_bytes, self._in_head = 0, True
        self.quiet_since = 0.0

    @property
    def is_quiet(self) -> bool:
        """Returns whether no complete request is in progress. One whose body is still awaited is not
        complete: otherwise 256 half requests would leave no room for /livez."""
        if self.cycle is None or self.cycle.response_complete:
            return True
        return not self._in_head and not self.pipeline

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_request_timer()
        if len(self.connections) > CONNECTIONS_MAX:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.is_quiet and self._request_timer is None:
            self._start_request_timer()
        room = HEAD_BYTES_MAX - self._request_bytes
        if self._in_head and len(data) > room:
            # One read may bring a whole head that is too large. The parser would take it, or fail at its URL.
            if room:
                self._parse(data[:room])
            if self._request_bytes >= HEAD_BYTES_MAX and self._in_head:
                self._refuse()
            if self.transport.is_closing():
                return
            data = data[room:]
        self._parse(data)
        if self._request_bytes > (HEAD_BYTES_MAX if self._in_head else REQUEST_BYTES_MAX):
            self._refuse()

    def _parse(self, data: bytes) -> None:
        self._request_bytes += len(data)
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """Notes that the head is complete (llhttp callback). The request starts here, with its scope."""
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]  # keys of our own
        scope[CERTIFICATE_NAMES] = self.transport.get_extra_info("certificate_names") or ()
        super().on_headers_complete()
        self._in_head = False

    def on_message_complete(self) -> None:
        """Ends the time limit of the request (llhttp callback)."""
        super().on_message_complete()
        self._stop_request_timer()
        self._request_bytes, self._in_head = 0, True

    def on_response_complete(self) -> None:
        """Notes when the connection became idle (uvicorn callback). A request that came with the one before
        it starts now, and its body may not have come: its time begins here."""
        self.quiet_since = self.loop.time()
        super().on_response_complete()
        if not self._in_head and self._request_timer is None:
            self._start_request_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_request_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)

    def _start_request_timer(self) -> None:
        self.quiet_since = self.loop.time()
        self._request_timer = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _make_room(self) -> None:
        others = [other for other in self.connections if isinstance(other, LimitedHttp) and other.is_quiet]
        longest = min(others, key=lambda other: other.quiet_since, default=self)
        if longest is not self:
            self.connections.discard(longest)
            longest.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuses bytes that are no HTTP request, and closes (called by uvicorn)."""
        self._send_problem(400, msg)

    def _refuse(self) -> None:
        """Sends a refusal and closes; later bytes are not read."""
        if self._in_head and not self.transport.is_closing():
            self._send_problem(431, f"path and headers are above {HEAD_BYTES_MAX} bytes")
        self.transport.close()

    def _send_problem(self, status: int, detail: str) -> None:
        """Sends an answer outside of the application, as text of the connection, and closes."""
        response = problem(
            status, detail, headers={"x-content-type-options": "nosniff", "connection": "close"}
        )
        head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
        head += [name + b": " + value for name, value in response.raw_headers]
        self.transport.write(b"\r\n".join([*head, b"", bytes(response.body)]))
        self.transport.close()
