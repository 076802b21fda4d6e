"""Valid requests, made from the Operation declarations: whatever a table serves is in the corpus.

Values come from small pools of plausible names, so that requests meet each other: a registration and the
query for it, an election of a broker that exists.
"""

import json
import struct
import types
import zlib
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Union, get_args, get_origin

from msgspec.structs import replace
from pydantic import BaseModel, ValidationError

from keelmq.remoting.body import body_bytes
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.command import RemotingCommand, SerializeType, header_fields
from keelmq.remoting.operation import Operation, OperationTable
from keelmq.remoting.operations import broker as _broker
from keelmq.remoting.operations import controller as _controller
from keelmq.remoting.operations import namesrv_admin as _admin
from keelmq.remoting.operations import route as _route

INT16_MAX = 2**15 - 1
POOL = 60
"""Requests per operation, made once: making one costs more than answering it."""

NAMES: dict[str, tuple[str, ...]] = {
    "broker_name": ("broker-a", "broker-b", "broker-c"),
    "cluster_name": ("C1", "C1", "C2"),
    "cluster": ("C1", "C2"),
    "broker_addr": ("10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"),
    "broker_address": ("10.0.0.1:10911", "10.0.0.2:10911"),
    "ha_server_addr": ("10.0.0.1:10912", ""),
    "register_check_code": ("10.0.0.1:10911;1", "10.0.0.2:10911;1"),
    "topic": ("TopicA", "TopicA", "TopicB", "%RETRY%g", "TBW102"),
    "topic_name": ("TopicA", "TopicB"),
    "default_topic": ("TBW102", "TopicA"),
    "namespace": ("ORDER_TOPIC_CONFIG", "ns"),
    "key": ("k1", "k2"),
    "value": ("v", "broker-a:4"),
    "properties": ("", "TAGS\x01TagA\x02UNIQ_KEY\x01AC11\x02", "KEYS\x01k\x02WAIT\x01false\x02"),
    "subscription": ("*", "TagA || TagB"),
    "expression_type": ("TAG", "SQL92"),
}
"""Field -> what it may hold. Other texts are short and random."""

INTEGERS: dict[str, tuple[int, ...]] = {
    "broker_id": (0, 1, 2, 3, -1),
    "master_broker_id": (1, 2),
    "applied_broker_id": (1, 2, 3, 4),
    "queue_id": (0, 1, 3, -1),
    "max_msg_nums": (1, 32),
    "sys_flag": (0, 2, 6, 1),
    "heartbeat_timeout_millis": (3_000, 120_000),
    "heartbeat_timeout_mills": (3_000, 10_000),
    "suspend_timeout_millis": (0, 15_000),
    "body_crc32": (0,),
}


class Corpus:
    """Requests for every code that `table` serves. `bodies`: code -> maker, where a model cannot tell it."""

    def __init__(self, table: OperationTable, random: Random) -> None:
        self.random = random
        self.operations = [operation for operation, _ in table.handlers.values()]
        self.operations += [_fast_path_operation(code) for code in table.fast_path]
        self._pool = [self.make(each) for each in self.operations for _ in range(POOL)]

    def request(self) -> RemotingCommand:
        """A request that a correct peer could send, with an opaque of its own."""
        pool, random = self._pool, self.random
        made = pool[int(random.random() * len(pool))]
        opaque = int(random.random() * 2**31)
        return RemotingCommand(
            made.code, opaque, made.flag, None, made.ext_fields, made.body, made.language, made.version,
            made.serialize_type,
        )  # fmt: skip

    def make(self, operation: Operation[Any, Any]) -> RemotingCommand:
        random = self.random
        header = _model(operation.request, random)
        body = self._body(operation)
        binary = random.random() < 0.5 and operation.code <= INT16_MAX
        return RemotingCommand(
            operation.code,
            0,
            2 if operation.oneway or random.random() < 0.05 else 0,
            None,
            header_fields(header),
            body,
            random.choice(("JAVA", "PYTHON", "GO")),
            random.choice((0, 36, 401, 413, 441, 479)),
            SerializeType.ROCKETMQ if binary else SerializeType.JSON,
        )

    def _body(self, operation: Operation[Any, Any]) -> bytes:
        special = BODIES.get(operation.code)
        if special is not None:
            return special(self.random)
        if operation.request_body is None:
            return b""
        if operation.request_body is bytes:
            return self.random.randbytes(self.random.choice((0, 4, 100)))
        return body_bytes(_value(operation.request_body, "", self.random))


