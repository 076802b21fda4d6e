"""Messages of a topic by time, the newest first, page by page.

The queues are merged by store time. A page reads each queue backwards, in small pieces, and keeps rows only.
A cursor says for each queue where the next page goes on; it is a text that visitors may forge, so it is
checked like any input.
"""

import base64
import binascii
import json
from collections import deque
from typing import Final

import msgspec

from keelmq.client.admin import AdminError, gather_some
from keelmq.console.data.cluster_context import ClusterContext, ServerProblems, brokers_of, route_of
from keelmq.console.data.messages import INFLATED_IN_LISTS_MAX, MessageRow, SearchView, row_of
from keelmq.remoting.queue_map import QueueKey
from keelmq.runtime.clock import now_ms, wall_ms

QUEUES_MAX: Final = 256
PIECE: Final = 16
"""Messages of a queue that are read at once."""
PIECE_BYTES: Final = 262_144
READ_BYTES_MAX: Final = 64 << 20
"""Stored bytes that one page may read."""
TIME_MS_MAX: Final = 8_000
AT_ONCE: Final = 4
CURSOR_CHARS_MAX: Final = 12_000


class BadCursor(ValueError):
    """The cursor is not one that a page gave out."""


class _Queue(msgspec.Struct):
    """A queue that is read from `end` down to `begin`; rows: the newest first."""

    key: QueueKey
    address: str
    begin: int
    end: int
    rows: deque[MessageRow] = msgspec.field(default_factory=deque)
    taken_to: int = 0
    """Where the next page goes on: the offset after the newest message that was not shown."""
    is_broken: bool = False

    @property
    def needs_more(self) -> bool:
        return not self.rows and self.end > self.begin and not self.is_broken


class Budget(msgspec.Struct):
    """What one page may still take."""

    deadline_ms: int
    bytes_left: int = READ_BYTES_MAX

    @property
    def why_over(self) -> str:
        """Why nothing more is read; "" while there is something left."""
        if now_ms() >= self.deadline_ms:
            return (
                f"the search took {TIME_MS_MAX // 1_000} s; go on with the next page, or take a shorter time"
            )
        if self.bytes_left <= 0:
            return f"the search has read {READ_BYTES_MAX >> 20} MiB; go on with the next page"
        return ""


async def by_time(
    context: ClusterContext, topic: str, *, begin_ms: int, end_ms: int, limit: int, cursor: str = ""
) -> SearchView:
    """Returns messages stored from begin_ms to end_ms (ms, both included). Raises Missing, BadCursor,
    AdminError."""
    server_problems, budget = ServerProblems(), Budget(now_ms() + TIME_MS_MAX)
    positions = _positions(cursor) if cursor else None
    queues = await _queues(context, server_problems, topic)
    await gather_some(
        (_limit(context, server_problems, each, begin_ms, end_ms, positions) for each in queues), AT_ONCE * 2
    )
    rows: list[MessageRow] = []
    cut = ""
    while len(rows) < limit:
        cut = budget.why_over
        if cut:
            break
        empty = [each for each in queues if each.needs_more]
        if empty:
            await gather_some((_read(context, server_problems, each, budget) for each in empty), AT_ONCE)
            continue
        ready = [each for each in queues if each.rows]
        if not ready:
            break
        newest = max(ready, key=lambda each: (each.rows[0].store_ms, each.key))
        row = newest.rows.popleft()
        newest.taken_to = row.queue_offset
        if begin_ms <= row.store_ms <= end_ms:
            rows.append(row)
    left = {
        f"{each.key.broker_name}:{each.key.queue_id}": each.taken_to
        for each in queues
        if each.taken_to > each.begin
    }
    return SearchView(
        taken_ms=wall_ms(),
        messages=rows,
        cut=cut,
        next=_cursor(left) if left and (rows or cut) else None,
        problems=server_problems.listed,
        not_asked=server_problems.not_asked,
    )


async def _queues(context: ClusterContext, server_problems: ServerProblems, topic: str) -> list[_Queue]:
    route = await route_of(context, topic)
    addresses = {each.name: each.address for each in brokers_of(route)}
    every = [
        _Queue(QueueKey(topic, each.broker_name, number), addresses[each.broker_name], 0, 0)
        for each in sorted(route.queue_datas, key=lambda each: each.broker_name)
        if each.broker_name in addresses
        for number in range(min(each.read_queue_nums, QUEUES_MAX + 1))
    ]
    if len(every) > QUEUES_MAX:
        server_problems.not_asked += len({each.key.broker_name for each in every[QUEUES_MAX:]})
    return every[:QUEUES_MAX]


async def _limit(
    context: ClusterContext,
    server_problems: ServerProblems,
    queue: _Queue,
    begin_ms: int,
    end_ms: int,
    positions: dict[str, int] | None,
) -> None:
    """Finds the offsets of the time range. With a cursor the end is known; a queue that it does not name is
    done."""
    try:
        if positions is None:
            queue.end = await context.admin.messages.offset_at(queue.address, queue.key, end_ms + 1)
        else:
            queue.end = positions.get(f"{queue.key.broker_name}:{queue.key.queue_id}", 0)
        if queue.end > 0:
            queue.begin = await context.admin.messages.offset_at(queue.address, queue.key, begin_ms)
    except AdminError as error:
        server_problems.add(error)
        queue.is_broken = True
        queue.begin = 0
    queue.taken_to = queue.end


async def _read(
    context: ClusterContext, server_problems: ServerProblems, queue: _Queue, budget: Budget
) -> None:
    """Reads the piece before `end`. A broker may return less than a piece; then it is asked again."""
    start = max(queue.begin, queue.end - PIECE)
    position, found = start, list[MessageRow]()
    while position < queue.end and not budget.why_over:
        try:
            pulled = await context.admin.messages.pull_messages(
                queue.address,
                queue.key,
                position,
                queue.end - position,
                bytes_max=PIECE_BYTES,
                inflated_max=INFLATED_IN_LISTS_MAX,
            )
        except AdminError as error:
            server_problems.add(error)
            queue.is_broken = True
            return
        kept = [each for each in pulled.messages if position <= each.queue_offset < queue.end]
        budget.bytes_left -= sum(each.stored_bytes for each in pulled.messages)
        found += [row_of(each, queue.key.broker_name) for each in kept]
        following = max([pulled.next_offset, *(each.queue_offset + 1 for each in kept)])
        if following <= position:
            break
        position = following
    if position < queue.end and budget.why_over:
        return  # the next page reads this piece again
    queue.rows.extend(sorted(found, key=lambda each: each.queue_offset, reverse=True))
    queue.end = start
    if not found:
        queue.taken_to = start


def _cursor(positions: dict[str, int]) -> str:
    return (
        base64.urlsafe_b64encode(json.dumps(positions, separators=(",", ":")).encode()).decode().rstrip("=")
    )


def _positions(cursor: str) -> dict[str, int]:
    if len(cursor) > CURSOR_CHARS_MAX:
        raise BadCursor("the cursor is too long: it is none that a page gave out")
    try:
        value = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        value = None
    if not isinstance(value, dict) or not all(
        type(each) is int and 0 <= each < 2**62 for each in value.values()
    ):
        raise BadCursor("the cursor is none that a page gave out: begin the search again")
    return value
