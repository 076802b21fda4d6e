"""The body of REGISTER_BROKER (103): bytes -> RegisterBody. Pure.

Three forms: JSON; a bare JSON wrapper from senders before 3.0.11; a zlib stream of length-prefixed parts,
recognized by `compressed` or, because Java brokers do not set that flag, by its first byte.

Every broker sends its whole topic table every 30 s, so JSON is decoded directly into small structs with only
the fields that a name server keeps. JSON that the strict decoder refuses is decoded leniently.

A value takes up to thirty times the bytes of its text. So each member is located first and decoded only if it
is within its limit, and members that a name server does not keep are never decoded.
"""

import re
import struct
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec.structs import replace

from keelmq.remoting.lenient_json import REWRITTEN_BYTES_MAX, is_too_dense, load_lenient, without_nulls
from keelmq.remoting.operations.route import DataVersion
from namesrv.core.topics import TOPICS_PER_BROKER_MAX
from namesrv.core.values import RegisterBody

BARE_WRAPPER_BELOW = 37
"""Release ordinal of 3.0.11: senders before it put no filter server list around the wrapper."""
MAPPINGS_SINCE = 413
"""Release ordinal of 5.0.0: since then the compressed form ends with topic queue mappings."""
INFLATED_BYTES_MAX = 64 * 1024 * 1024
JSON_CHARACTERS_MAX = 4 * 1024 * 1024
"""Limit of the mappings and the filter servers together, and of a body that is decoded leniently. Mappings of
10,000 static topics fit."""
OBJECTS_OF_TOPICS_MAX = 1 + 2 * TOPICS_PER_BROKER_MAX
"""The table, and each topic with its attributes."""
ZLIB_FIRST_BYTE = 0x78
SLICE_BYTES = 256 * 1024
"""Bytes of topics that one step of read_slices() decodes, about 1 ms."""
CUTS_MAX = 16
"""Places where read_slices() tries to end a slice."""
MESSAGE_TYPE, FIFO = "message.type", "FIFO"
"""The attribute of a topic whose messages are sent in order."""

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_BARE_ID_MAP = re.compile(rb'("currIdMap":\{)([-0-9:,]+)\}')
"""The ids of a mapping as Java writes them. It cannot match inside a string, where quotes are escaped. It has
one repetition of one character, so it needs no backtracking."""
_FIFO = re.compile(r'"message\.type":"FIFO"')

T = TypeVar("T")


class _Attributes(msgspec.Struct, frozen=True, gc=False):
    """The attribute of a topic that routes need."""

    message_type: str | None = msgspec.field(default=None, name=MESSAGE_TYPE)