def _fast_path_operation(code: int) -> Operation[Any, Any]:
    """The declaration of a data-path code; 10 is 310 with long names, which the lenient reader takes, too."""
    if code == RequestCode.SEND_MESSAGE:
        return Operation(code, "sendMessageV1", _SendV1, _broker.SendMessageResponse, request_body=bytes)
    if code in LIKE:
        return replace(_fast_path_operation(LIKE[code]), code=code)
    for module in (_broker, _controller, _admin, _route):
        for value in vars(module).values():
            if isinstance(value, Operation) and value.code == code:
                return value
    raise LookupError(f"hot code {code} has no Operation")


LIKE: dict[int, int] = {
    RequestCode.SEND_BATCH_MESSAGE: RequestCode.SEND_MESSAGE_V2,
    RequestCode.LITE_PULL_MESSAGE: RequestCode.PULL_MESSAGE,
}
"""Codes with the header of another one."""


class _SendV1(_route.RouteRequest):
    """SendMessageRequestHeader, as far as brokers read it."""

    producer_group: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None


# ---- values ----


def _model(type_: type[BaseModel], random: Random) -> Any:
    """Fields with a default are left out half of the time. Limits of numbers are met by trying."""
    for _ in range(20):
        values = {
            name: _value(field.annotation, name, random)
            for name, field in type_.model_fields.items()
            if field.is_required() or random.random() < 0.5
        }
        try:
            return type_.model_validate(values)
        except ValidationError:
            pass
    return type_.model_construct(**values)


def _value(annotation: Any, name: str, random: Random) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _value(random.choice(arguments), name, random)
    if origin is list:
        return [_value(arguments[0], name, random) for _ in range(random.randrange(4))]
    if origin is dict:
        return {
            _value(arguments[0], "topic" if arguments[0] is str else name, random): _value(
                arguments[1], name, random
            )
            for _ in range(random.randrange(3))
        }
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _model(annotation, random)
    if annotation is str:
        return random.choice(NAMES.get(name, ("broker-a", "x", "10.0.0.1:10911")))
    if annotation is bool:
        return random.random() < 0.5
    if annotation is int:
        return random.choice(INTEGERS.get(name, (0, 1, 2, 7)))
    return None if annotation is type(None) else {"topic": "TopicA", "currIdMap": {"0": 1}}


# ---- bodies that their models do not tell ----


def _register_body(random: Random) -> bytes:
    """103: JSON, the bare wrapper of old senders, or the compressed form."""
    body = _value(_route.RegisterBrokerBody, "", random)
    kind = random.randrange(4)
    if kind == 0:
        return b""
    if kind == 1:
        return body_bytes(body)
    if kind == 2:
        return body_bytes(body.topic_config_serialize_wrapper)
    parts = [json.dumps({"counter": random.randrange(5), "stateVersion": 0, "timestamp": 1})]
    topics = [f"Topic{each} 4 4 6 SINGLE_TAG {{}}" for each in "AB"[: random.randrange(3)]]
    mappings = [json.dumps({"topic": "TopicA", "currIdMap": {"0": 1}})] * random.randrange(2)
    raw = _parts(parts) + struct.pack(">i", len(topics)) + _parts(topics) + _parts(["[]"])
    return zlib.compress(raw + struct.pack(">i", len(mappings)) + _parts(mappings))


def _parts(texts: Iterable[str]) -> bytes:
    return b"".join(struct.pack(">i", len(text.encode())) + text.encode() for text in texts)


def _names_body(random: Random) -> bytes:
    return json.dumps(random.sample(NAMES["broker_name"], random.randrange(1, 4))).encode()


def _settings_body(random: Random) -> bytes:
    return random.choice(
        (
            b"",
            b"scanNotActiveBrokerInterval=6000\n",
            b"# c\nreturnOrderTopicConfigToBroker=true\n",
            b"nonsense",
        )
    )


def _batch_body(random: Random) -> bytes:
    """320: length, magic, CRC, flag, body, properties of each message."""
    batch = b""
    for _ in range(random.randrange(5)):
        body, properties = (
            random.randbytes(random.choice((0, 4, 100))),
            random.choice((b"", b"KEYS\x01k\x02")),
        )
        sizes = struct.pack(">i", len(body)) + body + struct.pack(">h", len(properties)) + properties
        batch += struct.pack(">iiii", 16 + len(sizes), 0, 0, random.choice((0, 7))) + sizes
    return batch


BODIES: dict[int, Callable[[Random], bytes]] = {
    103: _register_body,
    318: _settings_body,
    320: _batch_body,
    1006: _names_body,
    1009: _settings_body,
}
