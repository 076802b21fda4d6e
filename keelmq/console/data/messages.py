"""Messages: found by id, by key, or by time, and one message with its body and its consumers.

A search takes a bounded time and reads a bounded number of bytes; one that ends early reports it. Bodies are
untrusted: they are text for a page, never HTML. Of many messages only the beginning of a body is kept.
"""

import asyncio
import json
from typing import Final

from pydantic import Field

from keelmq.client.admin import AdminError
from keelmq.client.admin.messages import QUERY_NUMS
from keelmq.client.admin.progress import NOBODY
from keelmq.client.copies import original_topic
from keelmq.client.message import MessageExt
from keelmq.client.message_id import decode_offset_message_id
from keelmq.console.data.cluster_context import (
    ClusterContext,
    Missing,
    ServerProblem,
    ServerProblems,
    addresses_in,
    ask_each,
    brokers_of,
    route_of,
)
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Wire
from keelmq.remoting.operations.broker import QueryMessageRequest
from keelmq.remoting.queue_map import QueueKey
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.printable import printable_line

INFLATED_MAX: Final = 8 << 20
"""Limit of a body, and of all bodies of an answer; one that exceeds it stays compressed."""
INFLATED_IN_LISTS_MAX: Final = 262_144
PREVIEW_CHARS: Final = 160
BODY_BYTES: Final = 65_536
"""Bytes of a body that are shown by default."""
BODY_BYTES_MAX: Final = 1 << 20
HEX_BYTES_MAX: Final = 16_384
UNIQUE_KEY_NUMS: Final = 32
TRACKS_MAX: Final = 32
TEXT_CONTROLS: Final = frozenset("\t\n\r")
FIELD_CHARS_MAX: Final = 255
"""Limit of an id, a tag or the keys of a message, as a producer has set them."""
PROPERTY_CHARS_MAX: Final = 2_048
PROPERTIES_MAX: Final = 128
_DIRECTIONS: Final = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Characters that show the text behind them in another order."""


class MessageRow(Wire):
    """A message in a list. Texts that a producer has set are cut, with their length, and on one line:
    characters that do not print are escapes. body_bytes: of the whole body. preview: the beginning of its
    body, "" if that is no text. original_topic: of a retry or a dead letter. priority: absent if it has
    none."""

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    msg_id: str
    offset_msg_id: str
    tags: str
    keys: str
    store_ms: int
    born_ms: int
    born_host: str
    body_bytes: int
    preview: str
    reconsume_times: int
    original_topic: str = ""
    priority: int | None = None


class SearchView(Wire):
    """Messages that were found. cut: why the search ended before its end, "" if it did not. next: the
    `cursor` of the next page; null: this is the last."""

    taken_ms: int
    messages: list[MessageRow]
    cut: str = ""
    next: str | None = None
    problems: list[ServerProblem] = Field(default_factory=list)
    not_asked: int = 0


class BodyView(Wire):
    """kind: "text", "json" (text that is JSON), "hex" (a dump), "packed" (compressed in a way that is not
    read here; a dump)."""

    bytes: int
    shown_bytes: int
    kind: str
    text: str


class TrackRow(Wire):
    """What a consumer group did with a message. state: "consumed"; "not consumed"; "pulled" (a member has
    it); "broadcast" (members keep their offsets themselves); "unknown"."""

    group: str
    state: str
    is_online: bool | None = None
    remark: str = ""


class MessageView(Wire):
    """One message. properties: at most 128; more_properties: how many there are besides. tracks: of at most
    32 groups; more_groups: of how many others there are none."""

    taken_ms: int
    message: MessageRow
    store_host: str
    commit_log_offset: int
    stored_bytes: int
    sys_flag: int
    flag: int
    properties: dict[str, str]
    more_properties: int = 0
    body: BodyView
    tracks: list[TrackRow]
    more_groups: int = 0
    problems: list[ServerProblem] = Field(default_factory=list)


def row_of(message: MessageExt, broker_name: str = "") -> MessageRow:
    """Returns the row of a message in a list."""
    return MessageRow(
        topic=message.topic,
        broker_name=broker_name or message.broker_name,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        msg_id=field_text(message.msg_id),
        offset_msg_id=message.offset_msg_id,
        tags=field_text(message.tags or ""),
        keys=field_text(message.keys or ""),
        store_ms=message.store_timestamp,
        born_ms=message.born_timestamp,
        born_host=message.born_host,
        body_bytes=len(message.body),
        preview=_preview(message),
        reconsume_times=message.reconsume_times,
        original_topic=field_text(original_topic(message)) if message.topic.startswith("%") else "",
        priority=message.priority,
    )


def field_text(text: str, limit: int = FIELD_CHARS_MAX) -> str:
    """Returns a text that a producer has set as one line of at most `limit` characters before escapes. A
    longer one ends with its length."""
    shown = printable_line(text[:limit])
    return shown if len(text) <= limit else f"{shown}... ({len(text)} characters)"


def properties_of(message: MessageExt) -> tuple[dict[str, str], int]:
    """Returns the properties as they are shown, by name, and how many others there are."""
    every = sorted(message.properties.items())
    shown = {
        field_text(name): field_text(value, PROPERTY_CHARS_MAX) for name, value in every[:PROPERTIES_MAX]
    }
    return shown, len(every) - len(shown)


def _preview(message: MessageExt) -> str:
    if message.body_error:
        return ""
    text = _text(message.body[: PREVIEW_CHARS * 4], is_cut=len(message.body) > PREVIEW_CHARS * 4)
    return "" if text is None else text[:PREVIEW_CHARS].translate(_DIRECTIONS)


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """Returns UTF-8 text, None if it is none. A character that the cut has split is left out."""
    for spare in range(4 if is_cut else 1):
        try:
            text = data[: len(data) - spare].decode()
        except UnicodeDecodeError:
            continue
        is_plain = all(char.isprintable() or char in TEXT_CONTROLS or ord(char) > 0x9F for char in text)
        return text if is_plain else None
    return None


def body_of(message: MessageExt, limit: int = BODY_BYTES) -> BodyView:
    """Returns the beginning of a body, as text or as a dump."""
    body = message.body
    if message.body_error:
        return _dump(body, limit, "packed")
    part = body[:limit]
    text = _text(part, is_cut=len(part) < len(body))
    if text is None:
        return _dump(body, limit, "hex")
    kind = "text"
    if len(part) == len(body) and text.lstrip()[:1] in ("{", "["):
        try:
            json.loads(text)
            kind = "json"
        except (ValueError, RecursionError):
            kind = "text"
    return BodyView(
        bytes=len(body), shown_bytes=len(text.encode()), kind=kind, text=text.translate(_DIRECTIONS)
    )


def _dump(body: bytes, limit: int, kind: str) -> BodyView:
    part = body[: min(limit, HEX_BYTES_MAX)]
    lines = []
    for at in range(0, len(part), 16):
        piece = part[at : at + 16]
        shown = "".join(chr(each) if 32 <= each < 127 else "." for each in piece)
        lines.append(f"{at:08x}  {piece.hex(' '):<47}  {shown}")
    return BodyView(bytes=len(body), shown_bytes=len(part), kind=kind, text="\n".join(lines))


# -- by id and key -----------------------------------------------------------------------------------------


async def by_key(
    context: ClusterContext, topic: str, key: str, *, is_unique: bool, begin_ms: int, end_ms: int, limit: int
) -> SearchView:
    """Returns messages with a key, or with a producer's id (is_unique); the newest first. Raises Missing."""
    server_problems = ServerProblems()
    count = min(limit, UNIQUE_KEY_NUMS if is_unique else QUERY_NUMS)
    header = QueryMessageRequest(
        topic=topic,
        key=key,
        max_num=count,
        begin_timestamp=begin_ms,
        end_timestamp=end_ms,
        _UNIQUE_KEY_QUERY=True if is_unique else None,
    )
    names: dict[str, str] = {}

    async def ask(address: str) -> list[MessageRow]:
        found = await context.admin.messages.query_messages(
            address, header, inflated_max=INFLATED_IN_LISTS_MAX
        )
        return [row_of(each, names[address]) for each in found]

    brokers = brokers_of(await route_of(context, topic))
    names.update((each.address, each.name) for each in brokers)
    results = await ask_each(server_problems, brokers, ask, unless=(ResponseCode.QUERY_NOT_FOUND,), at_once=4)
    rows = sorted((row for _, found in results for row in found), key=lambda row: row.store_ms, reverse=True)
    is_full = any(len(found) >= count for _, found in results)
    cut = f"a broker returns at most {count} messages of a key, the newest" if is_full else ""
    if len(rows) > limit:
        cut = cut or f"there are more than {limit}"
    return SearchView(
        taken_ms=wall_ms(),
        messages=rows[:limit],
        cut=cut,
        problems=server_problems.listed,
        not_asked=server_problems.not_asked,
    )


