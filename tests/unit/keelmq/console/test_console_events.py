"""Streams of events: bounded, and a slow page gets the whole status again."""

import asyncio

import pytest

from keelmq.console.console import Console
from keelmq.console.events import (
    EVENTS_WAITING_MAX,
    PAGES_MAX,
    PAGES_OF_ADDRESS_MAX,
    Pages,
    TooManyPages,
    stream,
)
from keelmq.console.examples import STATUS
from tests.support.console_parts import FakePoller, sources, with_group


def pages() -> Pages:
    return Pages(lambda: None)


async def test_a_slow_page_gets_the_whole_status_instead_of_what_it_missed() -> None:
    all_pages = pages()
    page = all_pages.open()
    page.put(b"whole", is_all=True)
    for _ in range(EVENTS_WAITING_MAX):
        all_pages.send(lambda: b"change", lambda: b"whole")
    assert page.needs_all
    assert page.is_empty
    all_pages.send(lambda: b"change", lambda: b"whole again")
    assert await page.next(1) == b"whole again"
    assert page.is_empty


async def test_each_event_is_encoded_once() -> None:
    all_pages, made = pages(), []
    for _ in range(3):
        all_pages.open()

    def whole() -> bytes:
        made.append(1)
        return b"whole"

    all_pages.send(lambda: b"change", whole)
    assert len(made) == 1


async def test_there_are_not_too_many() -> None:
    all_pages = pages()
    first = all_pages.open()
    for _ in range(PAGES_MAX - 1):
        all_pages.open()
    with pytest.raises(TooManyPages):
        all_pages.open()
    all_pages.close(first)
    all_pages.open()


async def test_one_address_cannot_take_all() -> None:
    """Nor one host of IPv6, which has a whole network. Reverse proxies of this machine may."""
    all_pages = pages()
    opened = [all_pages.open("10.0.0.1") for _ in range(PAGES_OF_ADDRESS_MAX)]
    with pytest.raises(TooManyPages, match="of your address"):
        all_pages.open("10.0.0.1")
    for number in range(PAGES_OF_ADDRESS_MAX):
        all_pages.open(f"2001:db8::{number:x}")
    with pytest.raises(TooManyPages, match="of your address"):
        all_pages.open("2001:db8::ffff")
    all_pages.open("10.0.0.2")
    all_pages.close(opened[0])
    all_pages.close(opened[0])
    all_pages.open("10.0.0.1")
    with pytest.raises(TooManyPages, match="of your address"):
        all_pages.open("10.0.0.1")
    for _ in range(PAGES_OF_ADDRESS_MAX + 1):
        all_pages.open("127.0.0.1")


async def test_a_stream_ends_at_the_end_and_is_forgotten() -> None:
    all_pages = pages()
    page = all_pages.open()
    found = stream(all_pages, page, lambda: b"whole", lambda: True)
    assert await anext(found) == b"whole"
    all_pages.end()
    assert [each async for each in found] == [b"event: end\ndata: {}\n\n"]
    assert len(all_pages) == 0


async def test_a_page_that_may_not_read_any_more_gets_nothing_else() -> None:
    all_pages, allowed = pages(), [True]
    page = all_pages.open()
    found = stream(all_pages, page, lambda: b"whole", lambda: allowed[0])
    assert await anext(found) == b"whole"
    all_pages.send(lambda: b"secret", lambda: b"secret")
    allowed[0] = False
    assert [each async for each in found] == [b"event: end\ndata: {}\n\n"]


async def test_a_change_reaches_a_page() -> None:
    asked = FakePoller()
    console = Console(sources(poll_ms=1), asked)
    try:
        await console.current()
        page = console.pages.open()
        found = stream(console.pages, page, console.whole, lambda: True)
        assert (await anext(found)).startswith(b"event: status\n")
        asked.status = with_group(STATUS, master_id=2)
        async with asyncio.timeout(10):
            async for event in found:
                if b'"masterId":2' in event:
                    break
        assert event.startswith(b"event: change\n")
        assert event.count(b"brokerName") == 1
    finally:
        await console.stop()
    assert asked.is_closed
