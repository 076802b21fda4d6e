"""Sending (310, 10): the data path from a decoded header to a record in the log and a reply in bytes.

Nothing here waits. A plain message costs one call into the store and one reply template; whatever is unusual
goes through _check(), which says why it is refused. Source: RocketMQ 5.3.3 SendMessageProcessor.
"""

import logging
import random
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, cast

import msgspec

from broker.handlers.parts import BrokerParts
from broker.pending import HotPeer, Int32, reply_frame
from broker.store.record import (
    PROPERTIES_BYTES_MAX,
    SEPARATOR,
    TAGS,
    TRANSACTION_BITS,
    UNIQ_KEY,
    property_value,
    tag_code,
)
from broker.topics import NOT_FOR_CLIENTS, PERM_WRITE, illegal_name
from remoting.clock import now_ms, wall_ms
from remoting.codes import VERSION, RequestCode, ResponseCode
from remoting.command import FLAG_ONEWAY, response_frame
from remoting.operation import Hot, HotHandler, OperationTable

logger = logging.getLogger(__name__)

_NAMES_V2: Final = {
    "group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "batch": "m",
}
_NAMES_V1: Final = {
    "default_topic": "defaultTopic",
    "default_topic_queue_nums": "defaultTopicQueueNums",
    "queue_id": "queueId",
    "sys_flag": "sysFlag",
    "born_timestamp": "bornTimestamp",
    "reconsume_times": "reconsumeTimes",
}


class SendFieldsV2(msgspec.Struct, gc=False, rename=_NAMES_V2):
    """extFields of 310; what the broker does not use is not decoded. group: tells a forwarded message."""

    topic: str
    queue_id: int
    born_timestamp: int = 0
    sys_flag: int = 0
    flag: int = 0
    properties: str = ""
    reconsume_times: int = 0
    default_topic: str = ""
    default_topic_queue_nums: int = 0
    batch: bool = False
    group: str = ""


class SendFieldsV1(msgspec.Struct, gc=False, rename=_NAMES_V1):
    """extFields of 10: the same attributes under their long names."""

    topic: str
    queue_id: int
    born_timestamp: int = 0
    sys_flag: int = 0
    flag: int = 0
    properties: str = ""
    reconsume_times: int = 0
    default_topic: str = ""
    default_topic_queue_nums: int = 0
    batch: bool = False


class SendCommandV2(msgspec.Struct, gc=False, rename={"ext": "extFields"}):
    opaque: Int32
    ext: SendFieldsV2
    flag: int = 0


class SendCommandV1(msgspec.Struct, gc=False, rename={"ext": "extFields"}):
    opaque: Int32
    ext: SendFieldsV1
    flag: int = 0


SendCommand: TypeAlias = SendCommandV1 | SendCommandV2

_REPLY_TAIL: Final = (
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,"language":"PYTHON","opaque":%%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
)
COMPLAINT_PERIOD_MS: Final = 5_000
_NOT_AVAILABLE: Final = "service not available now"
_UNSUPPORTED: Final = {
    b"DELAY": "delayed messages (property DELAY) are not supported by this broker",
    b"TIMER_DELIVER_MS": "timer messages (property TIMER_DELIVER_MS) are not supported by this broker",
    b"TIMER_DELAY_MS": "timer messages (property TIMER_DELAY_MS) are not supported by this broker",
    b"TIMER_DELAY_SEC": "timer messages (property TIMER_DELAY_SEC) are not supported by this broker",
}


