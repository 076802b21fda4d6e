"""The stream of events of each open page: bounded, and the same bytes for all of them.

A page that reads slower than events come loses them, and gets the whole status instead as its next event.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from typing import Final

from keelmq.remoting.addresses import is_loopback, network_of_peer
from keelmq.remoting.operation import Wire

PAGES_MAX: Final = 64
PAGES_OF_ADDRESS_MAX: Final = 16
"""Limit of one IPv4 address, or /64 network of IPv6. Not for this machine: a reverse proxy may run there."""
EVENTS_WAITING_MAX: Final = 8
PING_S: Final = 10.0
LOCAL: Final = "127.0.0.1"


def encoded(event: str, value: Wire | None = None) -> bytes:
    """Returns a server-sent event."""
    data = "{}" if value is None else value.model_dump_json(by_alias=True)
    return f"event: {event}\ndata: {data}\n\n".encode()


class TooManyPages(Exception):
    """PAGES_MAX streams are open, or PAGES_OF_ADDRESS_MAX of one address."""


class Page:
    """One open stream. Owned by the event loop's thread."""

    def __init__(self, network: bytes = b"") -> None:
        self.network = network
        self._waiting: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self.needs_all = True
        """The next event must be the whole status: it has none yet, or lost events."""
        self.is_over = False

    @property
    def is_empty(self) -> bool:
        """Returns whether nothing waits to be sent."""
        return not self._waiting

    def put(self, event: bytes, *, is_all: bool) -> None:
        """Queues an event. is_all: it is the whole status."""
        if is_all:
            self._waiting.clear()
            self.needs_all = False
        elif len(self._waiting) >= EVENTS_WAITING_MAX:
            self._waiting.clear()
            self.needs_all = True
            return
        self._waiting.append(event)
        self._wake.set()

    def end(self) -> None:
        """Ends the stream after what waits."""
        self.is_over = True
        self._wake.set()

    async def next(self, timeout_s: float) -> bytes | None:
        """Returns the next event; None: there was none in time, or the stream is over."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._waiting and not self.is_over:
                    self._wake.clear()
                    await self._wake.wait()
        except TimeoutError:
            return None
        return self._waiting.popleft() if self._waiting else None


class Pages:
    """All open streams. `when_first`: called when a page opens while there was none."""

    def __init__(self, when_first: Callable[[], None]) -> None:
        self._pages: set[Page] = set()
        self._when_first = when_first
        self._is_over = False
        self._count_of: Counter[bytes] = Counter()  # pages by network, except of this machine

    def __len__(self) -> int:
        """How many pages are open."""
        return len(self._pages)

    def open(self, host: str = LOCAL) -> Page:
        """Returns a new stream. host: the IP address of its reader. Raises TooManyPages."""
        network = b"" if is_loopback(host) else network_of_peer(f"{host}:0")
        if network and self._count_of[network] >= PAGES_OF_ADDRESS_MAX:
            raise TooManyPages(f"{PAGES_OF_ADDRESS_MAX} pages of your address are open already; close one")
        if len(self._pages) >= PAGES_MAX:
            raise TooManyPages(f"{PAGES_MAX} pages are open already; close one, or start `keelmq console`")
        page = Page(network)
        if network:
            self._count_of[network] += 1
        if self._is_over:
            page.end()
        self._pages.add(page)
        if len(self._pages) == 1:
            self._when_first()
        return page

    def close(self, page: Page) -> None:
        """Forgets a stream whose reader is gone."""
        if page not in self._pages:
            return
        self._pages.discard(page)
        if page.network:
            self._count_of[page.network] -= 1
            if not self._count_of[page.network]:
                del self._count_of[page.network]

    def send(self, change: Callable[[], bytes], everything: Callable[[], bytes]) -> None:
        """Queues a change for every page, and the whole status for those that need it. Each is encoded once,
        and only if a page gets it."""
        made: dict[bool, bytes] = {}
        for page in self._pages:
            is_all = page.needs_all
            if is_all not in made:
                made[is_all] = everything() if is_all else change()
            page.put(made[is_all], is_all=is_all)

    def end(self) -> None:
        """Ends all streams, now and later."""
        self._is_over = True
        for page in self._pages:
            page.end()


async def stream(
    pages: Pages, page: Page, everything: Callable[[], bytes | None], may_read: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yields the events of a page until it is over, or its reader may not read any more (logged out).
    `everything`: the whole status, None if there is none yet."""
    try:
        while not page.is_over and may_read():
            if page.needs_all and (first := everything()) is not None:
                page.put(first, is_all=True)
            event = await page.next(PING_S)
            if not may_read():
                break
            if event is not None:
                yield event
            elif not page.is_over:
                yield encoded("ping")
        yield encoded("end")
    finally:
        pages.close(page)
