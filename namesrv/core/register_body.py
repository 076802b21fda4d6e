"""The body of REGISTER_BROKER (103): bytes -> RegisterBrokerBody. Pure.

Three forms (namesrv reference §5.1): JSON; bare JSON wrapper from senders before 3.0.11; a zlib stream of
length-prefixed parts, told by `compressed` or, as Java brokers forget that flag, by its first byte.
"""

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from remoting.operations.route import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)

BARE_WRAPPER_BELOW = 37
"""Release ordinal of 3.0.11: senders before it put no filter server list around the wrapper."""
MAPPINGS_SINCE = 413
"""Release ordinal of 5.0.0: since then the compressed form ends with topic queue mappings."""
INFLATED_BYTES_MAX = 64 * 1024 * 1024
TOPICS_MAX = 1_000_000
ZLIB_FIRST_BYTE = 0x78


class BadBody(Exception):
    """Text for the remark of the refusal."""


def check_crc32(body: bytes, expected: int) -> bool:
    """Over the bytes as received. 0: the sender asks for no check."""
    return expected == 0 or zlib.crc32(body) & 0x7FFFFFFF == expected


def is_deflated(body: bytes, *, compressed: bool) -> bool:
    return bool(body) and (compressed or body[0] == ZLIB_FIRST_BYTE)


def inflate_body(body: bytes, version: int) -> RegisterBrokerBody:
    """The compressed form. Raises BadBody."""
    try:
        return _parse(_Parts(_inflate(body)), version)
    except ValidationError as error:
        raise BadBody(f"compressed body: {error.errors()[0]['msg']}") from None


def _parse(reader: "_Parts", version: int) -> RegisterBrokerBody:
    data_version = DataVersion.model_validate(reader.json())
    count = reader.number()
    if not 0 <= count <= TOPICS_MAX:
        raise BadBody(f"compressed body: {count} topics")
    topics = [_topic(reader.text()) for _ in range(count)]
    filter_servers = reader.json()
    mappings: dict[str, object] = {}
    if version >= MAPPINGS_SINCE and not reader.at_end():  # old brokers' bodies end here (#5536)
        for _ in range(reader.number()):
            mapping = reader.json()
            if not isinstance(mapping, dict):
                raise BadBody("compressed body: a mapping is not an object")
            mappings[str(mapping.get("topic"))] = mapping
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
            topic_config_table={topic.topic_name: topic for topic in topics},
            data_version=data_version,
            topic_queue_mapping_info_map=mappings,
        ),
        filter_server_list=filter_servers or [],
    )


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


def _topic(text: str) -> TopicConfig:
    """ "name readQueueNums writeQueueNums perm filterType attributesJson"; attributes are not always JSON."""
    fields = text.split(" ")
    if len(fields) < 5:
        raise BadBody(f"compressed body: topic {text!r}")
    try:
        attributes = json.loads(fields[5]) if len(fields) == 6 else {}
    except ValueError:
        attributes = {}
    try:
        read_queue_nums, write_queue_nums, perm = (int(each) for each in fields[1:4])
    except ValueError:
        raise BadBody(f"compressed body: topic {text!r}") from None
    return TopicConfig(
        topic_name=fields[0],
        read_queue_nums=read_queue_nums,
        write_queue_nums=write_queue_nums,
        perm=perm,
        topic_filter_type=fields[4],
        attributes=attributes if isinstance(attributes, dict) else {},
    )


@dataclass(slots=True)
class _Parts:
    """A cursor over int32-prefixed parts."""

    data: bytes
    position: int = 0

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

    def json(self) -> Any:
        try:
            return json.loads(self.text() or "null")
        except ValueError as error:
            raise BadBody(f"compressed body: {error}") from None