class SendHandler:
    """One for both codes. Once per loop iteration in which something is put, parts.end_of_tick is called."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._store, self._gate, self._pending = parts.store, parts.gate, parts.pending
        self._topics = parts.topics.topics
        self._body_bytes_max = parts.message_bytes_max
        cluster = parts.cluster_name.encode()
        self._suffix = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01" + cluster
        self._properties_bytes_max = PROPERTIES_BYTES_MAX - len(self._suffix)
        self._tick_is_due = False
        self._tick_wall_ms = self._tick_ms = 0
        self._next_complaint_ms = 0
        self._host = b""
        self._template = b""
        self._unique_keys = UniqueKeys()

    def bind(self, table: OperationTable) -> None:
        handler = cast(HotHandler, self.send)
        table.bind_hot(RequestCode.SEND_MESSAGE_V2, Hot(SendCommandV2, _lenient_v2, handler))
        table.bind_hot(RequestCode.SEND_MESSAGE, Hot(SendCommandV1, _lenient_v1, handler))

    def send(self, command: SendCommand, body: bytes, peer: HotPeer) -> bytes | None:
        """A whole reply frame; None: oneway, or answered when the message is replicated."""
        ext = command.ext
        gate = self._gate
        topic = self._topics.get(ext.topic)
        text = ext.properties
        if text and text[-1] != SEPARATOR:
            text += SEPARATOR
        properties = text.encode()
        if (
            topic is None
            or not gate.writable
            or gate.in_sync < gate.min_in_sync
            or not 0 <= ext.queue_id < topic.open_queue_count
            or len(body) > self._body_bytes_max
            or len(properties) > self._properties_bytes_max
            or ext.sys_flag & TRANSACTION_BITS
            or ext.batch
            or "DELAY\x01" in text
            or "TIMER_" in text
            or "TRAN_MSG\x01" in text
            or "\0" in text
            or (gate.wait and self._pending.is_full)
        ):
            if not gate.writable and gate.detour is not None and gate.detour(command, body, peer):
                return None
            refused = self._check(command, body, properties)
            if refused is not None:
                return None if command.flag & FLAG_ONEWAY else response_frame(command.opaque, *refused)
            topic = self._topics[ext.topic]
        text = SEPARATOR + text
        tag = text.partition(TAGS)[2].partition(SEPARATOR)[0]
        key = text.partition(UNIQ_KEY)[2].partition(SEPARATOR)[0]
        if not key:
            key = self._unique_keys.next()
            properties += f"UNIQ_KEY\x01{key}\x02".encode()
        if not self._tick_is_due and self._is_cut_off():
            return self._refuse_cut_off(command)
        store = self._store
        try:
            offset, end, queue_offset = store.put(
                topic,
                ext.queue_id,
                body,
                properties + self._suffix,
                ext.flag,
                ext.sys_flag,
                ext.born_timestamp,
                peer.address_bytes,
                ext.reconsume_times,
                tag_code(tag),
                self._tick_wall_ms,
            )
        except (struct.error, ValueError, OSError) as error:
            return self._put_failed(command, error)
        if not self._tick_is_due:
            self._tick_is_due = True
            self._parts.call_soon(self._end_of_tick)
        if command.flag & FLAG_ONEWAY:
            return None
        if store.store_host is not self._host:
            self._make_template()
        key_json = key.encode()
        if not key_json.isalnum():  # of bytes: the test of text looks every character up
            key_json = msgspec.json.encode(key)[1:-1]
        reply = reply_frame(self._template % (offset, ext.queue_id, queue_offset, key_json, command.opaque))
        if gate.wait and "WAIT\x01false" not in text:
            self._pending.add(end, peer, reply, self._tick_ms, command.opaque)
            return None
        return reply

    def _is_cut_off(self) -> bool:
        """The first message of a tick: all of it share a time, and a look at the lease."""
        self._tick_wall_ms, self._tick_ms = wall_ms(), now_ms()
        return self._gate.lease_is_over

    def _end_of_tick(self) -> None:
        self._tick_is_due = False
        self._parts.end_of_tick()

    def _make_template(self) -> None:
        self._host = self._store.store_host
        self._template = (
            b'{"code":0,"extFields":{"msgId":"%b%%016X","queueId":"%%d","queueOffset":"%%d","transactionId":"%%b",'
            % self._host.hex().upper().encode()
        ) + _REPLY_TAIL

    # -- what is unusual ---------------------------------------------------------------------------------

    def _check(self, command: SendCommand, body: bytes, properties: bytes) -> tuple[int, str] | None:
        """All checks, in the peer's order: (code, remark) of the first that fails. May create the topic or
        choose the queue, and then lets the message pass."""
        ext, gate = command.ext, self._gate
        if not gate.writable:
            remark = gate.remark or "this broker is not master"
            if not remark.startswith(_NOT_AVAILABLE):
                remark = f"{_NOT_AVAILABLE}: {remark}"
            return ResponseCode.SERVICE_NOT_AVAILABLE, remark
        topic = self._topics.get(ext.topic)
        if topic is None:
            problem = illegal_name(ext.topic)
            if problem is not None:
                code = (
                    ResponseCode.MESSAGE_ILLEGAL if len(ext.topic) > 127 else ResponseCode.INVALID_PARAMETER
                )
                return code, problem
        if ext.topic in NOT_FOR_CLIENTS:
            return ResponseCode.NO_PERMISSION, f"sending to topic[{ext.topic}] is forbidden"
        refused = self._check_message(command, body, properties)
        if refused is not None:
            return refused
        if gate.in_sync < gate.min_in_sync and property_value(properties, b"WAIT") != b"false":
            return ResponseCode.SYSTEM_ERROR, (
                f"in-sync replicas not enough: {gate.in_sync} of at least {gate.min_in_sync}"
            )
        if gate.wait and self._pending.is_full:
            return ResponseCode.SYSTEM_BUSY, (
                f"[OVERLOAD]broker busy: {len(self._pending)} messages wait for replicas or the disk"
            )
        if topic is None:
            topic = self._parts.topics.create_on_send(
                ext.topic, ext.default_topic, ext.default_topic_queue_nums
            )
            if topic is None:
                return ResponseCode.TOPIC_NOT_EXIST, f"topic[{ext.topic}] not exist, apply first please!"
        if not topic.perm & PERM_WRITE:
            return ResponseCode.NO_PERMISSION, f"the topic[{ext.topic}] is not writable"
        if ext.queue_id >= topic.queue_count:
            return ResponseCode.INVALID_PARAMETER, (
                f"queueId[{ext.queue_id}] is illegal, topic[{ext.topic}] has {topic.queue_count} queues"
            )
        if ext.queue_id < 0:
            ext.queue_id = random.randrange(max(topic.write_queue_nums, 1))
        return None

    def _check_message(self, command: SendCommand, body: bytes, properties: bytes) -> tuple[int, str] | None:
        ext = command.ext
        if len(body) > self._body_bytes_max:
            return ResponseCode.MESSAGE_ILLEGAL, (
                f"body of {len(body)} bytes is above maxMessageSize {self._body_bytes_max}"
            )
        if len(properties) > self._properties_bytes_max:
            return ResponseCode.MESSAGE_ILLEGAL, (
                f"properties of {len(properties)} bytes are above {self._properties_bytes_max}"
            )
        if b"\0" in properties:  # recovery takes a zero for what a crash has torn off
            return ResponseCode.MESSAGE_ILLEGAL, "the properties contain a zero byte"
        if ext.batch:
            return ResponseCode.MESSAGE_ILLEGAL, "batch messages are not supported by this broker"
        if ext.sys_flag & TRANSACTION_BITS or property_value(properties, b"TRAN_MSG") == b"true":
            return ResponseCode.MESSAGE_ILLEGAL, "transactional messages are not supported by this broker"
        for name, remark in _UNSUPPORTED.items():
            if property_value(properties, name) not in (None, b"0"):
                return ResponseCode.MESSAGE_ILLEGAL, remark
        return None

    def _refuse_cut_off(self, command: SendCommand) -> bytes | None:
        """Perhaps there is another master already: nothing is stored that it would not have."""
        remark = f"{_NOT_AVAILABLE}: this master hears neither the controllers nor its in-sync replicas"
        if command.flag & FLAG_ONEWAY:
            return None
        return response_frame(command.opaque, ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    def _put_failed(self, command: SendCommand, error: Exception) -> bytes | None:
        if isinstance(error, OSError):
            if self._tick_ms >= self._next_complaint_ms:  # not one line per message on a full disk
                self._next_complaint_ms = self._tick_ms + COMPLAINT_PERIOD_MS
                logger.error("cannot write to the CommitLog, sends are refused: %s", error)
            code, remark = ResponseCode.SYSTEM_ERROR, f"create mapped file failed: {error.strerror or error}"
        else:
            code, remark = ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}"
        return None if command.flag & FLAG_ONEWAY else response_frame(command.opaque, code, remark)


class UniqueKeys:
    """UNIQ_KEY for messages without one: address, 6 random bytes, ms of the month, counter."""

    def __init__(self) -> None:
        try:
            address = socket.inet_aton(socket.gethostbyname(socket.gethostname()))
        except OSError:
            address = b"\x7f\x00\x00\x01"
        self._head = address.hex().upper() + f"{random.getrandbits(48):012X}"
        self._count = 0

    def next(self) -> str:
        self._count = (self._count + 1) & 0xFFFF
        milliseconds = int(time.time() * 1000) % (31 * 86_400_000)
        return f"{self._head}{milliseconds:08X}{self._count:04X}"


def _number(ext: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = ext[name] if default is None else ext.get(name) or default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"header field {name} is not a number: {text!r}") from None


def _lenient_fields(ext: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """The attributes of both SendFields from text, by the tolerant rules. KeyError, ValueError."""
    return {
        "topic": ext[names.get("topic", "topic")],
        "queue_id": _number(ext, names["queue_id"]),
        "born_timestamp": _number(ext, names["born_timestamp"], 0),
        "sys_flag": _number(ext, names["sys_flag"], 0),
        "flag": _number(ext, names.get("flag", "flag"), 0),
        "properties": ext.get(names.get("properties", "properties")) or "",
        "reconsume_times": _number(ext, names["reconsume_times"], 0),
        "default_topic": ext.get(names["default_topic"]) or "",
        "default_topic_queue_nums": _number(ext, names["default_topic_queue_nums"], 0),
        "batch": (ext.get(names.get("batch", "batch")) or "").lower() in ("true", "1"),
    }


def _lenient_v2(code: int, opaque: int, flag: int, ext: Mapping[str, str]) -> SendCommandV2:
    fields = SendFieldsV2(**_lenient_fields(ext, _NAMES_V2), group=ext.get(_NAMES_V2["group"]) or "")
    return SendCommandV2(opaque, fields, flag)


def _lenient_v1(code: int, opaque: int, flag: int, ext: Mapping[str, str]) -> SendCommandV1:
    return SendCommandV1(opaque, SendFieldsV1(**_lenient_fields(ext, _NAMES_V1)), flag)