class _Topic(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The fields of a TopicConfig that routes need."""

    read_queue_nums: _Int32 = 16
    write_queue_nums: _Int32 = 16
    perm: _Int32 = 6
    topic_sys_flag: _Int32 = 0
    order: bool = False
    attributes: _Attributes | None = None

    @property
    def is_ordered(self) -> bool:
        return self.order or (self.attributes is not None and self.attributes.message_type == FIFO)


class _Version(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    counter: _Int64 = 0
    state_version: _Int64 = 0
    timestamp: _Int64 = 0


_Topics = dict[str, _Topic]
_Mappings = dict[str, dict[str, Any]]
_Servers = list[str] | None
_NO_MEMBERS = msgspec.Raw(b"{}")


class _Wrapper(msgspec.Struct, gc=False, rename="camel"):
    topic_config_table: msgspec.Raw = _NO_MEMBERS
    data_version: _Version = _Version()
    topic_queue_mapping_info_map: msgspec.Raw = _NO_MEMBERS


class _Body(msgspec.Struct, gc=False, rename="camel"):
    topic_config_serialize_wrapper: _Wrapper = msgspec.field(default_factory=_Wrapper)
    filter_server_list: msgspec.Raw = msgspec.Raw(b"[]")


_decode_body = msgspec.json.Decoder(_Body, strict=False).decode
_decode_wrapper = msgspec.json.Decoder(_Wrapper, strict=False).decode
_decode_topics = msgspec.json.Decoder(_Topics, strict=False).decode
_decode_mappings = msgspec.json.Decoder(_Mappings, strict=False).decode
_decode_servers = msgspec.json.Decoder(_Servers, strict=False).decode


class BadBody(Exception):
    """The body is malformed; the text is the remark of the error reply."""


def check_crc32(body: bytes, expected: int) -> bool:
    """Returns whether the crc32 of the received body is `expected`. 0: the sender has set none."""
    return expected == 0 or zlib.crc32(body) & 0x7FFFFFFF == expected


def is_deflated(body: bytes, *, compressed: bool) -> bool:
    """Returns whether the body is a zlib stream: by the header's flag, or by its first byte (0x78)."""
    return bool(body) and (compressed or body[0] == ZLIB_FIRST_BYTE)


def read_body(raw: bytes, *, compressed: bool, version: int) -> RegisterBody:
    """Parses a body in any of the three forms. `version`: the sender's release ordinal. Raises BadBody."""
    if not raw:
        return RegisterBody()
    if is_deflated(raw, compressed=compressed):
        return inflate_body(raw, version)
    if len(raw) > REWRITTEN_BYTES_MAX and is_too_dense(raw):
        raise BadBody(f"{len(raw)} bytes with more lists and objects than one for eight bytes")
    return _json(raw, _bare_wrapper if version < BARE_WRAPPER_BELOW else _whole_body)


def inflate_body(body: bytes, version: int) -> RegisterBody:
    """Parses the compressed form. Raises BadBody."""
    try:
        return _parse(_Parts(_inflate(body)), version)
    except msgspec.ValidationError as error:
        raise BadBody(f"compressed body: {error}") from None


def read_slices(
    raw: bytes, *, compressed: bool, version: int
) -> Generator[None, None, Sequence[RegisterBody]]:
    """Parses a body like read_body() in bounded steps: the caller can run other work at each yield. Returns
    bodies with the same version, mappings and filter servers, and a slice of the topics each; one body, if it
    is small, or if only the lenient decoder reads it. Raises BadBody."""
    if len(raw) <= SLICE_BYTES or is_deflated(raw, compressed=compressed) or version < BARE_WRAPPER_BELOW:
        return (read_body(raw, compressed=compressed, version=version),)
    try:
        quoted = _quoted_ids(raw)
        yield
        body = _decode_body(quoted)
        yield
        wrapper, servers = body.topic_config_serialize_wrapper, bytes(body.filter_server_list)
        table, wrapper.topic_config_table = bytes(wrapper.topic_config_table), _NO_MEMBERS
        frame, slices, count = _body(wrapper, servers), [], 0
        for topics in _slices_of(table):
            count += len(topics)
            if count > TOPICS_PER_BROKER_MAX:
                raise BadBody(f"more than {TOPICS_PER_BROKER_MAX} topics")
            slices.append(replace(frame, topics=topics, ordered=_ordered(topics)))
            yield
        return slices or (frame,)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # read_body() reports what is wrong, or reads it leniently
        return (read_body(raw, compressed=compressed, version=version),)


def _slices_of(table: bytes) -> Iterator[_Topics]:
    """Decodes an object of topics in slices of about SLICE_BYTES. Raises MsgspecError or ValueError.

    Where a topic ends is not searched: the text up to a "},", with braces around it, is a JSON object only if
    that place is between two topics. One in a string or in the attributes is cut off there, and the next is
    tried.
    """
    start, end = 1, len(table) - 1
    while start < end:
        stop = start + SLICE_BYTES
        for _ in range(CUTS_MAX):
            at = table.find(b"},", stop, end)
            stop = end if at < 0 else at + 1
            try:
                topics = _decode_topics(b"{%b}" % table[start:stop])
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError:
                if stop == end:
                    raise
            else:
                break
        else:
            raise ValueError(f"no topic ends within {CUTS_MAX} closing braces")
        yield topics
        start = stop + 1


def _json(raw: bytes, decode: Callable[[bytes], RegisterBody]) -> RegisterBody:
    try:
        return decode(_quoted_ids(raw))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if len(raw) > JSON_CHARACTERS_MAX:
            raise BadBody(f"{error} (more than {JSON_CHARACTERS_MAX} bytes are read strictly)") from None
    try:
        value = load_lenient(raw)
        no_filter_list = isinstance(value, dict) and value.get("filterServerList", ()) is None
        value = without_nulls(value)
        if no_filter_list:
            value["filterServerList"] = None
        return decode(msgspec.json.encode(value))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadBody(str(error).splitlines()[0]) from None


def _quoted_ids(raw: bytes) -> bytes:
    """Quotes the bare number keys of currIdMap, so that the body needs no lenient decoding."""
    if b'"currIdMap":{' not in raw:
        return raw
    return _BARE_ID_MAP.sub(_quoted, raw)


def _quoted(match: re.Match[bytes]) -> bytes:
    return match[1] + b'"' + match[2].replace(b":", b'":').replace(b",", b',"') + b"}"


def _bare_wrapper(raw: bytes) -> RegisterBody:
    return _body(_decode_wrapper(raw), b"null")


def _whole_body(raw: bytes) -> RegisterBody:
    body = _decode_body(raw)
    return _body(body.topic_config_serialize_wrapper, bytes(body.filter_server_list))


def _body(wrapper: _Wrapper, servers: bytes) -> RegisterBody:
    topics, mappings = bytes(wrapper.topic_config_table), bytes(wrapper.topic_queue_mapping_info_map)
    if topics.count(b"{") > OBJECTS_OF_TOPICS_MAX:
        raise BadBody(f"more than {TOPICS_PER_BROKER_MAX} topics")
    if len(mappings) + len(servers) > JSON_CHARACTERS_MAX:
        raise BadBody(f"more than {JSON_CHARACTERS_MAX} bytes of mappings and filter servers")
    return _made(
        wrapper.data_version,
        _member("topicConfigSerializeWrapper.topicConfigTable", _decode_topics, topics),
        _member("topicConfigSerializeWrapper.topicQueueMappingInfoMap", _decode_mappings, mappings),
        _member("filterServerList", _decode_servers, servers),
    )


def _member(name: str, decode: Callable[[bytes], T], raw: bytes) -> T:
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"$.{name}: {error}") from None