async def by_id(context: ClusterContext, topic: str, msg_id: str) -> SearchView:
    """Returns the messages with an id: an offset message id, else a producer's (UNIQ_KEY). Raises Missing."""
    try:
        address, offset = decode_offset_message_id(msg_id)
    except ValueError:
        return await by_key(
            context, topic, msg_id, is_unique=True, begin_ms=0, end_ms=2**63 - 1, limit=UNIQUE_KEY_NUMS
        )
    known = addresses_in(await context.admin.name_servers.cluster_info(context.name_servers))
    server_problems = ServerProblems()
    if address in known:
        try:
            found = await context.admin.messages.view_message(
                address, topic, offset, inflated_max=INFLATED_IN_LISTS_MAX
            )
            rows = [row_of(each, known[address]) for each in found]
            return SearchView(taken_ms=wall_ms(), messages=rows)
        except AdminError as error:
            server_problems.add(error)
    # A producer's id may look like an offset message id as well: 32 hex digits.
    view = await by_key(
        context, topic, msg_id, is_unique=True, begin_ms=0, end_ms=2**63 - 1, limit=UNIQUE_KEY_NUMS
    )
    if view.messages:
        return view
    problems = {each.server: each for each in (*view.problems, *server_problems.listed)}
    return view.model_copy(update={"problems": list(problems.values())})


