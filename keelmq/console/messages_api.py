"""GET /v1/console/messages, traces and dead letters. Bodies go out as JSON text, never as HTML.

Imports FastAPI: see keelmq/remoting/servers/http_late.py.
"""

import asyncio
from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request, Response

from keelmq.client.admin.progress import DLQ_PREFIX
from keelmq.client.tracing import TRACE_TOPIC
from keelmq.console.data import messages, times, trace
from keelmq.console.data.examples import MESSAGE, SEARCH, TRACE
from keelmq.console.data.messages import BODY_BYTES, BODY_BYTES_MAX
from keelmq.console.data.times import CURSOR_CHARS_MAX
from keelmq.console.data_asking import NAME_MAX, Asking, asked
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import BadRequest
from keelmq.remoting.operation import CommandError
from keelmq.remoting.servers.http_answers import NOT_HERE, Answers, Problem, as_json, shown
from keelmq.runtime.clock import wall_ms

HOUR_MS: Final = 3_600_000
SEARCHES_AT_ONCE: Final = 2
"""Searches by time; each may hold some MiB. More wait."""
WAITING_MAX: Final = 16

Begin = Annotated[
    int, Query(ge=0, le=2**53, description="stored at or after, wall-clock ms; 0: an hour before the end")
]
End = Annotated[int, Query(ge=0, le=2**53, description="stored at or before, wall-clock ms; 0: now")]
TopicQuery = Annotated[
    str, Query(min_length=1, max_length=NAME_MAX, description="a topic", examples=["orders"])
]
PageLimit = Annotated[int, Query(ge=1, le=200, description="messages of a page")]
TOO_LONG: Answers = {
    431: {
        "model": Problem,
        "description": "The request is longer than 64 KiB (a cursor has 12,000 characters at most)",
    }
}
Cursor = Annotated[str, Query(max_length=CURSOR_CHARS_MAX, description="`next` of the previous page")]


class Turns:
    """Lets few searches run at once; refuses when too many wait."""

    def __init__(self) -> None:
        self._running, self._waiting = asyncio.Semaphore(SEARCHES_AT_ONCE), 0

    async def __aenter__(self) -> None:
        if self._waiting >= WAITING_MAX:
            raise CommandError(ResponseCode.SYSTEM_BUSY, "too many searches wait; try again in some seconds")
        self._waiting += 1
        try:
            await self._running.acquire()
        finally:
            self._waiting -= 1

    async def __aexit__(self, *_: object) -> None:
        self._running.release()


def messages_router(asking: Asking) -> APIRouter:
    """Returns the router of messages, dead letters and traces."""
    router = APIRouter(prefix="/v1/console", tags=["console"])
    turns = Turns()
    _add_search(router, asking, turns)
    _add_dead_letters(router, asking, turns)
    _add_one(router, asking)
    return router


def _range(begin: int, end: int) -> tuple[int, int]:
    end_ms = end or wall_ms()
    begin_ms = begin or max(0, end_ms - HOUR_MS)
    if begin_ms > end_ms:
        raise BadRequest("begin is after end")
    return begin_ms, end_ms


def _add_search(router: APIRouter, asking: Asking, turns: Turns) -> None:
    @router.get(
        "/messages",
        summary="messages of a topic, by `id`, by `key`, or by time",
        description="`id`: a producer's id (msgId) or an offset message id. `key`: one of the message's "
        "keys; of each broker the newest 64. Otherwise by the time of storing, the newest first, in pages. "
        "`cut` says when a search ended early: after 8 s, or 64 MiB.",
        **shown(SEARCH, NOT_HERE, TOO_LONG),
    )
    @asked
    async def search(
        request: Request,
        topic: TopicQuery,
        id: Annotated[str, Query(max_length=NAME_MAX, description="of one message")] = "",
        key: Annotated[str, Query(max_length=NAME_MAX, description="a key of messages")] = "",
        begin: Begin = 0,
        end: End = 0,
        limit: PageLimit = 50,
        cursor: Cursor = "",
    ) -> Response:
        async with turns, asking.context(request) as context:
            if id:
                return as_json(await messages.by_id(context, topic, id.strip()))
            if key:
                end_ms = end or 2**63 - 1
                view = await messages.by_key(
                    context, topic, key.strip(), is_unique=False, begin_ms=begin, end_ms=end_ms, limit=limit
                )
                return as_json(view)
            begin_ms, end_ms = _range(begin, end)
            return as_json(
                await times.by_time(
                    context, topic, begin_ms=begin_ms, end_ms=end_ms, limit=limit, cursor=cursor
                )
            )


def _add_dead_letters(router: APIRouter, asking: Asking, turns: Turns) -> None:
    @router.get(
        "/dead-letters/{group}",
        summary="dead letters of a consumer group by time, the newest first",
        description="Pages as of /v1/console/messages. 404: the group has no dead letter topic, so none.",
        **shown(SEARCH, NOT_HERE, TOO_LONG),
    )
    @asked
    async def dead_letters(
        request: Request,
        group: Annotated[
            str,
            Path(min_length=1, max_length=NAME_MAX, description="a consumer group", examples=["billing"]),
        ],
        begin: Begin = 0,
        end: End = 0,
        limit: PageLimit = 50,
        cursor: Cursor = "",
    ) -> Response:
        begin_ms, end_ms = _range(begin, end)
        async with turns, asking.context(request) as context:
            return as_json(
                await times.by_time(
                    context, DLQ_PREFIX + group, begin_ms=begin_ms, end_ms=end_ms, limit=limit, cursor=cursor
                )
            )


def _add_one(router: APIRouter, asking: Asking) -> None:
    @router.get(
        "/message",
        summary="one message: properties, body, and what its consumer groups did with it",
        **shown(MESSAGE, NOT_HERE),
    )
    @asked
    async def message(
        request: Request,
        topic: TopicQuery,
        broker: Annotated[
            str, Query(min_length=1, max_length=NAME_MAX, description="broker name", examples=["broker-a"])
        ],
        queue: Annotated[int, Query(ge=0, le=65_535, description="queue", examples=[0])],
        offset: Annotated[int, Query(ge=0, le=2**62, description="offset in the queue", examples=[12])],
        body: Annotated[
            int, Query(ge=0, le=BODY_BYTES_MAX, description="bytes of the body at most")
        ] = BODY_BYTES,
    ) -> Response:
        return await asking.read(
            request, lambda context: messages.message(context, topic, broker, queue, offset, body_limit=body)
        )

    @router.get(
        "/trace",
        summary="who sent and consumed a message, when, and the results",
        **shown(TRACE, NOT_HERE),
    )
    @asked
    async def trace_of(
        request: Request,
        id: Annotated[
            str,
            Query(min_length=1, max_length=NAME_MAX, description="the producer's id", examples=["7F00"]),
        ],
        topic: Annotated[str, Query(max_length=NAME_MAX, description="where traces are")] = TRACE_TOPIC,
    ) -> Response:
        return await asking.read(request, lambda context: trace.trace(context, id.strip(), topic=topic))