def _made(version: _Version, topics: _Topics, mappings: _Mappings, servers: _Servers) -> RegisterBody:
    return RegisterBody(
        topics,
        DataVersion(
            counter=version.counter, state_version=version.state_version, timestamp=version.timestamp
        ),
        mappings,
        None if servers is None else tuple(servers),
        _ordered(topics),
    )


def _ordered(topics: _Topics) -> frozenset[str]:
    return frozenset(name for name, topic in topics.items() if topic.is_ordered)


def _parse(reader: "_Parts", version: int) -> RegisterBody:
    data_version = reader.json(_Version)
    count = reader.number()
    if not 0 <= count <= TOPICS_PER_BROKER_MAX:
        raise BadBody(f"compressed body: {count} topics")
    topics = dict(_topic(reader.text()) for _ in range(count))
    servers = reader.json(_Servers)
    mappings = {}
    if version >= MAPPINGS_SINCE and not reader.at_end():  # old brokers' bodies end here (#5536)
        each = (reader.json(dict[str, Any]) for _ in range(reader.number()))
        mappings = {str(mapping.get("topic")): mapping for mapping in each}
    return _made(data_version, topics, mappings, servers)


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise BadBody(f"compressed body: {error}") from None
    if inflater.unconsumed_tail:
        raise BadBody(f"compressed body: more than {INFLATED_BYTES_MAX} bytes")
    if not inflater.eof:
        raise BadBody("compressed body: the zlib stream is cut off")
    return data


def _topic(text: str) -> tuple[str, _Topic]:
    """Parses "name readQueueNums writeQueueNums perm filterType attributesJson"."""
    fields = text.split(" ")
    if len(fields) < 5:
        raise BadBody(f"compressed body: topic {text!r}")
    try:
        nums = msgspec.convert(fields[1:4], tuple[_Int32, _Int32, _Int32], strict=False)
    except msgspec.ValidationError:
        raise BadBody(f"compressed body: topic {text!r}") from None
    fifo = len(fields) > 5 and _FIFO.search(fields[5]) is not None
    return fields[0], _Topic(*nums, attributes=_Attributes(FIFO) if fifo else None)


class _Parts(msgspec.Struct):
    """A cursor over int32-prefixed parts."""

    data: bytes
    position: int = 0
    json_characters: int = 0

    def at_end(self) -> bool:
        return self.position == len(self.data)

    def number(self) -> int:
        if len(self.data) - self.position < 4:
            raise BadBody("compressed body: cut off")
        (value,) = struct.unpack_from(">i", self.data, self.position)
        self.position += 4
        return int(value)

    def text(self) -> str:
        length = self.number()
        if not 0 <= length <= len(self.data) - self.position:
            raise BadBody(f"compressed body: part of {length} bytes")
        part = self.data[self.position : self.position + length]
        self.position += length
        try:
            return part.decode()
        except UnicodeDecodeError:
            raise BadBody("compressed body: not UTF-8") from None

    def json(self, type_: Any) -> Any:
        text = self.text()
        self.json_characters += len(text)
        if self.json_characters > JSON_CHARACTERS_MAX:
            raise BadBody(f"compressed body: more than {JSON_CHARACTERS_MAX} characters of JSON")
        try:
            return msgspec.convert(load_lenient(text.encode() or b"null"), type_, strict=False)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise BadBody(f"compressed body: {error}") from None