# -- one message -------------------------------------------------------------------------------------------


async def find(
    context: ClusterContext, topic: str, broker_name: str, queue_id: int, queue_offset: int
) -> tuple[str, MessageExt]:
    """Returns the broker's address and the message at an offset of a queue. Raises Missing, AdminError."""
    brokers = {each.name: each for each in brokers_of(await route_of(context, topic))}
    if broker_name not in brokers:
        raise Missing(
            f"topic {topic} is not at {broker_name} (known: {', '.join(sorted(brokers)) or 'none'})"
        )
    address = brokers[broker_name].address
    queue = QueueKey(topic, broker_name, queue_id)
    pulled = await context.admin.messages.pull_messages(
        address, queue, queue_offset, 1, inflated_max=INFLATED_MAX
    )
    for each in pulled.messages:
        if each.queue_offset == queue_offset:
            return address, each
    raise Missing(
        f"no message at offset {queue_offset} of queue {queue_id} at {broker_name}: retention has deleted "
        "it, or it is not there yet"
    )


async def message(
    context: ClusterContext,
    topic: str,
    broker_name: str,
    queue_id: int,
    queue_offset: int,
    *,
    body_limit: int,
) -> MessageView:
    """Returns the message at an offset of a queue. Raises Missing, AdminError."""
    address, found = await find(context, topic, broker_name, queue_id, queue_offset)
    server_problems = ServerProblems()
    tracks, more = await _tracks(context, server_problems, address, found, broker_name)
    properties, more_properties = properties_of(found)
    return MessageView(
        taken_ms=wall_ms(),
        message=row_of(found, broker_name),
        store_host=found.store_host,
        commit_log_offset=found.physical_offset,
        stored_bytes=found.stored_bytes,
        sys_flag=found.sys_flag,
        flag=found.flag,
        properties=properties,
        more_properties=more_properties,
        body=body_of(found, body_limit),
        tracks=tracks,
        more_groups=more,
        problems=server_problems.listed,
    )


async def _tracks(
    context: ClusterContext,
    server_problems: ServerProblems,
    address: str,
    found: MessageExt,
    broker_name: str,
) -> tuple[list[TrackRow], int]:
    try:
        groups = sorted(await context.admin.brokers.topic_consumers(address, found.topic))
    except AdminError as error:
        server_problems.add(error, unless=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED,))
        return [], 0
    queue = QueueKey(found.topic, broker_name, found.queue_id)
    shown = groups[:TRACKS_MAX]
    rows = await asyncio.gather(
        *(_track(context, address, each, queue, found.queue_offset) for each in shown)
    )
    return rows, len(groups) - len(shown)


async def _track(context: ClusterContext, address: str, group: str, queue: QueueKey, offset: int) -> TrackRow:
    is_online, model = None, ""
    try:
        body = await context.admin.groups.consumer_connections(address, group)
        is_online, model = bool(body.connection_set), body.message_model
    except AdminError as error:
        is_online = False if error.code in NOBODY else None
    try:
        progress = (await context.admin.groups.consume_stats(address, group, queue.topic)).queues.get(queue)
    except AdminError as error:
        return TrackRow(group=group, state="unknown", is_online=is_online, remark=error.remark)
    if model == "BROADCASTING":
        return TrackRow(group=group, state="broadcast", is_online=is_online)
    if progress is None:
        return TrackRow(group=group, state="unknown", is_online=is_online, remark="it has no offset there")
    if progress.consumer_offset > offset:
        return TrackRow(group=group, state="consumed", is_online=is_online)
    state = "pulled" if progress.pull_offset > offset else "not consumed"
    return TrackRow(group=group, state=state, is_online=is_online)
